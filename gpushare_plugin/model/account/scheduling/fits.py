"""Whether a node can take a pod: the same verdicts as those of kube-scheduler, in the same order.

Judged are cordons, taints, node selector and required node affinity, host ports, and everything that pods request: CPU,
memory, ephemeral storage, the number of pods, huge pages and extended resources. That is what its plugins
NodeUnschedulable, NodeName, TaintToleration, NodeAffinity, NodePorts and NodeResourcesFit do in their default
configuration. Verdicts of kube-scheduler 1.36 are recorded, and tests compare ours with them.

Not judged are: topology spread, affinity and anti-affinity between pods, volumes (binding, zones, limits of a node),
claims and device classes of dynamic resource allocation, features that a node has to declare, pod groups, affinity or
ignored resources in the configuration of a scheduler, plugins of others, and extenders. Preferences (scores) and
preemption decide between nodes, not whether one can take a pod.
"""

from collections.abc import Collection, Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from weakref import WeakKeyDictionary

from gpushare_plugin.foundation.text import some_of
from gpushare_plugin.model.account.node import Node
from gpushare_plugin.model.account.pod import Pod
from gpushare_plugin.model.account.scheduling.constraints import Constraints
from gpushare_plugin.model.account.scheduling.demand import Demand, taken_ports
from gpushare_plugin.model.account.scheduling.refusal import Refusal, Shortage
from gpushare_plugin.model.account.scheduling.taint import CORDON, Taint

_SHOWN = 8
"""Ports and resources that a reason names."""

_MOST_KEPT = 1024
"""Different constraints for which a screening keeps the nodes that admit them."""


def refusal(pod: Pod, node: Node, used: Demand, without: Collection[str] = frozenset()) -> Refusal | None:
    """Return why a node cannot take a pod, None where it can.

    `used` is what the pods of the node take. The resources `without` are not looked at: slices that are still to be
    made. Scheduling gates are not judged here, they concern no node: see `Pod.schedulable`.
    """
    if pod.node not in {None, node.name}:
        return Refusal("bound", f"the pod is on node {pod.node}")
    return unmet(pod.requirements.constraints, node) or lack(pod.requirements.demand, node, used, without)


def unmet(constraints: Constraints, node: Node) -> Refusal | None:
    """Return what keeps pods with these constraints away from a node, whatever is free there; None for nothing."""
    if admits(constraints, node):
        return None
    if node.unschedulable and not constraints.tolerates(CORDON):
        return Refusal("cordon", "the node is cordoned")
    taints = [str(taint) for taint in node.taints if taint.keeps_away and not constraints.tolerates(taint)]
    if taints:
        return Refusal("taint", f"not tolerated: taint{'s' * (len(taints) > 1)} {', '.join(taints)}")
    return Refusal("affinity", constraints.unmet(node.name, node.labels))


def lack(demand: Demand, node: Node, used: Demand, without: Collection[str] = frozenset()) -> Refusal | None:
    """Return which host port is taken or which resources are missing, None where there is room; see `refusal`."""
    if has_room(demand, node, used, without):
        return None
    if taken := taken_ports(demand.ports, used.ports):
        return Refusal("port", f"host port{'s' * (len(taken) > 1)} taken: {some_of(taken, _SHOWN, str)}")
    missing = tuple(
        Shortage(name, asked, free)
        for name, asked in sorted(demand.resources.items())
        if name not in without and asked > (free := node.allocatable.get(name, 0) - used.resources.get(name, 0))
    )
    return Refusal("resources", some_of(missing, _SHOWN, str, "; "), missing)


def has_room(demand: Demand, node: Node, used: Demand, without: Collection[str] = frozenset()) -> bool:
    """Return whether a node has the host ports and resources that a pod demands; see `refusal`.

    Plain loops: thousands of nodes are asked for each of hundreds of pods.
    """
    allocatable, taken = node.allocatable, used.resources
    for name, asked in demand.resources.items():
        if asked > allocatable.get(name, 0) - taken.get(name, 0) and name not in without:
            return False
    return not (demand.ports and used.ports and taken_ports(demand.ports, used.ports))


def admits(constraints: Constraints, node: Node) -> bool:
    """Return whether nothing keeps pods with these constraints away from a node; `unmet` says what does."""
    if node.unschedulable and not constraints.tolerates(CORDON):
        return False
    for taint in node.taints:
        if taint.keeps_away and not constraints.tolerates(taint):
            return False
    return constraints.met_by(node.name, node.labels)


class Screening:
    """Which nodes admit pods with which constraints, kept as nodes come, change and go.

    A verdict is found once for all pods with equal constraints, and again only for a node whose labels, taints or
    cordon have changed.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        """Screen these nodes: those that are in the mapping when they are asked about."""
        self._nodes = nodes
        self._admitting: MutableMapping[Constraints, set[str]] = WeakKeyDictionary()
        """For as long as there are pods with the constraints."""

    def put(self, node: Node, before: Node | None) -> None:
        """Take note of a node that is new, or was another one `before`."""
        if before is not None and _screened(before) == _screened(node):
            return
        for constraints, admitting in self._admitting.items():
            if admits(constraints, node):
                admitting.add(node.name)
            else:
                admitting.discard(node.name)

    def remove(self, name: str) -> None:
        """Forget a node that is gone."""
        for admitting in self._admitting.values():
            admitting.discard(name)

    def admitting(self, constraints: Constraints) -> AbstractSet[str]:
        """Return the names of the nodes that pods with these constraints can go to where there is room."""
        found = self._admitting.get(constraints)
        if found is None:
            if len(self._admitting) >= _MOST_KEPT:
                del self._admitting[next(iter(self._admitting))]
            found = {name for name, node in self._nodes.items() if admits(constraints, node)}
            self._admitting[constraints] = found
        return found


def _screened(node: Node) -> tuple[Mapping[str, str], tuple[Taint, ...], bool]:
    """Return what constraints are about."""
    return node.labels, node.taints, node.unschedulable
