"""What a cluster shares and who has it, as data: a projection of its account, which is printed as tables or JSON."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Literal

import msgspec

from gpushare_plugin import __version__
from gpushare_plugin.model.account.node import GPU_MEMORY, Offer
from gpushare_plugin.model.account.node_record import GpuRecord
from gpushare_plugin.model.account.occupancy import GpuAccount, NodeAccount, Placed, ResourceAccount
from gpushare_plugin.model.account.pod import Drift, Pod
from gpushare_plugin.model.partition.conversion import partition_node
from gpushare_plugin.model.partition.nodes import PartitionNode
from gpushare_plugin.model.partition.pods import in_order
from gpushare_plugin.model.partition.taking_back import since
from gpushare_plugin.model.slices.slice import Kind, named_slice

UseState = Literal["allocated", "promised", "unplaced"]

_LARGE_GPU = 100
"""Units of a GPU from which on Aliyun's tool takes them for MiB, where nothing says what they are."""

_GIB = 1024
"""MiB."""

_NAMES = {"replicas": "replicas", "slices": "slices", "gpus": "GPUs", "cores": "%"}
"""What the units of a kind of resource are called."""


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a report; a large cluster has a hundred thousand, which is why these are no models of pydantic."""


class PodUse(Part, frozen=True, kw_only=True):
    """The units of one GPU in one resource that one pod has.

    `state` is allocated (the node's daemon says so), promised (a scheduler says so, and the node has not confirmed it)
    or unplaced (nothing says on which GPU they are: `units` are then those of the pod on all GPUs). `drift` is whether
    it has more units of a GPU than it was promised, and the GPU more than all its pods were.
    """

    namespace: str
    pod: str
    units: int
    state: UseState
    drift: bool = False


class GpuUse(Part, frozen=True, kw_only=True):
    """One GPU in one resource, in units of this resource.

    `allocated` counts what pods have on it and what they are promised, `promised` the latter alone. `unplaced` are
    units of the node that may be on this GPU, `over` those that it does not have, `drifted` those that pods have
    beyond what was promised on it. `reason` is why none of its units can be allocated.
    """

    index: int
    uuid: str
    product: str = ""
    mode: str | None = None
    units: int
    allocated: int
    promised: int = 0
    unplaced: int = 0
    free: int
    over: int = 0
    drifted: int = 0
    reason: str | None = None
    pods: tuple[PodUse, ...] = ()


class ResourceUse(Part, frozen=True, kw_only=True):
    """One resource of a node; `unit` is what one unit is: GiB, MiB, 512 MiB, replicas, slices, GPUs or %.

    `kind` is as in the record of the node, empty for a resource that is held although it is not offered any more.
    """

    resource: str
    kind: str
    unit: str
    gpus: tuple[GpuUse, ...]
    unplaced: tuple[PodUse, ...] = ()

    @property
    def units(self) -> int:
        """The units of all GPUs."""
        return sum([gpu.units for gpu in self.gpus])

    @property
    def pending(self) -> int:
        """Units of which nothing says on which GPU they are."""
        return sum(use.units for use in self.unplaced)

    @property
    def allocated(self) -> int:
        """The units that pods of this node have or are promised."""
        return sum([gpu.allocated for gpu in self.gpus]) + self.pending

    @property
    def promised(self) -> int:
        """Those of them that the node has not confirmed."""
        return sum([gpu.promised for gpu in self.gpus])


class UnofferedGpu(Part, frozen=True, kw_only=True):
    """A GPU of a node that is in no resource; `reason` is why, None where the config leaves it out."""

    index: int
    uuid: str
    product: str = ""
    reason: str | None = None


CORDONS_NOT_READ = (
    "Of nodes with Aliyun's plugin, GPUs that only a ConfigMap kube-system/unhealthy-gpu-NODE cordons are shown as "
    "usable: these are not read here, and the scheduler extender reads those of scheduler.cordonNodes"
)
"""What is to be said wherever nodes without a record are shown."""


class KeptFor(Part, frozen=True, kw_only=True):
    """The waiting pod that a slice is kept for, and since when; `pod` is its UID where the annotation has no name."""

    namespace: str
    pod: str
    since: datetime


class SliceUse(Part, frozen=True, kw_only=True):
    """The slices of one size, or at one place of a MIG instance, on one GPU of a node that is partitioned.

    `name` is as in the annotation (`10gb`, `3g.20gb@4`). Pods have `held`, the node offers `idle` beside these, and
    `wanted` are all that it is to have, of which some are `kept` for waiting pods.
    """

    index: int
    uuid: str
    name: str
    resource: str
    held: int
    idle: int
    wanted: int
    kept: tuple[KeptFor, ...] = ()


class WaitingUse(Part, frozen=True, kw_only=True):
    """A pod that waits for slices since it was created.

    `node` and `gpus`, by index, are where slices are kept for it, since `kept_since`; `offered` is whether the node
    offers them, so that kube-scheduler can bind the pod.
    """

    namespace: str
    pod: str
    resources: tuple[str, ...]
    since: datetime
    node: str | None = None
    gpus: tuple[int, ...] = ()
    kept_since: datetime | None = None
    offered: bool = False


class NodeUse(Part, frozen=True, kw_only=True):
    """One node; `recorded` is whether gpushare runs there, `notices` are warnings of it, or of what cannot be read.

    `partitioning` is how its GPUs are cut into slices for waiting pods (mps or mig), None where they are not.
    """

    name: str
    address: str
    ready: bool
    cordoned: bool
    recorded: bool
    resources: tuple[ResourceUse, ...]
    not_offered: tuple[UnofferedGpu, ...] = ()
    notices: tuple[str, ...] = ()
    partitioning: Kind | None = None
    slices: tuple[SliceUse, ...] = ()


class ClusterReport(Part, frozen=True, kw_only=True):
    """Everything that `gpushare inspect` shows; `version` changes when readers of the old one would be wrong.

    `waiting` are the pods that wait for slices, if any node is partitioned, in the order in which they are served.
    """

    version: Literal[1] = 1
    gpushare: str = __version__
    nodes: tuple[NodeUse, ...]
    waiting: tuple[WaitingUse, ...] = ()


def encode(report: Part, indent: int | None = None) -> str:
    """Return a report as JSON."""
    encoded = msgspec.json.encode(report)
    return (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()


def cluster_report(
    nodes: Iterable[NodeAccount], waiting: Iterable[Pod] = (), *, everything: bool = False
) -> ClusterReport:
    """Report on nodes, in the order of their names; without `everything`, only on those that have to do with GPUs.

    `waiting` are all pods that wait for slices.
    """
    divided: list[PartitionNode] = []
    reports = (node_use(account, divided) for account in sorted(nodes, key=lambda each: each.node.name))
    return ClusterReport(
        nodes=tuple(node for node in reports if everything or node.recorded or node.resources or node.notices),
        waiting=tuple(_waiting(waiting, divided)) if divided else (),
    )


def _waiting(pods: Iterable[Pod], nodes: Iterable[PartitionNode]) -> Iterator[WaitingUse]:
    keeping = {uid: (node, kept) for node in nodes for uid, kept in node.wanted.pods.items()}
    for pod in in_order(pods):
        slices = tuple(each.resource for each in pod.slices)
        use = WaitingUse(namespace=pod.namespace, pod=pod.name, resources=slices, since=pod.created)
        if pod.uid in keeping:
            node, kept = keeping[pod.uid]
            indexes = {gpu.uuid: gpu.index for gpu in node.gpus}
            use = msgspec.structs.replace(
                use,
                node=node.name,
                gpus=tuple(indexes[each.gpu] for each in kept if each.gpu in indexes),
                kept_since=since(kept),
                offered=node.offers(kept),
            )
        yield use


def _slices(node: PartitionNode) -> Iterator[SliceUse]:
    """Yield the slices of each GPU that are there, held or wanted."""
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
    """Report on one node; one that is partitioned is added to `divided`."""
    about, node = account.node, partition_node(account)
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
            UnofferedGpu(index=gpu.index, uuid=gpu.uuid, product=gpu.product or "", reason=gpu.reason)
            for (resource, _), gpu in recorded.items()
            if resource is None
        ),
        notices=(*about.ignored, *problems, *(record.notices if record is not None else ())),
        partitioning=about.partitioning,
        slices=() if node is None else tuple(_slices(node)),
    )


def _resource(
    account: ResourceAccount, recorded: Mapping[tuple[str | None, str], GpuRecord], *, confirms: bool
) -> ResourceUse:
    offer, drift = account.offer, account.drift
    return ResourceUse(
        resource=offer.resource,
        kind=offer.kind,
        unit=unit_name(offer),
        gpus=tuple(
            _gpu(gpu, recorded.get((offer.resource, gpu.gpu.name)), drift, confirms=confirms) for gpu in account.gpus
        ),
        unplaced=tuple(
            PodUse(namespace=each.pod.namespace, pod=each.pod.name, units=each.units, state="unplaced")
            for each in account.unplaced
        ),
    )


def _gpu(gpu: GpuAccount, record: GpuRecord | None, drift: Drift, *, confirms: bool) -> GpuUse:
    name = gpu.gpu.name
    moved = frozenset[str]()
    if drifted := drift.excess.get(name, 0):
        there = (each for each in drift.pods if each.held.get(name, 0) > each.promised.get(name, 0))
        moved = frozenset(each.pod.uid for each in there)
    pods = tuple([_use(each, confirms=confirms, drift=each.pod.uid in moved) for each in (*gpu.held, *gpu.promised)])
    product = gpu.gpu.product
    return GpuUse(
        index=gpu.gpu.index,
        uuid=gpu.gpu.name,
        product=f"{product} MIG {record.profile}" if record is not None and record.profile else product,
        mode=record.mode if record is not None else None,
        units=gpu.units,
        allocated=sum([use.units for use in pods]),
        promised=sum([use.units for use in pods if use.state == "promised"]),
        unplaced=gpu.unplaced,
        free=gpu.free,
        over=gpu.over,
        drifted=drifted,
        reason=gpu.reason,
        pods=pods,
    )


def _use(holding: Placed, *, confirms: bool, drift: bool) -> PodUse:
    """Return the units of a pod; a node of Aliyun's plugin confirms nothing, so its annotations are all there is."""
    allocated = holding.source == "allocation" or (holding.source == "indexes" and not confirms)
    return PodUse(
        namespace=holding.pod.namespace,
        pod=holding.pod.name,
        units=holding.units,
        state="allocated" if allocated else "promised",
        drift=drift,
    )


def unit_name(offer: Offer) -> str:
    """Return what one unit of a resource is."""
    if offer.kind != "memory":
        return _NAMES.get(offer.kind, "units")
    if not offer.unit_mib:
        # As Aliyun's tool guesses it: the Node does not say what its units are.
        return "MiB" if any(gpu.units > _LARGE_GPU for gpu in offer.gpus) else "GiB"
    if offer.unit_mib == 1:
        return "MiB"
    return "GiB" if offer.unit_mib == _GIB else f"{offer.unit_mib} MiB"
