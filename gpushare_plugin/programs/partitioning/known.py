"""The cluster as a partitioner knows it in one term: the account of the GPUs, and what decides where pods can run."""

from collections.abc import Callable, Hashable, Iterable, Sequence

import structlog

from gpushare_plugin.adapters.cluster.accounts import account_pod, created, node_record, node_with
from gpushare_plugin.adapters.cluster.collection import Gone
from gpushare_plugin.adapters.cluster.scheduling.judged import scheduling_node, scheduling_pod
from gpushare_plugin.adapters.cluster.scheduling.objects import JudgedNode, JudgedPod
from gpushare_plugin.foundation.reported import Changes
from gpushare_plugin.foundation.structs import Struct, replace
from gpushare_plugin.model.account.cluster import ClusterAccount
from gpushare_plugin.model.account.node_record import GPUS_ANNOTATION, NodeRecord, RecordError
from gpushare_plugin.model.account.occupancy import NodeAccount
from gpushare_plugin.model.account.scheduling.demand import NOTHING, Demand
from gpushare_plugin.model.account.scheduling.fits import Screening, lack, unmet
from gpushare_plugin.model.account.scheduling.node import SchedulingNode
from gpushare_plugin.model.account.scheduling.pod import SchedulingPod
from gpushare_plugin.model.partition.conversion import mig_layout, partition_node
from gpushare_plugin.model.partition.nodes import PartitionNode
from gpushare_plugin.model.partition.pods import WaitingPod, asks_for_slices, waiting_pod
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


class Known:
    """Every Node and Pod, as far as the decision depends on them."""

    def __init__(self, policy: str, changed: Callable[[], None] = lambda: None) -> None:
        """Know nothing yet; `policy` is for pods and nodes that name none.

        `changed` is called after each change on which a decision can depend.
        """
        self._changed = changed
        self._account = ClusterAccount(policy)
        self._nodes: dict[str, KnownNode] = {}
        self._judged: dict[str, SchedulingNode] = {}
        self._pods: dict[str, SchedulingPod] = {}
        self._used: dict[str, Demand] = {}
        self._waiting: dict[str, WaitingPod] = {}
        self._made: dict[str, tuple[NodeAccount, PartitionNode]] = {}  # nodes for the decision, by account
        self._screening = Screening()
        self._conflicts: set[str] = set()
        self._unreadable = Changes()

    @property
    def uids(self) -> dict[str, SchedulingPod]:
        """All pods by their UIDs."""
        return self._pods

    @property
    def waiting(self) -> Sequence[WaitingPod]:
        """The pods that wait for slices and are not held back by scheduling gates.

        While a node is partitioned, also those that ask for a size that is misspelt, unless some node offers it.
        """
        found = [pod for uid, pod in self._waiting.items() if self._pods[uid].schedulable]
        if all(pod.misspelt is None for pod in found):
            return found
        foreign = {name for node in self._judged.values() for name, amount in node.allocatable.items() if amount}
        return [pod for pod in found if pod.misspelt is None or (self._nodes and pod.misspelt not in foreign)]

    @property
    def node_count(self) -> int:
        """How many nodes are partitioned."""
        return len(self._nodes)

    @property
    def nodes(self) -> Sequence[PartitionNode]:
        """The nodes that are partitioned, by name."""
        return [self._partitioned(name) for name in sorted(self._nodes)]

    def is_bound(self, uid: str) -> bool:
        """Return whether a pod has a node."""
        return uid in self._pods and self._pods[uid].node is not None

    def offers(self, node: str, kept: Iterable[Kept]) -> bool:
        """Return whether a node offers slices that are kept, and no pod has them."""
        return node in self._nodes and self._partitioned(node).offers(kept)

    def node(self, name: str) -> KnownNode:
        """Return a node that is partitioned."""
        return self._nodes[name]

    def put_node(self, node: JudgedNode) -> None:
        """Take in a Node as it is now."""
        name = node.metadata.name
        before = self._standing(name)
        record = self._record(node)
        judged = scheduling_node(node)
        if judged != self._judged.get(name):
            self._judged[name] = judged
            self._screening.put(judged)
        if record is None or record.partitioning is None:
            self._nodes.pop(name, None)
        else:
            metadata = node.metadata
            wanted = self._wanted(name, metadata.annotations.get(WANTED_SLICES))
            self._nodes[name] = KnownNode(metadata.uid, metadata.resource_version, record.partitioning, record, wanted)
        conflict = name in self._conflicts
        self._conflicts.discard(name)
        if conflict or self._standing(name) != before:
            self._made.pop(name, None)
            self._changed()

    def remove_node(self, gone: Gone) -> None:
        """Forget a Node."""
        self._account.remove_node(gone.name)
        self._nodes.pop(gone.name, None)
        self._made.pop(gone.name, None)
        self._judged.pop(gone.name, None)
        self._screening.remove(gone.name)
        self._conflicts.discard(gone.name)
        self._unreadable.forget((gone.name, GPUS_ANNOTATION))
        self._unreadable.forget((gone.name, WANTED_SLICES))
        self._changed()

    def wrote(self, name: str, before: KnownNode, wanted: Wanted, version: str) -> None:
        """Take note of what was written to a node as it was `before`, unless the watch has shown that, or more."""
        if (known := self._nodes.get(name)) is not None and (known.uid, known.version) == (before.uid, before.version):
            self._nodes[name] = replace(known, wanted=wanted, version=version)
            self._made.pop(name, None)

    def conflicted(self, name: str, before: KnownNode) -> None:
        """Take note that a node is not as it was `before` any longer: how it is now matters, whatever has changed."""
        known = self._nodes.get(name)
        if known is not None and (known.uid, known.version) == (before.uid, before.version):
            self._conflicts.add(name)
        else:
            self._changed()

    def put_pod(self, pod: JudgedPod) -> None:
        """Take in a Pod as it is now."""
        judged, counted = scheduling_pod(pod), account_pod(pod)
        before, was_counted = self._pods.get(judged.uid), self._account.pod(judged.uid)
        if judged == before and counted == was_counted:
            return
        self._account.put_pod(counted)
        self._count(before, judged)
        self._pods[judged.uid] = judged
        waits = waiting_pod(counted, created(pod), _alike(judged)) if judged.node is None else None
        if waits is None:
            self._waiting.pop(judged.uid, None)
        else:
            self._waiting[judged.uid] = waits
        if asks_for_slices(counted.request) or self._makes_room(before, judged):
            self._changed()

    def remove_pod(self, gone: Gone) -> None:
        """Forget a Pod."""
        counted, before = self._account.pod(gone.uid), self._pods.pop(gone.uid, None)
        self._account.remove_pod(gone.uid)
        self._count(before, None)
        self._waiting.pop(gone.uid, None)
        if (counted is not None and asks_for_slices(counted.request)) or self._makes_room(before, None):
            self._changed()

    def runs_on(self, pod: WaitingPod, node: str, beside: Sequence[WaitingPod]) -> str | None:
        """Return why a pod cannot run on a node beside others that are to come there; None if it can, slices aside."""
        if (judged := self._pods.get(pod.uid)) is None:
            return "the pod is gone"  # since the decision
        if (there := self._judged.get(node)) is None:
            return "the node is gone"
        if node not in self._screening.admitting(judged.constraints):
            return str(unmet(judged.constraints, there))
        used = self._used.get(node, NOTHING)
        for other in beside:
            used += self._pods[other.uid].demand if other.uid in self._pods else NOTHING
        refusal = lack(judged.demand, there, used, frozenset(each.resource for each in pod.slices))
        return None if refusal is None else str(refusal)

    def _count(self, before: SchedulingPod | None, after: SchedulingPod | None) -> None:
        """Count what a pod takes of its node."""
        if before is not None and before.node is not None and not before.ended:
            self._used[before.node] -= before.demand
            if self._used[before.node] == NOTHING:
                del self._used[before.node]
        if after is not None and after.node is not None and not after.ended:
            self._used[after.node] = self._used.get(after.node, NOTHING) + after.demand

    def _makes_room(self, *pods: SchedulingPod | None) -> bool:
        """Return whether pods without slices can matter: those on partitioned nodes do, to pods that wait."""
        return bool(self._waiting) and any(pod is not None and pod.node in self._nodes for pod in pods)

    def _standing(self, name: str) -> object:
        """Return what decisions can depend on of a node: nothing of one that is not partitioned."""
        if (known := self._nodes.get(name)) is None:
            return None
        return replace(known, version=""), self._judged[name], self._account.offered(name)

    def _partitioned(self, name: str) -> PartitionNode:
        """Return a node for the decision: the same object until it is another one, or pods come or go there."""
        account, made = self._account.node(name), self._made.get(name)
        # An account never changes; another one takes its place.
        if made is not None and made[0] is account:
            return made[1]
        known = self._nodes[name]
        node = partition_node(account, known.record, known.kind, known.wanted, mig_layout(known.record))
        self._made[name] = account, node
        return node

    def _wanted(self, name: str, text: str | None) -> Wanted | None:
        """Return what the annotation says; one that nobody can read is decided anew."""
        try:
            wanted, problem = None if text is None else decode(text), None
        except WantedError as error:
            wanted, problem = None, str(error)
        self._report(name, WANTED_SLICES, problem)
        return wanted

    def _record(self, node: JudgedNode) -> NodeRecord | None:
        """Return the record of a node, and let the account have it; None where there is none that can be read."""
        record, problem = None, None
        try:
            record = node_record(node)
            self._account.put_node(node_with(node, record))
        except RecordError as error:
            problem = str(error)
        self._report(node.metadata.name, GPUS_ANNOTATION, problem)
        return record

    def _report(self, name: str, annotation: str, problem: str | None) -> None:
        """Log once that an annotation of a node cannot be read, and again after it could be."""
        if self._unreadable.is_new((name, annotation), problem) and problem is not None:
            _log.warning("node_annotation_unreadable", node=name, reason=problem)


def _alike(pod: SchedulingPod) -> Hashable:
    """Return what is equal for pods that the same nodes refuse."""
    demand = pod.demand
    return pod.constraints, frozenset(demand.resources.items()), frozenset(demand.ports)
