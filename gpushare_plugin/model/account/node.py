"""A node of the cluster: what it offers, which pods it keeps away, and what its daemon says of its GPUs.

What a node offers is in its record or, with Aliyun's own device plugin, in its plain capacity.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from sys import intern
from types import MappingProxyType
from typing import Any

from gpushare_plugin.foundation.structs import Struct, replace
from gpushare_plugin.model.account.node_record import GPUS_ANNOTATION, GpuRecord, NodeRecord, ResourceRecord, closeness
from gpushare_plugin.model.account.scheduling.taint import Taint
from gpushare_plugin.model.choice.chooser import Chooser, CloseGpus, Replicas
from gpushare_plugin.model.choice.policies import POLICIES, is_replica_policy
from gpushare_plugin.model.gpu import gpu_label
from gpushare_plugin.model.slices.slice import Kind
from gpushare_plugin.model.slices.wanted import Wanted

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

_OF_NVIDIA = "nvidia.com/"
"""What the names of resources of GPUs begin with, where a config gives them no other one."""


_LONGEST_RESOURCE = 317
"""Characters of names, as many as an API server takes; whoever reaches the extender's port can send any number."""


def is_of_gpus(resource: str) -> bool:
    """Return whether the name of a resource alone says that it is of GPUs, whoever serves it."""
    return resource in ALWAYS_OURS or resource.startswith(_OF_NVIDIA)


def is_extended(resource: str) -> bool:
    """Return whether a resource is an extended one: of a domain that is not Kubernetes' own."""
    return len(resource) <= _LONGEST_RESOURCE and _is_extended(resource)


@lru_cache(maxsize=1024)
def _is_extended(resource: str) -> bool:
    domain, slash, _ = resource.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


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
    in ascending order. `product` is the model of all GPUs, None where they differ. `single_gpu` is as in the offer.
    """

    kind: str
    units: int
    largest: int
    sizes: tuple[int, ...]
    product: str | None
    single_gpu: bool = False

    def could_have(self, size: int, count: int) -> bool:
        """Return whether its GPUs, if all were free, had `size` units on each of `count`, or in all for 0."""
        if not count:
            return sum(self.sizes) >= size
        return len(self.sizes) >= count and self.sizes[-count] >= size


@lru_cache(maxsize=4096)
def _shape(
    kind: str,
    placement: str | None,  # noqa: ARG001 - what is equal
    gpus: tuple[tuple[int, int, str, bool], ...],
    *,
    single_gpu: bool,
) -> Shape:
    """Return the one object for a kind, a placement, and the index, units, model and use of each GPU."""
    sizes = [units for _, units, _, _ in gpus]
    usable = sorted(units for _, units, _, usable in gpus if usable)
    products = {product for _, _, product, _ in gpus}
    product = next(iter(products)) if len(products) == 1 else None
    return Shape(kind, sum(sizes), max(sizes, default=0), tuple(usable), product, single_gpu)


@dataclass(frozen=True, slots=True)
class Offer:
    """One resource of a node; `kind` is as in `ResourceRecord`, or `cores`: percent of the GPUs that share memory.

    `placement` is the node's own policy, `cards` and `closeness` how close its cards are, as in the record. With
    `single_gpu` no pod can have units of several GPUs.
    """

    resource: str
    kind: str
    gpus: tuple[OfferedGpu, ...]
    unit_mib: int = 0
    placement: str | None = None
    cards: tuple[str, ...] = ()
    closeness: tuple[tuple[int, ...], ...] | None = None
    single_gpu: bool = False
    shape: Shape = field(init=False, repr=False, compare=False)
    names: frozenset[str] = field(init=False, repr=False, compare=False)
    """The names of its GPUs."""

    def __post_init__(self) -> None:
        """Find what it has in common with other offers, and what is asked for each of its pods."""
        gpus = tuple([(gpu.index, gpu.units, gpu.product, gpu.reason is None) for gpu in self.gpus])
        object.__setattr__(self, "shape", _shape(self.kind, self.placement, gpus, single_gpu=self.single_gpu))
        object.__setattr__(self, "names", frozenset([gpu.name for gpu in self.gpus]))

    def chooser(self, *, exact: bool) -> Chooser | None:
        """Return how the node chooses for kinds that several GPUs can serve, None for the other kinds.

        Without `exact`, the choice is not the closest GPUs, but just as many: what is needed to know whether it fits.
        """
        match self.kind, self.placement:
            case "replicas", placement:
                return Replicas(placement) if is_replica_policy(placement) else Replicas()
            case "gpus", _:
                return CloseGpus(closeness(self.cards, self.closeness) if exact else {})
            case _:
                return None


_NONE: Mapping[str, Any] = MappingProxyType({})
"""One object for all nodes that have none."""


class Node(Struct, frozen=True, gc=False):
    """A node of the cluster; what the scheduler extender does not need is there for programs that judge or show nodes.

    Whether the node is ready is in its taints, too, which Kubernetes keeps up to date.
    """

    name: str
    """The name, unique in the cluster at any time."""
    offers: Mapping[str, Offer] = _NONE
    """What the node offers, by resource."""
    policy: str | None = None
    """The placement policy that the label of the node names, or else its config."""
    policy_source: str = ""
    """Which of the two names the policy."""
    recorded: bool = False
    """Whether the daemon of the node published a record that can be read."""
    gpus: frozenset[str] = frozenset()
    """The names of all GPUs, offered or not."""
    allocatable: Mapping[str, int] = _NONE
    """What kube-scheduler counts: CPU in thousandths, memory and storage in bytes, all other resources in units.

    The scheduler extender has the extended resources of nodes with a record alone.
    """
    ignored: tuple[str, ...] = ()
    """What of the node cannot be read."""
    unreadable: str | None = None
    """Why the record cannot be read, so that nobody knows what the node offers; None where it can, or there is none."""
    uid: str = ""
    """Another node of the same name has another UID."""
    version: str = ""
    """The version that was read, with which the Node can be written once."""
    labels: Mapping[str, str] = _NONE
    """The labels that pods select nodes by."""
    taints: tuple[Taint, ...] = ()
    """What keeps pods away that do not tolerate it."""
    unschedulable: bool = False
    """Whether the node is cordoned."""
    ready: bool = True
    """Whether the kubelet is ready; a node whose kubelet has not reported yet counts as ready."""
    address: str = ""
    """The internal IP address, empty where the node has none."""
    record: NodeRecord | None = None
    """The record that the daemon of the node published."""
    wanted: Wanted | None = None
    """The slices that are wanted of a partitioned node, None where no annotation that can be read says that."""
    wanted_unreadable: str | None = None
    """Why the annotation of wanted slices cannot be read."""

    @property
    def partitioning(self) -> Kind | None:
        """How the GPUs are cut into the slices that are wanted, None where the config says how they are shared."""
        return None if self.record is None else self.record.partitioning

    @property
    def extended(self) -> list[str]:
        """The extended resources that the node has."""
        return [name for name, amount in self.allocatable.items() if amount and is_extended(name)]

    def same_as(self, other: "Node") -> bool:
        """Return whether nothing but the version differs: the kubelet writes a Node even where nothing has changed."""
        return self == (other if other.version == self.version else replace(other, version=self.version))

    def lacks(self, resource: str) -> bool:
        """Return whether the node has none of a resource that it does not offer.

        Records of other nodes say nothing of that. Where another device plugin serves the resource, the kubelet has it.
        """
        return resource in ALWAYS_OURS or (self.recorded and not self.allocatable.get(resource))

    def obscures(self, resource: str) -> bool:
        """Return whether nobody knows what the node has of a resource: it is of GPUs, and the record unreadable."""
        return self.unreadable is not None and is_of_gpus(resource)


def recorded_node(
    name: str,
    record: NodeRecord,
    policy: str | None = None,
    allocatable: Mapping[str, int] = _NONE,
) -> Node:
    """Return a node that has a record; GPUs of a resource that the record does not describe are not offered."""
    policy, source, ignored = _policy(policy, record.placement)
    described = {each.name: each for each in record.resources}
    offered = sorted((gpu for gpu in record.gpus if gpu.resource in described), key=lambda gpu: gpu.resource or "")
    cards = tuple(dict.fromkeys(gpu.uuid for gpu in record.gpus if gpu.profile is None))
    offers = {
        intern(resource): _offer(described[resource], tuple(gpus), cards, record)
        for resource, gpus in groupby(offered, key=lambda gpu: gpu.resource or "")
    }
    gpus = frozenset(gpu.uuid for gpu in record.gpus)
    gpus = next((offer.names for offer in offers.values() if offer.names == gpus), gpus)  # mostly, and it is kept once
    return Node(name, offers, policy, source, recorded=True, gpus=gpus, allocatable=allocatable, ignored=ignored)


def unreadable_node(name: str, reason: str) -> Node:
    """Return a node whose record cannot be read; it offers nothing."""
    return Node(name, ignored=(reason,), unreadable=reason)


def _policy(label: str | None, config: str | None = None) -> tuple[str | None, str, tuple[str, ...]]:
    """Return the policy that the label of a node names, or else its config; which of them; and what is wrong there."""
    sources = {f"label {PLACEMENT_LABEL}": label, f"`placement` in annotation {GPUS_ANNOTATION}": config}
    ignored = tuple(
        f"{source}: {policy[:64]!r} found, {' or '.join(POLICIES)} expected"
        for source, policy in sources.items()
        if policy is not None and policy not in POLICIES
    )
    if label in POLICIES:
        return label, f"label {PLACEMENT_LABEL} of the node", ignored
    if config in POLICIES:
        return config, "the config of the node", ignored
    return None, "", ignored


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
        resource.single_gpu is True,
    )


def _gpu(gpu: GpuRecord) -> OfferedGpu:
    return OfferedGpu(intern(gpu.uuid), gpu.index, max(0, gpu.units), intern(gpu.product or ""), _unavailable(gpu))


def _unavailable(gpu: GpuRecord) -> str | None:
    if gpu.healthy:
        return f"waiting: {gpu.reason}" if gpu.reason else None
    return f"unhealthy: {gpu.reason}" if gpu.reason else "unhealthy"


def plain_node(
    name: str, memory: int, count: int, policy: str | None = None, cordoned: Mapping[str, str] | None = None
) -> Node:
    """Return a node of Aliyun's device plugin: `memory` units in all, on `count` GPUs.

    Each is taken to have the same number, as Aliyun's scheduler does: the Node does not say what each really has. They
    have no other name than their index; `cordoned` says why some are not to be allocated.
    """
    policy, source, ignored = _policy(policy)
    reasons = cordoned or {}
    gpus = tuple(
        OfferedGpu(intern(str(index)), index, memory // count, reason=reasons.get(str(index)))
        for index in range(count if 0 < count <= MOST_GPUS and memory >= 0 else 0)
    )
    offers = {GPU_MEMORY: Offer(GPU_MEMORY, "memory", gpus)} if gpus else _NONE
    names = offers[GPU_MEMORY].names if gpus else frozenset()
    return Node(name, offers, policy, source, gpus=names, ignored=ignored)
