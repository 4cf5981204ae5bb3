"""The cluster as known to a partitioner: the account of the GPUs, and the rules for where pods can run."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

import structlog

from gpushare_plugin.base.reported import Reported
from gpushare_plugin.base.structs import replace
from gpushare_plugin.kube.collection import Gone
from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.kube.pods import judged_pod
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.demand import NOTHING, Demand
from gpushare_plugin.ledger.kube_scheduler import Screening, constraints_refusal, room_refusal
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION
from gpushare_plugin.ledger.occupancy import NodeAccount
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.verdicts import Fit
from gpushare_plugin.partition.conversion import partition_node_of
from gpushare_plugin.partition.elsewhere import Elsewhere
from gpushare_plugin.partition.nodes import PartitionNode
from gpushare_plugin.partition.taking_back import RoundRules, TakenBack
from gpushare_plugin.slices.wanted import WANTED_SLICES, KeptSlice, Wanted

_log = structlog.get_logger()


class _Scheduling:
    """The judgement of kube-scheduler, slices aside: the nodes that admit pods, and the demand of the pods of nodes."""

    def __init__(self, nodes: Mapping[str, Node], pods: Mapping[str, Pod]) -> None:
        """Judge all nodes, by name, and all pods, by UID, now and later."""
        self._nodes = nodes
        self._pods = pods
        self.used: dict[str, Demand] = {}
        self.screening = Screening(nodes)

    def count(self, before: Pod | None, after: Pod | None) -> None:
        """Subtract the demand of a pod `before` from its node, and add the demand `after`."""
        if before is not None and before.node is not None and not before.phase_final:
            self.used[before.node] -= before.needs.demand
            if self.used[before.node] == NOTHING:
                del self.used[before.node]
        if after is not None and after.node is not None and not after.phase_final:
            self.used[after.node] = self.used.get(after.node, NOTHING) + after.needs.demand

    def runs_on(self, pod: Pod, node: str, assigned_pods: Sequence[Pod]) -> str | None:
        """Return why a pod cannot run on a node beside `assigned_pods`, which wait, slices aside; None if it can."""
        if (found := self._pods.get(pod.uid)) is None:
            return "the pod is gone"  # the pod was deleted after the decision
        if (there := self._nodes.get(node)) is None:
            return "the node is gone"
        needs = found.needs
        if node not in self.screening.admitting(needs.constraints):
            refusal = constraints_refusal(needs.constraints, there)
            return "the node does not admit the pod" if refusal is None else refusal.summary
        used = self.used.get(node, NOTHING)
        for other in assigned_pods:
            used += self._pods[other.uid].needs.demand if other.uid in self._pods else NOTHING
        refusal = room_refusal(needs.demand, there, used, frozenset(each.resource for each in pod.slices))
        return None if refusal is None else refusal.summary


class Losses:
    """Slices lost because a Node, its partitioning or its annotation is gone.

    Losses are noted only during a term: outside a term, another partitioner reports them.
    """

    def __init__(self) -> None:
        """Begin without losses, outside a term."""
        self._noted: list[TakenBack] | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note lost slices while the context lasts."""
        self._noted = []
        try:
            yield
        finally:
            self._noted = None

    def note(self, lost: TakenBack) -> None:
        """Note the lost slices of a pod, if a term lasts."""
        if self._noted is not None:
            self._noted.append(lost)

    def taken(self) -> list[TakenBack]:
        """Return the losses noted since the last call."""
        noted = self._noted or []
        if self._noted is not None:
            self._noted = []
        return noted


class Known:
    """Every Node and Pod, with the facts that the decision depends on."""

    def __init__(self, policy: str, changed: Callable[[], None] = lambda: None) -> None:
        """Begin without Nodes and Pods; `policy` is for pods and nodes that name no policy.

        `changed` is called after every change that can affect a decision.
        """
        self._changed = changed
        self._account = ClusterAccount(policy)
        self._nodes = self._account.nodes
        self._scheduling = _Scheduling(self._nodes, self._account.pods)
        self._waiting: dict[str, Pod] = {}
        self._made: dict[str, tuple[NodeAccount, PartitionNode]] = {}  # accounts, and the nodes made of them
        self._elsewhere = Elsewhere(self._nodes, self._scheduling.screening, self._scheduling.used)
        self._conflicts: set[str] = set()
        self._unreadable = Reported()
        self.losses = Losses()

    @property
    def waiting(self) -> Sequence[Pod]:
        """The pods that wait for slices, without pods held back by scheduling gates.

        While a node is partitioned, pods with a misspelt size or MIG profile are included, unless some node offers a
        resource of the misspelt name.
        """
        found = [pod for pod in self._waiting.values() if pod.schedulable]
        if all(pod.request.misspelt is None for pod in found):
            return found
        foreign = {name for node in self._nodes.values() for name, amount in node.allocatable.items() if amount}
        partitioned = self.node_count > 0
        return [
            pod
            for pod in found
            if (misspelt := pod.request.misspelt) is None or (partitioned and misspelt not in foreign)
        ]

    @property
    def node_count(self) -> int:
        """The number of partitioned nodes."""
        return len(self._partitioned())

    @property
    def nodes(self) -> Sequence[PartitionNode]:
        """The partitioned nodes, sorted by name."""
        found = (self._partition_node(name) for name in sorted(self._partitioned()))
        return [node for node in found if node is not None]

    def _partitioned(self) -> list[str]:
        """Return the names of the partitioned nodes."""
        return [name for name, node in self._nodes.items() if node.partitioning is not None]

    def rules(self, now: datetime, patience: float, policy: str, avoided: Container[str] = frozenset()) -> RoundRules:
        """Return the rules of a round at an aware time; see `RoundRules`."""
        offered = self._elsewhere.search(self._accepts, now, patience)
        return RoundRules(self._scheduling.runs_on, self._account.pods, patience, policy, offered, avoided)

    def is_bound(self, uid: str) -> bool:
        """Return whether a pod is bound to a node."""
        pod = self._account.pods.get(uid)
        return pod is not None and pod.node is not None

    def offers_kept(self, node: str, kept: Iterable[KeptSlice]) -> bool:
        """Return whether a node offers kept slices, and no pod holds the slices."""
        found = self._partition_node(node)
        return found is not None and found.offers_kept(kept)

    def node(self, name: str) -> Node:
        """Return a node."""
        return self._nodes[name]

    def put_node(self, node: Node) -> None:
        """Take in the present state of a node."""
        name, before, standing = node.name, self._nodes.get(node.name), self._standing(node.name)
        self._log_unreadable(node)
        if node.partitioning is None:
            self._lose(name, "the node is not partitioned any more")
            self._made.pop(name, None)
        elif node.wanted is None:
            self._lose(name, f"the node's annotation {WANTED_SLICES} is gone, or cannot be read")
        self._account.put_node(node)
        self._scheduling.screening.put(node, before)
        self._elsewhere.put(node)
        conflict = name in self._conflicts
        self._conflicts.discard(name)
        if conflict or self._standing(name) != standing:
            self._changed()

    def _log_unreadable(self, node: Node) -> None:
        """Log an unreadable annotation of a node, once until the problem changes."""
        problems = {GPUS_ANNOTATION: node.unreadable}
        if node.partitioning is not None:
            problems[WANTED_SLICES] = node.wanted_unreadable
        for annotation, problem in problems.items():
            if self._unreadable.is_new((node.name, annotation), problem) and problem is not None:
                _log.warning("node_annotation_unreadable", node=node.name, reason=problem)

    def remove_node(self, gone: Gone) -> None:
        """Forget a Node."""
        self._lose(gone.name, "the node is gone")
        self._made.pop(gone.name, None)
        self._account.remove_node(gone.name)
        self._scheduling.screening.remove(gone.name)
        self._elsewhere.remove(gone.name)
        self._conflicts.discard(gone.name)
        for annotation in (GPUS_ANNOTATION, WANTED_SLICES):
            self._unreadable.forget((gone.name, annotation))
        self._changed()

    def lost(self) -> list[TakenBack]:
        """Return the slices lost since the last call by pods that still wait; see `Losses`."""
        return [each for each in self.losses.taken() if each.uid in self._waiting]

    def _lose(self, name: str, reason: str) -> None:
        """Note the loss of slices kept for waiting pods on a node, in the state known until now."""
        known = self._nodes.get(name)
        if known is None or known.wanted is None or (node := self._partition_node(name)) is None:
            return
        for uid, kept in known.wanted.pods.items():
            if uid in self._waiting:
                self.losses.note(TakenBack.of(self._waiting[uid], node, kept, reason))

    def wrote(self, name: str, before: Node, wanted: Wanted, version: str) -> None:
        """Take in slices written to the node `before`, unless the watch has shown a newer version already."""
        if self.is_as(name, before):
            written = replace(self._nodes[name], wanted=wanted, wanted_unreadable=None, version=version)
            self._account.put_node(written)

    def is_as(self, name: str, before: Node) -> bool:
        """Return whether `before` is still the known version of a node: the watch has shown no other version."""
        known = self._nodes.get(name)
        return known is not None and (known.uid, known.version) == (before.uid, before.version)

    def has_written(self, name: str, before: Node, wanted: Wanted) -> bool:
        """Return whether exactly these slices are wanted of the node `before`, not of a new Node with the same name."""
        known = self._nodes.get(name)
        return known is not None and known.uid == before.uid and known.wanted == wanted

    def conflicted(self, name: str, before: Node) -> None:
        """Record that the API server has a newer version of the node than `before`.

        The newer version counts as a change, whatever the difference: at once if the watch has shown it, or else later.
        """
        if self.is_as(name, before):
            self._conflicts.add(name)
        else:
            self._changed()

    def put_pod(self, found: ApiPod) -> None:
        """Take in the present state of a Pod."""
        pods, uid = self._account.pods, found.metadata.uid
        before = pods.get(uid)
        self._account.put_pod(judged_pod(found))
        after = pods[uid]
        if after is before:
            return
        self._count(before, after)
        if after.waits_for_slices:
            self._waiting[uid] = after
        else:
            self._stop_waiting(uid)
        if after.asks_for_slices or self._makes_room(before, after):
            self._changed()

    def remove_pod(self, gone: Gone) -> None:
        """Forget a Pod."""
        before = self._account.pods.get(gone.uid)
        self._account.remove_pod(gone.uid)
        self._count(before, None)
        self._stop_waiting(gone.uid)
        if (before is not None and before.asks_for_slices) or self._makes_room(before):
            self._changed()

    def _accepts(self, pod: Pod, node: str) -> bool:
        """Return whether the account of a node has room for a pod on the GPUs that the pod accepts.

        A node with an unreadable record accepts no pod: the GPUs of the node are unknown.
        """
        readable = self._nodes[node].unreadable is None
        return readable and isinstance(self._account.fits(pod.request, (node,), pod.owner)[node], Fit)

    def _stop_waiting(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._elsewhere.forget(uid)

    def _count(self, before: Pod | None, after: Pod | None) -> None:
        """Count the changed demand of a pod, and count the free existing slices of its node again."""
        self._scheduling.count(before, after)
        for pod in (before, after):
            if pod is not None and pod.node is not None:
                self._elsewhere.recount(pod.node)

    def _makes_room(self, *pods: Pod | None) -> bool:
        """Return whether changed pods without slices can affect decisions: other pods wait, and the node has slices."""
        return bool(self._waiting) and any(pod is not None and self._has_slices(pod.node) for pod in pods)

    def _has_slices(self, name: str | None) -> bool:
        node = self._nodes.get(name) if name is not None else None
        return node is not None and (node.partitioning is not None or self._elsewhere.has(node.name))

    def _standing(self, name: str) -> Node | None:
        """Return a node without facts that affect no decision; None if it is not partitioned and offers no slices."""
        return replace(self._nodes[name], version="", wanted_unreadable=None) if self._has_slices(name) else None

    def _partition_node(self, name: str) -> PartitionNode | None:
        """Return a node for the decision, None for a node that is not partitioned.

        The object stays the same until the node, or a pod on the node, changes.
        """
        known = self._nodes.get(name)
        if known is None or known.partitioning is None:
            return None
        account, made = self._account.account_of(name), self._made.get(name)
        # An account never changes; a new account takes its place.
        if made is not None and made[0] is account:
            return made[1]
        if (node := partition_node_of(account)) is not None:
            self._made[name] = account, node
        return node
