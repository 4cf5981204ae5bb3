"""The request of a pod, as a value: pods with equal requests share an object and the verdict of each node."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Literal, NamedTuple, TypeVar

from gpushare_plugin.base.structs import Struct, kept_while_used
from gpushare_plugin.base.text import some_of
from gpushare_plugin.ledger.node import ALWAYS_OURS
from gpushare_plugin.slices.slice import Slice, misspelt, slice_of

K = TypeVar("K", bound=Hashable)

ContainerKind = Literal["init", "sidecar", "app"]
"""The kind of a container; a sidecar is an init container with `restartPolicy: Always`."""

MOST_WISHES = 64
"""The most names in each list of accepted or rejected GPUs: each name is compared with each GPU of the cluster."""

MOST_CONTAINERS = 256
"""The most containers kept of a pod.

A user with the right to create pods may write far more into a pod. Everything kept is compared and added up.
"""
MOST_RESOURCES = 64
"""The most different resources kept of a pod."""
MOST_AMOUNTS = 512
"""The most amounts of resources kept of a pod, in all containers together."""

MOST_READ = 4 * MOST_AMOUNTS
"""The most amounts of a pod to read completely, with CPU and similar resources: each container has a few amounts.

A pod with more amounts is beyond the bounds, and only the kept amounts of the pod are read.
"""

MOST_SLICES_OF_A_POD = 64
"""The most slices of a pod, one for each container."""

_SHOWN_WISHES = 3


class Wishes(Struct, frozen=True):
    """The GPUs accepted by a pod."""

    models: tuple[str, ...] = ()
    """Parts of accepted model names, in lower case; empty for any model."""
    not_models: tuple[str, ...] = ()
    """Parts of rejected model names, in lower case."""
    uuids: tuple[str, ...] = ()
    """The UUIDs of accepted GPUs; empty for any GPU."""
    not_uuids: tuple[str, ...] = ()
    """The UUIDs of rejected GPUs."""

    @property
    def named(self) -> frozenset[str]:
        """The UUIDs of accepted and rejected GPUs."""
        return frozenset((*self.uuids, *self.not_uuids))

    def refusal(self, uuid: str, product: str) -> str | None:
        """Return why the pod rejects a GPU; None for an accepted GPU."""
        return self.model_refusal(product) or self.uuid_refusal(uuid)

    def refusal_of_all(self, gpus: Iterable[tuple[str, str]]) -> str | None:
        """Return why the pod rejects each of several GPUs, by UUID and model; None if it accepts one, or for no GPU."""
        refusals: dict[str, None] = {}
        for uuid, product in gpus:
            if (refusal := self.refusal(uuid, product)) is None:
                return None
            refusals[refusal] = None
        return some_of(list(refusals), _SHOWN_WISHES, between="; ") if refusals else None

    def model_refusal(self, product: str) -> str | None:
        """Return why the pod rejects all GPUs of a model; None for an accepted model."""
        model = product.lower()
        if self.models and not any(part in model for part in self.models):
            return f"{product or 'unknown model'}, the pod wants {_some(self.models)}"
        if any(part in model for part in self.not_models):
            return f"{product}, the pod does not want {_some(self.not_models)}"
        return None

    def uuid_refusal(self, uuid: str) -> str | None:
        """Return why the pod rejects a GPU by UUID; None for an accepted UUID."""
        if self.uuids and uuid not in self.uuids:
            return "not among the GPUs that the pod wants"
        return "the pod does not want this GPU" if uuid in self.not_uuids else None


def _some(names: Sequence[str]) -> str:
    return some_of(names, _SHOWN_WISHES, between=" or ")


ANY_GPU = Wishes()
"""The wishes of a pod that accepts every GPU."""


class ContainerRequest(Struct, frozen=True, weakref=True):
    """The request of a container for extended resources."""

    name: str
    """The name of the container."""
    kind: ContainerKind
    """The kind of the container."""
    amounts: tuple[tuple[str, int], ...] = ()
    """The requested units by resource, sorted, without amounts of 0."""

    def amount(self, resource: str) -> int:
        """Return the requested units of a resource."""
        # A plain loop for speed: called for each container of tens of thousands of pods.
        for name, amount in self.amounts:
            if name == resource:
                return amount
        return 0


@dataclass(frozen=True, slots=True, weakref_slot=True)
class PodRequest:
    """The request of a pod for extended resources: everything about the pod that decides on GPUs."""

    containers: tuple[ContainerRequest, ...]
    """The requests of the containers, in the order in which the kubelet starts the containers."""
    gpu_count: int = 1
    """The number of GPUs to split memory over."""
    wishes: Wishes = ANY_GPU
    """The GPUs accepted by the pod."""
    policy: str | None = None
    """The policy named by the pod; None for no policy."""
    problem: str | None = None
    """Why no node can take the pod; None for no such reason."""
    ignored: tuple[str, ...] = ()
    """Sentences on wishes of the pod that cannot be understood."""
    amounts: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """The units of each resource taken by the pod, by Kubernetes' rule: see `effective`."""
    of_containers: Mapping[str, Mapping[str, int]] = field(init=False, repr=False, compare=False)
    """The requested units by resource and container."""
    slices: tuple[Slice, ...] = field(init=False, repr=False, compare=False)
    """The slices taken by the pod, the largest first; at most one more than MOST_SLICES_OF_A_POD."""
    misspelt: str | None = field(init=False, repr=False, compare=False)
    """A requested resource with the misspelt name of a slice; None if the pod takes slices, or no name is misspelt."""
    found_essence: "PodRequest | None" = field(init=False, repr=False, compare=False, default=None)
    """The result of `essence`, kept no longer than the requests with the same essence."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute and keep the often used values."""
        amounts = effective_amounts((each.kind, each.amounts) for each in self.containers)
        object.__setattr__(self, "amounts", dict(sorted(amounts.items())))
        of_containers: dict[str, dict[str, int]] = {name: {} for name in self.amounts}
        for each in self.containers:
            for name, amount in each.amounts:
                of_containers[name][each.name] = amount
        object.__setattr__(self, "of_containers", of_containers)
        slices = _slices(self.amounts)
        object.__setattr__(self, "slices", slices)
        object.__setattr__(self, "misspelt", None if slices else next(filter(misspelt, self.amounts), None))
        asked = (self.containers, self.gpu_count, self.wishes, self.policy, self.problem, self.ignored)
        object.__setattr__(self, "_hash", hash(asked))

    @property
    def unreadable(self) -> bool:
        """Whether the full request is unknown, because of a senseless quantity or more resources than are kept."""
        return self.problem is not None and (not self.containers or len(self.amounts) >= MOST_RESOURCES)

    def __hash__(self) -> int:
        """Return the hash computed at the start."""
        return self._hash


def _slices(amounts: Mapping[str, int]) -> tuple[Slice, ...]:
    """Return the slices among effective amounts, the largest first, at most MOST_SLICES_OF_A_POD + 1."""
    sizes = [(meant, amount) for resource, amount in amounts.items() if (meant := slice_of(resource)) is not None]
    sizes.sort(key=lambda size: size[0].rank)
    return tuple(islice((meant for meant, amount in sizes for _ in range(amount)), MOST_SLICES_OF_A_POD + 1))


@kept_while_used
def shared_request(  # noqa: PLR0913, PLR0917 - all parts of a request
    containers: tuple[ContainerRequest, ...],
    gpu_count: int,
    wishes: Wishes,
    policy: str | None,
    problem: str | None,
    ignored: tuple[str, ...],
) -> PodRequest:
    """Return the shared object for equal requests; most pods have replicas with an equal request."""
    return PodRequest(containers, gpu_count, wishes, policy, problem, ignored)


def effective(amounts: Iterable[tuple[ContainerKind, int]]) -> int:
    """Return the units of a resource that a pod takes, given the units of its containers in the order of their start.

    Kubernetes' rule: containers and sidecars add up. An init container only needs its own units beside the sidecars
    already running, and later containers reuse the units of the init container.
    """
    return effective_amounts((kind, ((None, amount),)) for kind, amount in amounts).get(None, 0)


def effective_amounts(containers: Iterable[tuple[ContainerKind, Iterable[tuple[K, int]]]]) -> dict[K, int]:
    """Return the units of each resource that a pod takes, given the amounts of its containers: see `effective`."""
    running, most = dict[K, int](), dict[K, int]()
    for kind, amounts in containers:
        for name, amount in amounts:
            total = running.get(name, 0) + amount
            if kind != "init":
                running[name] = total
            if total > most.get(name, 0):
                most[name] = total
            else:
                most.setdefault(name, 0)
    return most


class Bounded(NamedTuple):
    """The requests of containers within the bounds."""

    containers: tuple[ContainerRequest, ...]
    """The kept requests."""
    problem: str | None
    """Which counts of the pod are beyond the bounds; None if everything is kept."""


def bounded(containers: tuple[ContainerRequest, ...], held: Callable[[], Collection[str]]) -> Bounded:
    """Return containers within the bounds of a pod.

    A pod beyond the bounds fits nowhere, but holds units if bound without a scheduler. `kept_resources` chooses the
    kept resources; too many containers are merged into a single container. `held` returns the resources held by the pod
    according to the node's daemon.
    """
    amounts = sum([len(each.amounts) for each in containers])
    if len(containers) <= MOST_CONTAINERS and amounts <= MOST_RESOURCES:
        return Bounded(containers, None)
    names = {name for each in containers for name, _ in each.amounts}
    if (problem := too_large(len(containers), len(names), amounts)) is None:
        return Bounded(containers, None)
    kept = kept_resources(names, held())
    asking = [
        ContainerRequest(each.name, each.kind, mine)
        for each in containers
        if (mine := tuple([amount for amount in each.amounts if amount[0] in kept]))
    ]
    if len(asking) > MOST_CONTAINERS or sum([len(each.amounts) for each in asking]) > MOST_AMOUNTS:
        together = effective_amounts((each.kind, each.amounts) for each in asking)
        asking = [ContainerRequest(asking[0].name, "app", tuple(sorted(together.items())))]
    return Bounded(tuple(asking), problem)


def too_large(containers: int, resources: int, amounts: int) -> str | None:
    """Return in words which counts of a pod are too large to keep; None if everything can be kept."""
    found = {"containers": containers, "resources": resources, "amounts of resources": amounts}
    most = {"containers": MOST_CONTAINERS, "resources": MOST_RESOURCES, "amounts of resources": MOST_AMOUNTS}
    return beyond(found, most)


def beyond(found: Mapping[str, int], most: Mapping[str, int]) -> str | None:
    """Return in words which counts of a pod are beyond their bounds; None for no count."""
    too_many = [f"{count:,} {what} (at most {most[what]:,})" for what, count in found.items() if count > most[what]]
    return f"the pod has {', '.join(too_many)}, more than gpushare reads of a pod: write fewer" if too_many else None


def kept_resources(names: Collection[str], held: Collection[str] = ()) -> frozenset[str]:
    """Return the kept resources among too many resources of a pod.

    First come the resources that only gpushare serves, then the resources held by the pod according to the node's
    daemon (`held`).
    """
    return frozenset(first_of(names, (ALWAYS_OURS, held), MOST_RESOURCES))


def first_of(names: Collection[str], preferred: Iterable[Collection[str]], most: int) -> list[str]:
    """Return `most` of the names without sorting all names: preferred names set by set, then the rest, each sorted."""
    rest, found = set(names), list[str]()
    for each in (*preferred, rest):
        found += nsmallest(most - len(found), rest.intersection(each))
        rest.difference_update(found)
    return found


def essence(request: PodRequest) -> PodRequest:
    """Return the parts of a request that decide on verdicts: requests with the same essence have the same verdicts.

    Containers without amounts make no difference. Names of containers matter if a verdict may name a container:
    for compute without memory, and for units that cannot be split over several GPUs.
    """
    if (known := request.found_essence) is None:
        asking = [container for container in request.containers if container.amounts]
        named = request.gpu_count > 1 or len(request.amounts) > 1
        containers = tuple(each if named else ContainerRequest("", each.kind, each.amounts) for each in asking)
        known = shared_request(containers, request.gpu_count, request.wishes, request.policy, request.problem, ())
        object.__setattr__(request, "found_essence", known)
    return known
