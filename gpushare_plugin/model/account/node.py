"""What a node offers, from its record or, with Aliyun's own device plugin, from its plain capacity."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from sys import intern

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.node_record import GpuRecord, NodeRecord, ResourceRecord, closeness
from gpushare_plugin.model.account.search.policies import POLICIES
from gpushare_plugin.model.choice.chooser import Chooser, CloseGpus, Replicas
from gpushare_plugin.model.gpu import gpu_label

GPU_MEMORY = "aliyun.com/gpu-mem"
GPU_CORES = "aliyun.com/gpu-core.percentage"
GPU_COUNT = "aliyun.com/gpu-count"
"""Aliyun's resources: units of memory, percent of a GPU's compute, and the GPUs of a node."""

PLACEMENT_LABEL = "ack.node.gpu.placement"
"""ACK's node label: the placement policy of a node."""

MOST_GPUS = 256
"""GPUs that the plain capacity of a node is believed to have."""

ALWAYS_OURS = frozenset({GPU_MEMORY, GPU_CORES})
"""Resources that nothing else serves: a node that does not offer them cannot take a pod that asks for them."""


class OfferedGpu(Struct, frozen=True, gc=False):
    """One GPU in one resource; `name` is its UUID, or its index where the node has no record.

    `reason` says why none of its units can be allocated, None where they can.
    """

    name: str
    index: int
    units: int
    product: str = ""
    reason: str | None = None

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"GPU {gpu_label(self.index)}"


class Shape(Struct, frozen=True, eq=False):
    """What an offer is but for its node: offers of equal shape have the same object, and it equals no other.

    `units` are those of all GPUs, `largest` those of the GPU that has most, `sizes` those of each GPU that can be used,
    in ascending order. `product` is the model of all GPUs, None where they differ.
    """

    kind: str
    units: int
    largest: int
    sizes: tuple[int, ...]
    product: str | None

    def could_have(self, size: int, count: int) -> bool:
        """Return whether its GPUs, if all were free, had `size` units on each of `count`, or in all for 0."""
        if not count:
            return sum(self.sizes) >= size
        return len(self.sizes) >= count and self.sizes[-count] >= size


@lru_cache(maxsize=4096)
def _shape(kind: str, placement: str | None, gpus: tuple[tuple[int, int, str, bool], ...]) -> Shape:  # noqa: ARG001 - what is equal
    """Return the one object for a kind, a placement, and the index, units, model and use of each GPU."""
    sizes = [units for _, units, _, _ in gpus]
    usable = sorted(units for _, units, _, usable in gpus if usable)
    products = {product for _, _, product, _ in gpus}
    product = next(iter(products)) if len(products) == 1 else None
    return Shape(kind, sum(sizes), max(sizes, default=0), tuple(usable), product)


@dataclass(frozen=True, slots=True)
class Offer:
    """One resource of a node; `kind` is as in `ResourceRecord`, or `cores`: percent of the GPUs that share memory.

    `placement` is the node's own policy, `cards` and `closeness` how close its cards are, as in the record.
    """

    resource: str
    kind: str
    gpus: tuple[OfferedGpu, ...]
    unit_mib: int = 0
    placement: str | None = None
    cards: tuple[str, ...] = ()
    closeness: tuple[tuple[int, ...], ...] | None = None
    shape: Shape = field(init=False, repr=False, compare=False)
    names: frozenset[str] = field(init=False, repr=False, compare=False)
    """The names of its GPUs."""

    def __post_init__(self) -> None:
        """Find what it has in common with other offers, and what is asked for each of its pods."""
        gpus = tuple([(gpu.index, gpu.units, gpu.product, gpu.reason is None) for gpu in self.gpus])
        object.__setattr__(self, "shape", _shape(self.kind, self.placement, gpus))
        object.__setattr__(self, "names", frozenset([gpu.name for gpu in self.gpus]))

    def chooser(self, *, exact: bool) -> Chooser | None:
        """Return how the node chooses for kinds that several GPUs can serve, None for the other kinds.

        Without `exact`, the choice is not the closest GPUs, but just as many: what is needed to know whether it fits.
        """
        if self.kind == "replicas":
            return Replicas("packed" if self.placement == "packed" else "distributed")
        if self.kind == "gpus":
            return CloseGpus(closeness(self.cards, self.closeness) if exact else {})
        return None


@dataclass(frozen=True, slots=True)
class AccountNode:
    """A node; `offers` are by resource, `policy` is the one its label names, `allocatable` what the kubelet counts.

    `recorded` is whether the node's daemon published a record. `gpus` are the names of all GPUs, offered or not.
    `ignored` says what of the node could not be read; `unreadable` is why its record could not, so that nobody knows
    what it offers.
    """

    name: str
    offers: Mapping[str, Offer]
    policy: str | None = None
    recorded: bool = False
    gpus: frozenset[str] = frozenset()
    allocatable: tuple[tuple[str, int], ...] = ()
    ignored: tuple[str, ...] = ()
    unreadable: str | None = None


def recorded_node(
    name: str,
    record: NodeRecord,
    policy: str | None = None,
    allocatable: Mapping[str, int] | None = None,
) -> AccountNode:
    """Return a node that has a record; GPUs of a resource that the record does not describe are not offered."""
    policy, ignored = _known(policy)
    described = {each.name: each for each in record.resources}
    offered = sorted((gpu for gpu in record.gpus if gpu.resource in described), key=lambda gpu: gpu.resource or "")
    cards = tuple(dict.fromkeys(gpu.uuid for gpu in record.gpus if gpu.profile is None))
    offers = {
        intern(resource): _offer(described[resource], tuple(gpus), cards, record)
        for resource, gpus in groupby(offered, key=lambda gpu: gpu.resource or "")
    }
    return AccountNode(
        name,
        offers,
        policy,
        recorded=True,
        gpus=frozenset(gpu.uuid for gpu in record.gpus),
        allocatable=tuple((allocatable or {}).items()),
        ignored=ignored,
    )


def unreadable_node(name: str, reason: str) -> AccountNode:
    """Return a node whose record cannot be read; it offers nothing."""
    return AccountNode(name, {}, ignored=(reason,), unreadable=reason)


def _known(policy: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Return the policy that a node's label names, and what is wrong with the label."""
    if policy is None or policy in POLICIES:
        return policy, ()
    return None, (f"label {PLACEMENT_LABEL}: {policy[:64]!r} found, {' or '.join(POLICIES)} expected",)


def _offer(resource: ResourceRecord, gpus: tuple[GpuRecord, ...], cards: tuple[str, ...], record: NodeRecord) -> Offer:
    whole = resource.kind == "gpus"
    return Offer(
        intern(resource.name),
        intern(resource.kind),
        tuple(_gpu(gpu) for gpu in gpus),
        next((gpu.unit_mib for gpu in gpus), 0),
        intern(resource.placement) if resource.placement else None,
        cards if whole and record.closeness else (),
        record.closeness if whole else None,
    )


def _gpu(gpu: GpuRecord) -> OfferedGpu:
    return OfferedGpu(intern(gpu.uuid), gpu.index, max(0, gpu.units), intern(gpu.product or ""), _unavailable(gpu))


def _unavailable(gpu: GpuRecord) -> str | None:
    if gpu.healthy:
        return f"waiting: {gpu.reason}" if gpu.reason else None
    return f"unhealthy: {gpu.reason}" if gpu.reason else "unhealthy"


def plain_node(
    name: str, memory: int, count: int, policy: str | None = None, cordoned: Mapping[str, str] | None = None
) -> AccountNode:
    """Return a node of Aliyun's device plugin: `memory` units in all, on `count` GPUs.

    Each is taken to have the same number, as Aliyun's scheduler does: the Node does not say what each really has. They
    have no other name than their index; `cordoned` says why some are not to be allocated.
    """
    policy, ignored = _known(policy)
    reasons = cordoned or {}
    gpus = tuple(
        OfferedGpu(intern(str(index)), index, memory // count, reason=reasons.get(str(index)))
        for index in range(count if 0 < count <= MOST_GPUS and memory >= 0 else 0)
    )
    offers = {GPU_MEMORY: Offer(GPU_MEMORY, "memory", gpus)} if gpus else {}
    return AccountNode(name, offers, policy, gpus=frozenset(gpu.name for gpu in gpus), ignored=ignored)
