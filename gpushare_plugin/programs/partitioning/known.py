"""The cluster as a partitioner knows it in one term: the account of the GPUs, and what decides where pods can run."""

from collections.abc import Hashable, Iterable, Sequence
from datetime import UTC, datetime

import structlog

from gpushare_plugin.adapters.cluster.accounts import account_pod, node_record, node_with
from gpushare_plugin.adapters.cluster.collection import Gone
from gpushare_plugin.adapters.cluster.scheduling.judged import scheduling_node, scheduling_pod
from gpushare_plugin.adapters.cluster.scheduling.objects import JudgedNode, JudgedPod
from gpushare_plugin.foundation.reported import Changes
from gpushare_plugin.foundation.structs import Struct, replace
from gpushare_plugin.model.account.cluster import ClusterAccount
from gpushare_plugin.model.account.node_record import NodeRecord, RecordError
from gpushare_plugin.model.account.occupancy import NodeAccount
from gpushare_plugin.model.account.scheduling.demand import NOTHING, Demand
from gpushare_plugin.model.account.scheduling.fits import Screening, lack, unmet
from gpushare_plugin.model.account.scheduling.node import SchedulingNode
from gpushare_plugin.model.account.scheduling.pod import SchedulingPod
from gpushare_plugin.model.partition.conversion import mig_layout, partition_node
from gpushare_plugin.model.partition.nodes import PartitionNode
from gpushare_plugin.model.partition.pods import WaitingPod, waiting_pod
from gpushare_plugin.model.partition.slices import Kind
from gpushare_plugin.model.partition.wanted import WANTED_SLICES, Kept, Wanted, WantedError, decode

_log = structlog.get_logger()


class KnownNode(Struct, frozen=True):
    """A Node whose daemon follows the annotation: `version` is the one that it was read with, to write it once."""

    uid: str
    version: str
    kind: Kind
    record: NodeRecord
    wanted: Wanted | None


class _Divided(Struct, frozen=True):
    """A node as it was made for the decision, of what does not change without being replaced."""

    account: NodeAccount
    known: KnownNode
    node: PartitionNode


class Known:
    """Every Node and Pod, as far as the decision depends on them."""

    def __init__(self, policy: str) -> None:
        """Know nothing yet; `policy` is for pods and nodes that name none."""
        self._account = ClusterAccount(policy)
        self._nodes: dict[str, KnownNode] = {}
        self._judged: dict[str, SchedulingNode] = {}
        self._pods: dict[str, SchedulingPod] = {}
        self._used: dict[str, Demand] = {}
        self._waiting: dict[str, WaitingPod] = {}
        self._divided: dict[str, _Divided] = {}
        self._screening = Screening()
        self._unreadable = Changes()

    @property
    def uids(self) -> dict[str, SchedulingPod]:
        """All pods by their UIDs."""
        return self._pods

    @property
    def waiting(self) -> Sequence[WaitingPod]:
        """The pods that wait for slices and are not held back by scheduling gates."""
        return [pod for uid, pod in self._waiting.items() if self._pods[uid].schedulable]

    @property
    def nodes(self) -> Sequence[PartitionNode]:
        """The nodes that are partitioned, by name."""
        return [self._partitioned(name) for name in sorted(self._nodes)]

    def created(self, uid: str) -> datetime:
        """Return when a pod that waits was created."""
        return self._waiting[uid].created

    def is_bound(self, uid: str) -> bool:
        """Return whether a pod has a node."""
        return uid in self._pods and self._pods[uid].node is not None

    def offers(self, node: str, kept: Iterable[Kept]) -> bool:
        """Return whether a node offers slices that are kept, and no pod has them."""
        if node not in self._nodes:
            return False
        gpus = {gpu.uuid: gpu for gpu in self._partitioned(node).gpus}
        return all(
            (gpu := gpus.get(each.gpu)) is not None and gpu.listed.get(each.slice, 0) > gpu.held.get(each.slice, 0)
            for each in kept
        )

    def node(self, name: str) -> KnownNode:
        """Return a node that is partitioned."""
        return self._nodes[name]

    def put_node(self, node: JudgedNode) -> None:
        """Take in a Node as it is now."""
        name = node.metadata.name
        try:
            record = node_record(node)
            self._account.put_node(node_with(node, record))
        except RecordError as error:
            self._report(name, str(error))
            record = None
        self._judged[name] = scheduling_node(node)
        self._screening.put(self._judged[name])
        if record is None or record.partitioning is None:
            self._nodes.pop(name, None)
            self._divided.pop(name, None)
            return
        metadata = node.metadata
        wanted = self._wanted(name, metadata.annotations.get(WANTED_SLICES))
        self._nodes[name] = KnownNode(metadata.uid, metadata.resource_version, record.partitioning, record, wanted)

    def remove_node(self, gone: Gone) -> None:
        """Forget a Node."""
        self._account.remove_node(gone.name)
        self._nodes.pop(gone.name, None)
        self._divided.pop(gone.name, None)
        self._judged.pop(gone.name, None)
        self._screening.remove(gone.name)

    def wrote(self, name: str, wanted: Wanted, version: str) -> None:
        """Take note of what was written, before the watch shows it."""
        if name in self._nodes:
            self._nodes[name] = replace(self._nodes[name], wanted=wanted, version=version)

    def put_pod(self, pod: JudgedPod) -> None:
        """Take in a Pod as it is now."""
        judged, counted = scheduling_pod(pod), account_pod(pod)
        self._account.put_pod(counted)
        self._count(self._pods.get(judged.uid), judged)
        self._pods[judged.uid] = judged
        created = _time(pod.metadata.creation_timestamp)
        waits = waiting_pod(counted, created, _alike(judged))
        if waits is None:
            self._waiting.pop(judged.uid, None)
        else:
            self._waiting[judged.uid] = waits

    def remove_pod(self, gone: Gone) -> None:
        """Forget a Pod."""
        self._account.remove_pod(gone.uid)
        self._count(self._pods.pop(gone.uid, None), None)
        self._waiting.pop(gone.uid, None)

    def runs_on(self, pod: WaitingPod, node: str, beside: Sequence[WaitingPod]) -> str | None:
        """Return why a pod cannot run on a node beside others that are to come there; None if it can, slices aside."""
        judged, there = self._pods[pod.uid], self._judged[node]
        if node not in self._screening.admitting(judged.constraints):
            return str(unmet(judged.constraints, there))
        used = self._used.get(node, NOTHING)
        for other in beside:
            used += self._pods[other.uid].demand
        refusal = lack(judged.demand, there, used, frozenset(each.resource for each in pod.slices))
        return None if refusal is None else str(refusal)

    def _count(self, before: SchedulingPod | None, after: SchedulingPod | None) -> None:
        """Count what a pod takes of its node."""
        if before is not None and before.node is not None and not before.ended:
            self._used[before.node] -= before.demand
        if after is not None and after.node is not None and not after.ended:
            self._used[after.node] = self._used.get(after.node, NOTHING) + after.demand

    def _partitioned(self, name: str) -> PartitionNode:
        """Return a node for the decision: the same object where nothing changed."""
        account, known = self._account.node(name), self._nodes[name]
        made = self._divided.get(name)
        if made is None or made.account is not account or made.known is not known:
            node = partition_node(account, known.record, known.kind, known.wanted, mig_layout(known.record))
            made = self._divided[name] = _Divided(account, known, node)
        return made.node

    def _wanted(self, name: str, text: str | None) -> Wanted | None:
        """Return what the annotation says; one that nobody can read is decided anew."""
        try:
            return None if text is None else decode(text)
        except WantedError as error:
            self._report(name, str(error))
            return None

    def _report(self, name: str, reason: str) -> None:
        if self._unreadable.is_new(name, reason):
            _log.warning("node_annotation_unreadable", node=name, reason=reason)


def _alike(pod: SchedulingPod) -> Hashable:
    """Return what is equal for pods that the same nodes refuse."""
    demand = pod.demand
    return pod.constraints, frozenset(demand.resources.items()), frozenset(demand.ports)


def _time(text: str | None) -> datetime:
    """Return a time of the API; one that cannot be read counts as now, which makes a pod the youngest."""
    try:
        return datetime.fromisoformat(text or "")
    except ValueError:
        return datetime.now(UTC)
