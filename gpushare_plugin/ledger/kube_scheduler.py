"""The decision on whether a node can take a pod: the verdicts of kube-scheduler, in the same order.

The module judges cordons, taints, node selector and required node affinity, host ports, and all requested resources:
CPU, memory, ephemeral storage, the number of pods, huge pages and extended resources. kube-scheduler's plugins
NodeUnschedulable, NodeName, TaintToleration, NodeAffinity, NodePorts and NodeResourcesFit judge the same, in their
default configuration. Tests compare the verdicts with recorded verdicts of kube-scheduler 1.36.

The module does not judge topology spread, affinity and anti-affinity between pods, volumes (binding, zones, limits of a
node), claims and device classes of dynamic resource allocation, features to be declared by a node, pod groups, affinity
or ignored resources in the configuration of a scheduler, third-party plugins, and extenders. Preferences (scores) and
preemption decide between nodes, not on whether a node can take a pod.
"""

from collections.abc import Collection, Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from weakref import WeakKeyDictionary

from gpushare_plugin.base.text import some_of
from gpushare_plugin.ledger.constraints import Constraints
from gpushare_plugin.ledger.demand import CPU, Demand, taken_ports
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.refusal import Refusal, Shortage
from gpushare_plugin.ledger.taint import CORDON, Taint

_SHOWN = 8
"""The most ports or resources named in a reason."""

_IN_BYTES = ("memory", "ephemeral-storage", "hugepages-")
_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")

_MOST_KEPT = 1024
"""The most different constraints for which a screening keeps the admitting nodes."""


def refusal(pod: Pod, node: Node, used: Demand, without: Collection[str] = frozenset()) -> Refusal | None:
    """Return why a node cannot take a pod; None if the node can.

    `used` is the demand of the pods of the node. The resources `without` are not judged: slices still to be made.
    Scheduling gates concern no node and are not judged either: see `Pod.schedulable`.
    """
    if pod.node not in {None, node.name}:
        return Refusal("bound", f"the pod is on node {pod.node}")
    return constraints_refusal(pod.needs.constraints, node) or room_refusal(pod.needs.demand, node, used, without)


def reasons_beside_room(pod: Pod, node: Node) -> tuple[str, ...]:
    """Return why a node takes no pod like this, whatever is free: the node is not ready, or does not admit the pod."""
    unready = () if node.ready else ("the node is not ready",)
    refusal = constraints_refusal(pod.needs.constraints, node)
    return unready if refusal is None else (*unready, refusal.summary)


def constraints_refusal(constraints: Constraints, node: Node) -> Refusal | None:
    """Return why a node does not admit pods with given constraints, free resources aside; None if admitted."""
    if admits(constraints, node):
        return None
    if node.unschedulable and not constraints.tolerates(CORDON):
        return Refusal("cordon", "the node is cordoned")
    taints = [str(taint) for taint in node.taints if taint.keeps_away and not constraints.tolerates(taint)]
    if taints:
        return Refusal("taint", f"not tolerated: taint{'s' * (len(taints) > 1)} {', '.join(taints)}")
    return Refusal("affinity", constraints.unmet(node.name, node.labels))


def room_refusal(demand: Demand, node: Node, used: Demand, without: Collection[str] = frozenset()) -> Refusal | None:
    """Return a refusal with the taken host ports or missing resources; None for enough room; see `refusal`."""
    if has_room(demand, node, used, without):
        return None
    if taken := taken_ports(demand.ports, used.ports):
        return Refusal("port", f"host port{'s' * (len(taken) > 1)} taken: {some_of(taken, _SHOWN, str)}")
    missing = tuple(
        _shortage(name, asked, free)
        for name, asked in sorted(demand.resources.items())
        if name not in without and asked > (free := node.allocatable.get(name, 0) - used.resources.get(name, 0))
    )
    return Refusal("resources", some_of(missing, _SHOWN, lambda each: each.text, "; "), missing)


def _shortage(resource: str, asked: int, free: int) -> Shortage:
    text = f"{resource}: {written(resource, asked)} asked, {written(resource, free)} free"
    return Shortage(resource, free, asked - free, text)


def written(resource: str, amount: int) -> str:
    """Return an amount for people, without rounding: `2.5` of CPU, `512Mi` of memory."""
    if resource == CPU:
        return f"{amount / 1000:.3f}".rstrip("0").rstrip(".")
    if not amount or not resource.startswith(_IN_BYTES):
        return str(amount)
    for suffix in _SUFFIXES:
        if amount % 1024:
            return f"{amount}{suffix}"
        amount //= 1024
    return f"{amount * 1024}{_SUFFIXES[-1]}"


def has_room(demand: Demand, node: Node, used: Demand, without: Collection[str] = frozenset()) -> bool:
    """Return whether a node has the host ports and resources demanded by a pod; see `refusal`.

    Plain loops for speed: called with thousands of nodes for each of hundreds of pods.
    """
    allocatable, taken = node.allocatable, used.resources
    for name, asked in demand.resources.items():
        if asked > allocatable.get(name, 0) - taken.get(name, 0) and name not in without:
            return False
    return not (demand.ports and used.ports and taken_ports(demand.ports, used.ports))


def admits(constraints: Constraints, node: Node) -> bool:
    """Return whether a node admits pods with given constraints; `constraints_refusal` returns the reason if not."""
    if node.unschedulable and not constraints.tolerates(CORDON):
        return False
    for taint in node.taints:
        if taint.keeps_away and not constraints.tolerates(taint):
            return False
    return constraints.met_by(node.name, node.labels)


class Screening:
    """The nodes that admit pods, by constraints, kept up to date when nodes come, change and go.

    A verdict is computed once for all pods with equal constraints, and again only for a node with changed labels,
    taints or cordon.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        """Screen the nodes of a mapping, which may change."""
        self._nodes = nodes
        self._admitting: MutableMapping[Constraints, set[str]] = WeakKeyDictionary()
        """The names of admitting nodes by constraints, kept while pods with the constraints exist."""

    def put(self, node: Node, before: Node | None) -> None:
        """Note a new node, or a changed node with the state `before`."""
        if before is not None and _screened(before) == _screened(node):
            return
        for constraints, admitting in self._admitting.items():
            if admits(constraints, node):
                admitting.add(node.name)
            else:
                admitting.discard(node.name)

    def remove(self, name: str) -> None:
        """Forget a removed node."""
        for admitting in self._admitting.values():
            admitting.discard(name)

    def admitting(self, constraints: Constraints) -> AbstractSet[str]:
        """Return the names of the nodes that admit pods with given constraints, free resources aside."""
        found = self._admitting.get(constraints)
        if found is None:
            if len(self._admitting) >= _MOST_KEPT:
                del self._admitting[next(iter(self._admitting))]
            found = {name for name, node in self._nodes.items() if admits(constraints, node)}
            self._admitting[constraints] = found
        return found


def _screened(node: Node) -> tuple[Mapping[str, str], tuple[Taint, ...], bool]:
    """Return the properties of a node that constraints judge."""
    return node.labels, node.taints, node.unschedulable
