"""What a pod asks for, as a value: pods that ask for the same share one object, and so one verdict for each node."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from gpushare_plugin.foundation.structs import Struct

ContainerKind = Literal["init", "sidecar", "app"]
"""What kind of container it is; a sidecar is an init container with `restartPolicy: Always`."""

MOST_WISHES = 64
"""Names in each list of GPUs that a pod wants, or does not: each is compared with each GPU of the cluster."""


class Wishes(Struct, frozen=True):
    """Which GPUs a pod accepts: parts of model names, in lower case, and UUIDs; an empty tuple accepts any."""

    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()

    def refusal(self, uuid: str, product: str) -> str | None:
        """Return why the pod does not accept a GPU, None where it does."""
        model = product.lower()
        if self.models and not any(part in model for part in self.models):
            return f"{product or 'unknown model'}, the pod wants {' or '.join(self.models)}"
        if any(part in model for part in self.not_models):
            return f"{product}, the pod does not want {' or '.join(self.not_models)}"
        if self.uuids and uuid not in self.uuids:
            return "not among the GPUs that the pod wants"
        return "the pod does not want this GPU" if uuid in self.not_uuids else None


ANY_GPU = Wishes()


class ContainerRequest(Struct, frozen=True, gc=False):
    """The units of extended resources that one container asks for, sorted by resource; those of 0 are left out."""

    name: str
    kind: ContainerKind
    amounts: tuple[tuple[str, int], ...] = ()

    def amount(self, resource: str) -> int:
        """Return the units it asks for of one resource."""
        # A plain loop: it is asked about each container of tens of thousands of pods.
        for name, amount in self.amounts:
            if name == resource:
                return amount
        return 0


@dataclass(frozen=True, slots=True)
class PodRequest:
    """Everything of a pod that decides where it can go; `containers` are in the order in which the kubelet starts them.

    `gpu_count` is the number of GPUs that memory is split over, `policy` the placement policy the pod itself names.
    `problem` says why no node can take the pod, `ignored` what of its wishes is not understood.
    """

    containers: tuple[ContainerRequest, ...]
    gpu_count: int = 1
    wishes: Wishes = ANY_GPU
    policy: str | None = None
    problem: str | None = None
    ignored: tuple[str, ...] = ()
    amounts: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """The units of each resource that the pod takes, as Kubernetes counts them: see `effective`."""
    of_containers: Mapping[str, Mapping[str, int]] = field(init=False, repr=False, compare=False)
    """The units of each resource that each container asks for, by resource and container."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Keep what is asked for again and again."""
        resources = sorted({name for container in self.containers for name, _ in container.amounts})
        amounts = {name: effective((each.kind, each.amount(name)) for each in self.containers) for name in resources}
        object.__setattr__(self, "amounts", amounts)
        of_containers = {name: {each.name: each.amount(name) for each in self.containers} for name in resources}
        object.__setattr__(self, "of_containers", of_containers)
        asked = (self.containers, self.gpu_count, self.wishes, self.policy, self.problem, self.ignored)
        object.__setattr__(self, "_hash", hash(asked))

    @property
    def unreadable(self) -> bool:
        """Whether nobody knows what the pod asks for: a quantity makes no sense, so there is no container."""
        return self.problem is not None and not self.containers

    def __hash__(self) -> int:
        """Return the hash that was found once."""
        return self._hash


@lru_cache(maxsize=4096)
def interned(request: PodRequest) -> PodRequest:
    """Return the one object for requests that are equal."""
    return request


def effective(amounts: Iterable[tuple[ContainerKind, int]]) -> int:
    """Return the units that a pod takes of a resource, given those of its containers in the order of their start.

    Kubernetes' rule: containers and sidecars add up, while an init container only needs its own beside the sidecars
    that run already; later containers reuse what it had.
    """
    running = most = 0
    for kind, amount in amounts:
        if kind == "init":
            most = max(most, running + amount)
        else:
            running += amount
    return max(most, running)


@lru_cache(maxsize=4096)
def essence(request: PodRequest) -> PodRequest:
    """Return what of a request decides where it fits: requests with the same essence have the same verdicts.

    Containers that ask for nothing make no difference. The names of the others do where a verdict names a container:
    compute without memory, and units that cannot be split over several GPUs.
    """
    asking = [container for container in request.containers if container.amounts]
    named = request.gpu_count > 1 or len(request.amounts) > 1
    containers = tuple(each if named else ContainerRequest("", each.kind, each.amounts) for each in asking)
    return interned(PodRequest(containers, request.gpu_count, request.wishes, request.policy, request.problem))
