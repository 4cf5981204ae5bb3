"""The pods that wait for slices: what each asks for, and in which order they are served."""

from collections.abc import Hashable, Iterable
from datetime import datetime
from operator import attrgetter

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.pod import AccountPod
from gpushare_plugin.model.account.request import ANY_GPU, PodRequest, Wishes
from gpushare_plugin.model.slices.slice import Slice, misspelt, slice_of

MOST_SLICES_OF_A_POD = 64
"""Slices that a pod may ask for, one a container."""


class WaitingPod(Struct, frozen=True, eq=False):
    """A pod without a node that asks for `slices`, the largest first.

    `label` is `namespace/name`, `created` an aware time. `constraints` is anything that is equal for pods which the
    same nodes refuse, None for a pod that is like no other. `wishes` and `policy` are as in its request, `problem` says
    why no node can serve it. `owner` is the UID of its controller. A pod without slices has the resource that it
    `misspelt` instead.
    """

    uid: str
    label: str
    slices: tuple[Slice, ...]
    created: datetime
    priority: int = 0
    constraints: Hashable = None
    wishes: Wishes = ANY_GPU
    policy: str | None = None
    problem: str | None = None
    owner: str | None = None
    misspelt: str | None = None

    @property
    def alike(self) -> Hashable:
        """What is equal for pods that one search can serve."""
        unlike = self.uid if self.constraints is None else None
        return self.slices, self.wishes, self.policy, self.constraints, unlike


def waiting_pod(
    pod: AccountPod, created: datetime, constraints: Hashable = None, problem: str | None = None
) -> WaitingPod | None:
    """Return a pod that waits for slices, also for one of a size or a MIG profile that is misspelt.

    None for one that has a node, has ended, or asks for none. `problem` is why no node is found for it, beside what it
    asks for.
    """
    request = pod.request
    if not asks_for_slices(request) or pod.node is not None or pod.ended or pod.ending:
        return None
    asked = slices_of(request)
    wrong = None if asked else next(filter(misspelt, request.amounts))
    return WaitingPod(
        pod.uid,
        pod.label,
        asked[:MOST_SLICES_OF_A_POD],
        created,
        pod.priority,
        constraints,
        request.wishes,
        request.policy,
        request.problem or problem or (_problem(request, len(asked)) if wrong is None else _spelling(wrong)),
        pod.owner,
        wrong,
    )


def asks_for_slices(request: PodRequest) -> bool:
    """Return whether a pod asks for slices, or for what only somebody asks for who means one."""
    return any(slice_of(resource) is not None or misspelt(resource) for resource in request.amounts)


def slices_of(request: PodRequest) -> tuple[Slice, ...]:
    """Return the slices that a pod takes, the largest first; those of init containers are used again by later ones."""
    found = [
        meant
        for resource, amount in request.amounts.items()
        if (meant := slice_of(resource)) is not None
        for _ in range(min(amount, MOST_SLICES_OF_A_POD + 1))
    ]
    return tuple(sorted(found, key=attrgetter("rank")))


def _problem(request: PodRequest, count: int) -> str | None:
    for container in request.containers:
        asked = {resource: amount for resource, amount in container.amounts if slice_of(resource) is not None}
        if (total := sum(asked.values())) > 1:
            name = f"container {container.name} " if container.name else "a container "
            return (
                f"{name}asks for {total} slices of {' and '.join(asked)}, at most 1 is allowed: slices cannot be "
                "combined; request one larger slice"
            )
    if count > MOST_SLICES_OF_A_POD:
        return f"the pod asks for more than {MOST_SLICES_OF_A_POD} slices"
    return None


def _spelling(wrong: str) -> str:
    if misspelt(wrong) == "mig":
        return (
            f"{wrong} is no MIG profile: expected nvidia.com/mig-<G>g.<N>gb with whole numbers, such as "
            "nvidia.com/mig-1g.5gb"
        )
    return (
        f"{wrong} is no size of a slice: expected nvidia.com/gpu-<N>gb with a whole number from 1 to 9999, such as "
        "nvidia.com/gpu-10gb"
    )


def in_order(pods: Iterable[WaitingPod]) -> list[WaitingPod]:
    """Return pods in the order in which they are served: more important ones first, then older ones."""
    return sorted(pods, key=lambda pod: (-pod.priority, pod.created, pod.uid))
