"""What a pod asks for, as a value: pods that ask for the same share one object, and so one verdict for each node."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Literal, NamedTuple, TypeVar

from gpushare_plugin.foundation.structs import Struct, kept_while_used
from gpushare_plugin.foundation.text import some_of
from gpushare_plugin.model.account.node import ALWAYS_OURS
from gpushare_plugin.model.slices.slice import Slice, misspelt, slice_of

K = TypeVar("K", bound=Hashable)

ContainerKind = Literal["init", "sidecar", "app"]
"""What kind of container it is; a sidecar is an init container with `restartPolicy: Always`."""

MOST_WISHES = 64
"""Names in each list of GPUs that a pod wants, or does not: each is compared with each GPU of the cluster."""

MOST_CONTAINERS = 256
MOST_RESOURCES = 64
MOST_AMOUNTS = 512
"""What is kept of a pod: containers, different resources, and amounts of resources in all containers together.

Whoever may create pods may write far more into one, and all of it would be kept, compared and added up for each pod.
"""

MOST_READ = 4 * MOST_AMOUNTS
"""Amounts of a pod that are all read, CPU and the like included, of which each container has a few.

A pod with more is beyond the bounds, and only the amounts that are kept of it are read.
"""

MOST_SLICES_OF_A_POD = 64
"""Slices that a pod may ask for, one a container."""

_SHOWN_WISHES = 3


class Wishes(Struct, frozen=True):
    """Which GPUs a pod accepts: parts of model names, in lower case, and UUIDs; an empty tuple accepts any."""

    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()

    def refusal(self, uuid: str, product: str) -> str | None:
        """Return why the pod does not accept a GPU, None where it does."""
        return self.model_refusal(product) or self.uuid_refusal(uuid)

    def model_refusal(self, product: str) -> str | None:
        """Return why the pod accepts no GPU of a model, None where it may."""
        model = product.lower()
        if self.models and not any(part in model for part in self.models):
            return f"{product or 'unknown model'}, the pod wants {_some(self.models)}"
        if any(part in model for part in self.not_models):
            return f"{product}, the pod does not want {_some(self.not_models)}"
        return None

    def uuid_refusal(self, uuid: str) -> str | None:
        """Return why the pod does not accept this GPU, whatever its model, None where it does."""
        if self.uuids and uuid not in self.uuids:
            return "not among the GPUs that the pod wants"
        return "the pod does not want this GPU" if uuid in self.not_uuids else None


def _some(names: Sequence[str]) -> str:
    return some_of(names, _SHOWN_WISHES, between=" or ")


ANY_GPU = Wishes()


class ContainerRequest(Struct, frozen=True, weakref=True):
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


@dataclass(frozen=True, slots=True, weakref_slot=True)
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
    slices: tuple[Slice, ...] = field(init=False, repr=False, compare=False)
    """The slices that the pod takes, the largest first; of too many, one more than a pod may ask for."""
    misspelt: str | None = field(init=False, repr=False, compare=False)
    """A resource that is asked for by somebody who means a slice, None where the pod takes slices, or means none."""
    found_essence: "PodRequest | None" = field(init=False, repr=False, compare=False, default=None)
    """What `essence` returned, which lives no longer than those whose essence it is."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Keep what is asked for again and again."""
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
        """Whether nobody knows all that the pod asks for: a quantity makes no sense, or there is more than is kept."""
        return self.problem is not None and (not self.containers or len(self.amounts) >= MOST_RESOURCES)

    def __hash__(self) -> int:
        """Return the hash that was found once."""
        return self._hash


def _slices(amounts: Mapping[str, int]) -> tuple[Slice, ...]:
    """Return slices, the largest first; those of init containers are used again by later ones."""
    sizes = [(meant, amount) for resource, amount in amounts.items() if (meant := slice_of(resource)) is not None]
    sizes.sort(key=lambda size: size[0].rank)
    return tuple(islice((meant for meant, amount in sizes for _ in range(amount)), MOST_SLICES_OF_A_POD + 1))


@kept_while_used
def shared_request(  # noqa: PLR0913, PLR0917 - everything that a request is made of
    containers: tuple[ContainerRequest, ...],
    gpu_count: int,
    wishes: Wishes,
    policy: str | None,
    problem: str | None,
    ignored: tuple[str, ...],
) -> PodRequest:
    """Return the one object for requests that are equal; most pods have replicas."""
    return PodRequest(containers, gpu_count, wishes, policy, problem, ignored)


def effective(amounts: Iterable[tuple[ContainerKind, int]]) -> int:
    """Return the units that a pod takes of a resource, given those of its containers in the order of their start.

    Kubernetes' rule: containers and sidecars add up, while an init container only needs its own beside the sidecars
    that run already; later containers reuse what it had.
    """
    return effective_amounts((kind, ((None, amount),)) for kind, amount in amounts).get(None, 0)


def effective_amounts(containers: Iterable[tuple[ContainerKind, Iterable[tuple[K, int]]]]) -> dict[K, int]:
    """Return the same for each resource that containers have an amount of: see `effective`."""
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
    """The containers of a pod as far as they are kept, and what is too much of it, None where all of it is kept."""

    containers: tuple[ContainerRequest, ...]
    problem: str | None


def bounded(containers: tuple[ContainerRequest, ...], held: Callable[[], Collection[str]]) -> Bounded:
    """Return containers within the bounds on what is kept of a pod.

    A pod beyond them fits nowhere, but one that was bound without a scheduler holds units all the same. Of its
    resources, those that `kept_resources` returns are kept; its containers count as one if they are too many. `held`
    returns the resources that the node's daemon says the pod has.
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
    """Return in words what a pod has too much of to be kept, None where all of it can be."""
    found = {"containers": containers, "resources": resources, "amounts of resources": amounts}
    most = {"containers": MOST_CONTAINERS, "resources": MOST_RESOURCES, "amounts of resources": MOST_AMOUNTS}
    return beyond(found, most)


def beyond(found: Mapping[str, int], most: Mapping[str, int]) -> str | None:
    """Return in words which counts of a pod are beyond their bounds, None where none is."""
    too_many = [f"{count:,} {what} (at most {most[what]:,})" for what, count in found.items() if count > most[what]]
    return f"the pod has {', '.join(too_many)}, more than gpushare reads of a pod: write fewer" if too_many else None


def kept_resources(names: Collection[str], held: Collection[str] = ()) -> frozenset[str]:
    """Return which of too many resources of a pod are kept.

    Those come first that nothing else serves, then those that the node's daemon says the pod has (`held`).
    """
    return frozenset(first_of(names, (ALWAYS_OURS, held), MOST_RESOURCES))


def first_of(names: Collection[str], preferred: Iterable[Collection[str]], most: int) -> list[str]:
    """Return `most` of so many names that sorting them takes long: the preferred ones, set after set, then others."""
    rest, found = set(names), list[str]()
    for each in (*preferred, rest):
        found += nsmallest(most - len(found), rest.intersection(each))
        rest.difference_update(found)
    return found


def essence(request: PodRequest) -> PodRequest:
    """Return what of a request decides where it fits: requests with the same essence have the same verdicts.

    Containers that ask for nothing make no difference. The names of the others do where a verdict names a container:
    compute without memory, and units that cannot be split over several GPUs.
    """
    if (known := request.found_essence) is None:
        asking = [container for container in request.containers if container.amounts]
        named = request.gpu_count > 1 or len(request.amounts) > 1
        containers = tuple(each if named else ContainerRequest("", each.kind, each.amounts) for each in asking)
        known = shared_request(containers, request.gpu_count, request.wishes, request.policy, request.problem, ())
        object.__setattr__(request, "found_essence", known)
    return known
