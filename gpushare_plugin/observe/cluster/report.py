"""The GPUs of a cluster and the pods on the GPUs, as data: a view of the account, printed as tables or JSON."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain, repeat
from typing import Literal

from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.version import __version__
from gpushare_plugin.ledger.annotations import LIMITS, AnnotationError
from gpushare_plugin.ledger.node import GPU_MEMORY, OfferedResource
from gpushare_plugin.ledger.node_record import GpuRecord
from gpushare_plugin.ledger.occupancy import NodeAccount, Placed, ResourceAccount
from gpushare_plugin.ledger.pod import Drift, Pod
from gpushare_plugin.observe.cluster.claims import ClaimUse
from gpushare_plugin.observe.cluster.limits import ContainerLimit, container_limits
from gpushare_plugin.observe.parts import Part
from gpushare_plugin.partition.conversion import partition_node_of
from gpushare_plugin.partition.nodes import PartitionNode
from gpushare_plugin.partition.pods import in_order
from gpushare_plugin.partition.taking_back import since
from gpushare_plugin.slices.slice import SliceKind, named_slice

UseState = Literal["allocated", "promised", "unplaced"]

_LARGE_GPU = 100
"""The most units of a GPU to take for GiB, if a Node does not name its unit; more are MiB, like in Aliyun's tool."""

_LONGEST_NAME = 253
"""The most characters shown of a name in a record; files and ConfigMaps have no longer names."""

_GIB = 1024
"""MiB."""

_NAMES = {"replicas": "replicas", "slices": "slices", "gpus": "GPUs", "cores": "%"}
"""The name of the unit of each kind of resource without memory."""


class PodUse(Part, frozen=True, kw_only=True):
    """The units of a GPU in a resource that a pod holds or is promised."""

    namespace: str
    """The namespace of the pod."""
    pod: str
    """The name of the pod."""
    units: int
    """The units on the GPU; for unplaced units, the units of the pod on all unknown GPUs."""
    state: UseState
    """The source of the GPU.

    `allocated`: the node's daemon names the GPU; `promised`: a scheduler names the GPU, and the node has not confirmed
    the promise; `unplaced`: the GPU is unknown.
    """
    drift: bool = False
    """Whether the pod holds more units of the GPU than promised, and all pods together do, too."""
    limits: tuple[ContainerLimit, ...] = ()
    """Whether the limits of the pod's containers on the GPU are in effect; empty without a readable annotation."""


class GpuUse(Part, frozen=True, kw_only=True):
    """A GPU in a resource; amounts are in units of the resource."""

    index: int
    """The index of the GPU, or of the card of a MIG instance."""
    uuid: str
    """The UUID of the GPU."""
    product: str = ""
    """The product name, with the profile of a MIG instance; empty if not known."""
    mode: str | None = None
    """The sharing mode in the record of the node; None without a record."""
    units: int
    """The units of the GPU."""
    allocated: int
    """The units that pods hold or are promised."""
    promised: int = 0
    """The units among `allocated` that are promised only."""
    unplaced: int = 0
    """The units held on unknown GPUs of the node, perhaps on this GPU."""
    free: int
    """The free units."""
    over: int = 0
    """The units held or promised beyond the units of the GPU."""
    drifted: int = 0
    """The units held beyond all promises on the GPU."""
    reason: str | None = None
    """Why no unit can be allocated; None for a usable GPU."""
    pods: tuple[PodUse, ...] = ()
    """The pods with units on the GPU."""
    claims: tuple[ClaimUse, ...] = ()
    """What claims have of a GPU that is given by claim."""


class ResourceUse(Part, frozen=True, kw_only=True):
    """A resource of a node, or the GPUs of a node that are given by claim."""

    resource: str
    """The name of the resource; of GPUs that are given by claim, the name of the DRA driver."""
    kind: str
    """The kind in the record of the node; empty for a held resource that is not offered any more, `claims` by claim."""
    unit: str
    """The unit: GiB, MiB, 512 MiB or the like, replicas, slices, GPUs, % or shares (of claims)."""
    gpus: tuple[GpuUse, ...]
    """The GPUs in the resource."""
    unplaced: tuple[PodUse, ...] = ()
    """The units on unknown GPUs, by pod."""

    @property
    def units(self) -> int:
        """The units of all GPUs."""
        return sum([gpu.units for gpu in self.gpus])

    @property
    def pending(self) -> int:
        """The units on unknown GPUs."""
        return sum(use.units for use in self.unplaced)

    @property
    def allocated(self) -> int:
        """The units that pods of the node hold or are promised."""
        return sum([gpu.allocated for gpu in self.gpus]) + self.pending

    @property
    def promised(self) -> int:
        """The units among `allocated` that the node has not confirmed."""
        return sum([gpu.promised for gpu in self.gpus])


class UnofferedGpu(Part, frozen=True, kw_only=True):
    """A GPU of a node in no resource."""

    index: int
    """The index of the GPU."""
    uuid: str
    """The UUID of the GPU."""
    product: str = ""
    """The product name, empty if not known."""
    reason: str | None = None
    """Why no resource has the GPU; None if the config leaves the GPU out."""
    by_claim: bool = False
    """Whether pods get the GPU by ResourceClaims only."""


CORDONS_NOT_READ = (
    "Of nodes with Aliyun's plugin, GPUs that only a ConfigMap kube-system/unhealthy-gpu-NODE cordons are shown as "
    "usable: these are not read here, and the scheduler extender reads those of scheduler.cordonNodes"
)
"""The note for people wherever nodes without a record are shown."""


class KeptFor(Part, frozen=True, kw_only=True):
    """The waiting pod that a slice is kept for."""

    namespace: str
    """The namespace of the pod; empty if the annotation has no name."""
    pod: str
    """The name of the pod, or the UID if the annotation has no name."""
    since: datetime
    """The time from which on the slice is kept."""


class SliceUse(Part, frozen=True, kw_only=True):
    """The slices of a size, or at a place of a MIG instance, on a GPU of a partitioned node."""

    index: int
    """The index of the GPU."""
    uuid: str
    """The UUID of the GPU."""
    name: str
    """The name in the annotation: `10gb`, `3g.20gb@4`."""
    resource: str
    """The resource with slices of the size."""
    held: int
    """The slices held by pods."""
    idle: int
    """The slices offered by the node and not held."""
    wanted: int
    """The slices that the GPU is to have in all."""
    kept: tuple[KeptFor, ...] = ()
    """The waiting pods with a kept slice among the wanted slices."""


class WaitingUse(Part, frozen=True, kw_only=True):
    """A pod waiting for slices."""

    namespace: str
    """The namespace of the pod."""
    pod: str
    """The name of the pod."""
    resources: tuple[str, ...]
    """The resource of each requested slice."""
    since: datetime
    """The time of the pod's creation."""
    node: str | None = None
    """The node with slices kept for the pod; None without kept slices."""
    gpus: tuple[int, ...] = ()
    """The indexes of the GPUs with slices kept for the pod."""
    kept_since: datetime | None = None
    """The time from which on slices are kept for the pod; None without kept slices."""
    offered: bool = False
    """Whether the node offers the kept slices: kube-scheduler can then bind the pod."""


class NodeUse(Part, frozen=True, kw_only=True):
    """A node of the cluster."""

    name: str
    """The name of the node."""
    address: str
    """The internal IP address; empty for a node without an internal address."""
    ready: bool
    """Whether the kubelet is ready."""
    cordoned: bool
    """Whether the node is cordoned."""
    recorded: bool
    """Whether gpushare's daemon published a readable record of the node."""
    resources: tuple[ResourceUse, ...]
    """The shared resources of the node."""
    given_by_claim: tuple[ResourceUse, ...] = ()
    """The GPUs that are given by claim, and what claims have of them; empty where that is not known."""
    not_offered: tuple[UnofferedGpu, ...] = ()
    """The GPUs in no resource."""
    notices: tuple[str, ...] = ()
    """The warnings of the daemon, and the unreadable parts of the node."""
    partitioning: SliceKind | None = None
    """The kind of slices that GPUs are cut into for waiting pods (mps or mig); None for a node not partitioned."""
    slices: tuple[SliceUse, ...] = ()
    """The slices of a partitioned node."""
    config: str | None = None
    """The name of the config in effect, empty without a config file; None where the record does not say."""
    gpushare: str | None = None
    """The version of the daemon; None where the record does not say."""

    def free_of(self, gpu: GpuUse) -> int:
        """Return the units of a GPU of the node that a new pod can get: none where the node takes no new pods."""
        return gpu.free if self.ready and not self.cordoned else 0


class ClusterReport(Part, frozen=True, kw_only=True):
    """The whole output of `gpushare inspect`."""

    version: Literal[1] = 1
    """The version of the format, raised by changes that would mislead older readers."""
    gpushare: str = __version__
    """The version of gpushare."""
    nodes: tuple[NodeUse, ...]
    """The nodes, in the order of their names."""
    waiting: tuple[WaitingUse, ...] = ()
    """The pods waiting for slices, in the order of service; empty without partitioned nodes."""
    claims_unknown: str | None = None
    """Why it is not known what claims have of the GPUs that are given by claim; None where known."""


def cluster_report(
    nodes: Iterable[NodeAccount], waiting: Iterable[Pod] = (), *, everything: bool = False
) -> ClusterReport:
    """Return a report on nodes, in the order of their names.

    Without `everything`, nodes without a record, shared resources and notices are left out. `waiting` are all pods
    waiting for slices.
    """
    divided: list[PartitionNode] = []
    reports = (node_use(account, divided) for account in sorted(nodes, key=lambda each: each.node.name))
    return ClusterReport(
        nodes=tuple(node for node in reports if everything or node.recorded or node.resources or node.notices),
        waiting=tuple(waiting_uses(waiting, divided)) if divided else (),
    )


def waiting_uses(pods: Iterable[Pod], nodes: Iterable[PartitionNode]) -> Iterator[WaitingUse]:
    """Yield what partitioned nodes keep for pods that wait for slices, in the order of service."""
    keeping = {uid: (node, kept) for node in nodes for uid, kept in node.wanted.pods.items()}
    for pod in in_order(pods):
        slices = tuple(each.resource for each in pod.slices)
        use = WaitingUse(namespace=pod.namespace, pod=pod.name, resources=slices, since=pod.created)
        if pod.uid in keeping:
            node, kept = keeping[pod.uid]
            indexes = {gpu.uuid: gpu.index for gpu in node.gpus}
            use = replace(
                use,
                node=node.name,
                gpus=tuple(indexes[each.gpu] for each in kept if each.gpu in indexes),
                kept_since=since(kept),
                offered=node.offers_kept(kept),
            )
        yield use


def _slices(node: PartitionNode) -> Iterator[SliceUse]:
    """Yield the listed, held or wanted slices of each GPU."""
    kept: dict[tuple[str, str], list[KeptFor]] = {}
    for uid, each in ((uid, each) for uid, several in node.wanted.pods.items() for each in several):
        namespace, _, pod = each.pod.partition("/") if each.pod else ("", "", uid)
        kept.setdefault((each.gpu, each.slice), []).append(KeptFor(namespace=namespace, pod=pod, since=each.since))
    for gpu in sorted(node.gpus, key=lambda each: each.index):
        wanted = node.wanted.gpus.get(gpu.uuid, gpu.listed)
        for name in sorted({*gpu.listed, *gpu.held, *wanted}, key=lambda name: (named_slice(name).gib, name)):
            held = gpu.held.get(name, 0)
            yield SliceUse(
                index=gpu.index,
                uuid=gpu.uuid,
                name=name,
                resource=named_slice(name).resource,
                held=held,
                idle=max(0, gpu.listed.get(name, 0) - held),
                wanted=wanted.get(name, 0),
                kept=tuple(kept.get((gpu.uuid, name), ())),
            )


def node_use(account: NodeAccount, divided: list[PartitionNode]) -> NodeUse:
    """Return a report on a node, and add a partitioned node to `divided`."""
    about, node = account.node, partition_node_of(account)
    record = about.record
    problems: tuple[str, ...] = () if about.wanted_unreadable is None else (about.wanted_unreadable,)
    if node is not None:
        divided.append(node)
        problems += (f"no slices are made here: {node.problem}",) if node.problem else ()
    recorded: dict[tuple[str | None, str], GpuRecord] = {}
    if record is not None:
        recorded = {(gpu.resource, gpu.uuid): gpu for gpu in record.gpus}
    accounts = sorted(
        account.resources.values(), key=lambda each: (each.offer.resource != GPU_MEMORY, each.offer.resource)
    )
    return NodeUse(
        name=about.name,
        address=about.address,
        ready=about.ready,
        cordoned=about.unschedulable,
        recorded=about.recorded,
        resources=tuple(_resource(each, recorded, confirms=about.recorded) for each in accounts),
        not_offered=tuple(
            UnofferedGpu(
                index=gpu.index,
                uuid=gpu.uuid,
                product=gpu.product or "",
                reason=gpu.reason,
                by_claim=gpu.by_claim is True,
            )
            for (resource, _), gpu in recorded.items()
            if resource is None
        ),
        notices=(*about.ignored, *problems, *(record.notices if record is not None else ())),
        partitioning=about.partitioning,
        slices=() if node is None else tuple(_slices(node)),
        config=_short(record.config if record else None),
        gpushare=_short(record.gpushare if record else None),
    )


def _short(name: str | None) -> str | None:
    """Return the beginning of a name that a node may choose."""
    return None if name is None else name[:_LONGEST_NAME]


def _resource(
    account: ResourceAccount, recorded: Mapping[tuple[str | None, str], GpuRecord], *, confirms: bool
) -> ResourceUse:
    offer = account.offer
    return ResourceUse(
        resource=offer.resource,
        kind=offer.kind,
        unit=unit_name(offer),
        gpus=tuple(_gpus(account, recorded, confirms=confirms)),
        unplaced=tuple(
            PodUse(namespace=each.pod.namespace, pod=each.pod.name, units=each.units, state="unplaced")
            for each in account.unplaced
        ),
    )


def _gpus(
    account: ResourceAccount, recorded: Mapping[tuple[str | None, str], GpuRecord], *, confirms: bool
) -> Iterator[GpuUse]:
    """Yield the GPUs of the offer, and then the held GPUs outside of the offer."""
    by_gpu, over, unplaced, drift = account.by_gpu, account.over, account.anywhere, account.drift
    for gpu, free in zip(account.gpus, chain(account.free, repeat(0)), strict=False):
        record = recorded.get((account.offer.resource, gpu.name))
        moved = _moved(drift, gpu.name)
        pods = tuple([_use(each, confirms=confirms, drift=each.pod.uid in moved) for each in by_gpu[gpu.name]])
        yield GpuUse(
            index=gpu.index,
            uuid=gpu.name,
            product=f"{gpu.product} MIG {record.profile}" if record is not None and record.profile else gpu.product,
            mode=record.mode if record is not None else None,
            units=gpu.units,
            allocated=sum([use.units for use in pods]),
            promised=sum([use.units for use in pods if use.state == "promised"]),
            unplaced=unplaced,
            free=free,
            over=over[gpu.name],
            drifted=drift.excess.get(gpu.name, 0),
            reason=gpu.reason,
            pods=pods,
        )


def _moved(drift: Drift, gpu: str) -> frozenset[str]:
    """Return the UIDs of the pods with more held than promised units of a GPU, if all pods together have, too."""
    if not drift.excess.get(gpu):
        return frozenset()
    return frozenset(each.pod.uid for each in drift.pods if each.held.get(gpu, 0) > each.promised.get(gpu, 0))


def _use(holding: Placed, *, confirms: bool, drift: bool) -> PodUse:
    """Return the units of a pod; Aliyun's plugin never confirms a promise, and its annotations count as allocated."""
    allocated = holding.source == "allocation" or (holding.source == "indexes" and not confirms)
    return PodUse(
        namespace=holding.pod.namespace,
        pod=holding.pod.name,
        units=holding.units,
        state="allocated" if allocated else "promised",
        drift=drift,
        limits=tuple(each for each in _limits(holding.pod) if each.gpu == holding.gpu),
    )


def _limits(pod: Pod) -> Iterable[ContainerLimit]:
    """Return whether the limits of a pod are in effect, on all GPUs; empty without a readable annotation."""
    if (text := dict(pod.written).get(LIMITS)) is None:
        return ()
    try:
        return tuple(container_limits(text))
    except AnnotationError:
        return ()


def mib_of(unit: str) -> int | None:
    """Return the MiB of a unit by the name of the unit; None for a unit that is no memory."""
    if unit == "GiB":
        return _GIB
    count, _, name = unit.rpartition(" ")
    return int(count or 1) if name == "MiB" else None


def unit_name(offer: OfferedResource) -> str:
    """Return the name of the unit of a resource."""
    if offer.kind != "memory":
        return _NAMES.get(offer.kind, "units")
    if not offer.unit_mib:
        # The guess of Aliyun's tool: the Node does not name its unit.
        return "MiB" if any(gpu.units > _LARGE_GPU for gpu in offer.gpus) else "GiB"
    if offer.unit_mib == 1:
        return "MiB"
    return "GiB" if offer.unit_mib == _GIB else f"{offer.unit_mib} MiB"
