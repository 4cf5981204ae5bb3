"""A node of the cluster: the offers, the taints, and the GPUs as described by the daemon of the node.

Offers come from the record of the node or, with Aliyun's own device plugin, from the plain capacity.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from sys import intern
from types import MappingProxyType
from typing import Any

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.core.chooser import Chooser, CloseGpus, Replicas
from gpushare_plugin.core.gpu import gpu_label
from gpushare_plugin.core.policies import POLICIES, is_replica_policy
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, GpuRecord, NodeRecord, ResourceRecord, closeness
from gpushare_plugin.ledger.taint import Taint
from gpushare_plugin.slices.slice import SliceKind
from gpushare_plugin.slices.wanted import Wanted

GPU_MEMORY = "aliyun.com/gpu-mem"
GPU_CORES = "aliyun.com/gpu-core.percentage"
GPU_COUNT = "aliyun.com/gpu-count"
"""Aliyun's resources: units of memory, percent of the compute of a GPU, and the number of GPUs of a node."""

PLACEMENT_LABEL = "ack.node.gpu.placement"
"""The node label of ACK for the policy of a node."""

MOST_GPUS = 256
"""The most GPUs accepted from the plain capacity of a node; with a larger number, the node offers nothing."""

ALWAYS_OURS = frozenset({GPU_MEMORY, GPU_CORES})
"""Resources that no other device plugin serves: a pod that requests them does not fit on a node without an offer."""

_OF_NVIDIA = "nvidia.com/"
"""The prefix of the names of GPU resources, unless a config sets other names."""


_LONGEST_RESOURCE = 317
"""The most characters that an API server accepts in a name; a client of the extender can send longer names."""


def is_of_gpus(resource: str) -> bool:
    """Return whether the name alone marks a resource as a GPU resource, whichever device plugin serves the resource."""
    return resource in ALWAYS_OURS or resource.startswith(_OF_NVIDIA)


def is_extended(resource: str) -> bool:
    """Return whether a resource is an extended resource, named with a domain outside of `kubernetes.io`."""
    return len(resource) <= _LONGEST_RESOURCE and _is_extended(resource)


@lru_cache(maxsize=1024)
def _is_extended(resource: str) -> bool:
    domain, slash, _ = resource.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


class OfferedGpu(Struct, frozen=True, gc=False):
    """One GPU in one resource of a node."""

    name: str
    """The UUID of the GPU, or the index if the node has no record."""
    index: int
    """The index of the GPU, -1 for a held GPU that the node no longer offers."""
    units: int
    """The number of units of the GPU in the resource."""
    product: str = ""
    """The model of the GPU, empty if unknown."""
    reason: str | None = None
    """The reason why no unit of the GPU can be allocated, None if units can be allocated."""

    @property
    def is_instance(self) -> bool:
        """Whether the GPU is a MIG instance, by its UUID (NVIDIA, MIG user guide, Device Enumeration)."""
        return self.name.startswith("MIG-")

    @property
    def label(self) -> str:
        """The name of the GPU in messages."""
        return f"GPU {gpu_label(self.index)}"


class Shape(Struct, frozen=True, eq=False):
    """The shape of an offer, without names of GPUs: offers of equal shape share one object, compared by identity."""

    kind: str
    """The kind of the units, as in the offer."""
    units: int
    """The number of units of all GPUs."""
    largest: int
    """The number of units of the GPU with the most units, 0 without GPUs."""
    sizes: tuple[int, ...]
    """The number of units of each usable GPU, in ascending order."""
    single_gpu: bool = False
    """Whether a pod cannot have units of several GPUs, as in the offer."""

    def could_have(self, size: int, count: int) -> bool:
        """Return whether usable GPUs, if free, have `size` units on each of `count` GPUs; in total for `count` 0."""
        if not count:
            return sum(self.sizes) >= size
        return len(self.sizes) >= count and self.sizes[-count] >= size


@lru_cache(maxsize=4096)
def _shape(
    kind: str,
    policy: str | None,  # noqa: ARG001 - a part of the cache key, as indexes and models are
    gpus: tuple[tuple[int, int, str, bool], ...],
    *,
    single_gpu: bool,
) -> Shape:
    """Return the one shape for a kind, a policy, and the index, units, model and usability of each GPU."""
    sizes = [units for _, units, _, _ in gpus]
    usable = sorted(units for _, units, _, usable in gpus if usable)
    return Shape(kind, sum(sizes), max(sizes, default=0), tuple(usable), single_gpu)


@dataclass(frozen=True, slots=True)
class OfferedResource:
    """One resource of a node, with the GPUs that have units of the resource."""

    resource: str
    """The name of the resource."""
    kind: str
    """The kind of the units, as in `ResourceRecord`; empty for a resource that the node no longer offers."""
    gpus: tuple[OfferedGpu, ...]
    """The GPUs with units of the resource."""
    unit_mib: int = 0
    """The memory of one unit in MiB, 0 if a unit is not memory or the size of the unit is unknown."""
    policy: str | None = None
    """The policy of the node for the resource, as in `ResourceRecord`."""
    cards: tuple[str, ...] = ()
    """The UUIDs of the cards of the node, in the order of `closeness`; only for whole GPUs with a closeness."""
    closeness: tuple[tuple[int, ...], ...] | None = None
    """The closeness of the cards, as in `NodeRecord`; only for whole GPUs."""
    single_gpu: bool = False
    """Whether a pod cannot have units of several GPUs."""
    shape: Shape = field(init=False, repr=False, compare=False)
    """The shape, one object for all offers of equal shape."""
    names: frozenset[str] = field(init=False, repr=False, compare=False)
    """The names of the GPUs."""

    def __post_init__(self) -> None:
        """Find the shape, and the names of the GPUs, once: both are needed for every pod."""
        gpus = tuple([(gpu.index, gpu.units, gpu.product, gpu.reason is None) for gpu in self.gpus])
        object.__setattr__(self, "shape", _shape(self.kind, self.policy, gpus, single_gpu=self.single_gpu))
        object.__setattr__(self, "names", frozenset([gpu.name for gpu in self.gpus]))

    def chooser(self, *, exact: bool) -> Chooser | None:
        """Return the chooser of the node for `replicas` or `gpus`, the kinds served by several GPUs; else None.

        Without `exact`, the chooser ignores closeness, but chooses the same number of GPUs: enough to know whether a
        request fits.
        """
        match self.kind, self.policy:
            case "replicas", policy:
                return Replicas(policy) if is_replica_policy(policy) else Replicas()
            case "gpus", _:
                return CloseGpus(closeness(self.cards, self.closeness) if exact else {})
            case _:
                return None


_NONE: Mapping[str, Any] = MappingProxyType({})
"""The empty mapping shared by all nodes without entries."""


class Node(Struct, frozen=True, gc=False):
    """A node of the cluster; programs that judge or show nodes fill more fields than the ledger of the extender.

    The taints show, too, whether the node is ready: Kubernetes keeps the taints up to date.
    """

    name: str
    """The name, unique in the cluster at any time."""
    offers: Mapping[str, OfferedResource] = _NONE
    """The offers of the node, by resource name."""
    policy: str | None = None
    """The policy named by the label of the node or else by the config, None without a known policy."""
    policy_source: str = ""
    """The source of the policy in words: the label or the config; empty without a policy."""
    recorded: bool = False
    """Whether the node has a readable record, published by the daemon of the node."""
    gpus: frozenset[str] = frozenset()
    """The names of all GPUs, offered or not."""
    allocatable: Mapping[str, int] = _NONE
    """The amounts counted by kube-scheduler: CPU in thousandths, memory and storage in bytes, the rest in units.

    In the ledger of the scheduler extender, nodes have CPU and memory, and nodes with a record extended resources.
    """
    ignored: tuple[str, ...] = ()
    """Messages about unreadable values of the node, which are ignored."""
    unreadable: str | None = None
    """The reason why the record is unreadable, and the offers unknown; None for a readable record, or no record."""
    uid: str = ""
    """The UID; a later node of the same name has another UID."""
    version: str = ""
    """The resource version as read; a write that names the version succeeds only while the Node is unchanged."""
    labels: Mapping[str, str] = _NONE
    """The labels for the node selectors of pods."""
    taints: tuple[Taint, ...] = ()
    """The taints, which keep away pods without a toleration."""
    unschedulable: bool = False
    """Whether the node is cordoned."""
    ready: bool = True
    """Whether the kubelet is ready; before the first report of the kubelet, the node counts as ready."""
    address: str = ""
    """The internal IP address, empty if the node has no internal IP address."""
    record: NodeRecord | None = None
    """The record published by the daemon of the node, None without a readable record."""
    wanted: Wanted | None = None
    """The wanted slices of a partitioned node, None without a readable annotation."""
    wanted_unreadable: str | None = None
    """The reason why the annotation of wanted slices is unreadable, None if the annotation is readable or missing."""

    @property
    def partitioning(self) -> SliceKind | None:
        """The kind of wanted slices that the GPUs are cut into, None if the config says how GPUs are shared."""
        return None if self.record is None else self.record.partitioning

    @property
    def extended(self) -> list[str]:
        """The names of the allocatable extended resources of the node."""
        return [name for name, amount in self.allocatable.items() if amount and is_extended(name)]

    def same_as(self, other: "Node") -> bool:
        """Return whether `other` is equal but for the version: the kubelet writes a Node even without a change."""
        return self == (other if other.version == self.version else replace(other, version=self.version))

    def offer(self, resource: str) -> OfferedResource | None:
        """Return the offer of a resource, None for no offer; an offer without a kind counts as no offer."""
        found = self.offers.get(resource)
        return found if found is not None and found.kind else None

    def has_none_of(self, resource: str) -> bool:
        """Return whether the node certainly has no units of a resource that the node does not offer.

        Records of other nodes do not decide: another device plugin may serve the resource on the node. The kubelet
        then reports the resource as allocatable.
        """
        return resource in ALWAYS_OURS or (self.recorded and not self.allocatable.get(resource))

    def obscures(self, resource: str) -> bool:
        """Return whether the units of a resource are unknown: a GPU resource of a node with an unreadable record."""
        return self.unreadable is not None and is_of_gpus(resource)


def recorded_node(
    name: str,
    record: NodeRecord,
    policy: str | None = None,
    allocatable: Mapping[str, int] = _NONE,
) -> Node:
    """Return a node with a record; GPUs are not offered in resources without a description in the record."""
    policy, source, ignored = _policy(policy, record.policy)
    described = {each.name: each for each in record.resources}
    offered = sorted((gpu for gpu in record.gpus if gpu.resource in described), key=lambda gpu: gpu.resource or "")
    cards = tuple(dict.fromkeys(gpu.uuid for gpu in record.gpus if gpu.profile is None))
    offers = {
        intern(resource): _offer(described[resource], tuple(gpus), cards, record)
        for resource, gpus in groupby(offered, key=lambda gpu: gpu.resource or "")
    }
    gpus = frozenset(gpu.uuid for gpu in record.gpus)
    gpus = next((offer.names for offer in offers.values() if offer.names == gpus), gpus)  # often equal: keep one object
    return Node(name, offers, policy, source, recorded=True, gpus=gpus, allocatable=allocatable, ignored=ignored)


def unreadable_node(name: str, reason: str) -> Node:
    """Return a node with an unreadable record; the node offers nothing."""
    return Node(name, ignored=(reason,), unreadable=reason)


def _policy(label: str | None, config: str | None = None) -> tuple[str | None, str, tuple[str, ...]]:
    """Return the policy named by the label of a node or else by the config, the source, and messages about mistakes."""
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


def _offer(
    resource: ResourceRecord, gpus: tuple[GpuRecord, ...], cards: tuple[str, ...], record: NodeRecord
) -> OfferedResource:
    whole = resource.kind == "gpus"
    return OfferedResource(
        intern(resource.name),
        intern(resource.kind),
        tuple(_gpu(gpu) for gpu in gpus),
        next((gpu.unit_mib for gpu in gpus), 0),
        intern(resource.policy) if resource.policy else None,
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
    """Return a node of Aliyun's device plugin with `memory` units in total, on `count` GPUs.

    All GPUs count as equally large, as in Aliyun's scheduler: the Node does not report the units of each GPU. The name
    of a GPU is the index. `cordoned` has the reasons why GPUs must not be allocated, by index.
    """
    policy, source, ignored = _policy(policy)
    reasons = cordoned or {}
    gpus = tuple(
        OfferedGpu(intern(str(index)), index, memory // count, reason=reasons.get(str(index)))
        for index in range(count if 0 < count <= MOST_GPUS and memory >= 0 else 0)
    )
    offers = {GPU_MEMORY: OfferedResource(GPU_MEMORY, "memory", gpus)} if gpus else _NONE
    names = offers[GPU_MEMORY].names if gpus else frozenset()
    return Node(name, offers, policy, source, gpus=names, ignored=ignored)
