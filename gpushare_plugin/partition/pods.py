"""The pods that wait for slices: requests that no node can ever meet, and the order of service."""

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.request import MOST_SLICES_OF_A_POD, PodRequest
from gpushare_plugin.slices.slice import misspelt, slice_of


def problem(pod: Pod) -> str | None:
    """Return why no node can ever give slices to a pod, None if a node could."""
    return pod.request.problem or pod.needs.problem or _wrong(pod.request)


_WRONG: WeakKeyDictionary[PodRequest, str | None] = WeakKeyDictionary()
"""The mistakes in the slices of requests, found once for all rounds; None for a request without a mistake."""


def _wrong(request: PodRequest) -> str | None:
    if request not in _WRONG:
        _WRONG[request] = _combined(request) if request.misspelt is None else _spelling(request.misspelt)
    return _WRONG[request]


def _combined(request: PodRequest) -> str | None:
    for container in request.containers:
        asked = {resource: amount for resource, amount in container.amounts if slice_of(resource) is not None}
        if (total := sum(asked.values())) > 1:
            name = f"container {container.name} " if container.name else "a container "
            return (
                f"{name}asks for {total} slices of {' and '.join(asked)}, at most 1 is allowed: slices cannot be "
                "combined; request one larger slice"
            )
    if len(request.slices) > MOST_SLICES_OF_A_POD:
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


def in_order(pods: Iterable[Pod]) -> list[Pod]:
    """Return pods in the order of service: the highest priority first, then the oldest pod."""
    return sorted(pods, key=lambda pod: (-pod.priority, pod.created, pod.uid))
