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

from collections.abc import Collection, Iterable

from gpushare_plugin.model.scheduling.constraints import Constraints
from gpushare_plugin.model.scheduling.demand import Demand
from gpushare_plugin.model.scheduling.node import CORDON, SchedulingNode
from gpushare_plugin.model.scheduling.pod import SchedulingPod
from gpushare_plugin.model.scheduling.refusal import Refusal, Shortage

_MOST_KEPT = 1024


def refusal(
    pod: SchedulingPod, node: SchedulingNode, used: Demand, without: Collection[str] = frozenset()
) -> Refusal | None:
    """Return why a node cannot take a pod, None where it can.

    `used` is what the pods of the node take. The resources `without` are not looked at: slices that are still to be
    made. Scheduling gates are not judged here, they concern no node: see `SchedulingPod.schedulable`.
    """
    if pod.node not in {None, node.name}:
        return Refusal("bound", f"the pod is on node {pod.node}")
    return unmet(pod.constraints, node) or lack(pod.demand, node, used, without)


def unmet(constraints: Constraints, node: SchedulingNode) -> Refusal | None:
    """Return what keeps pods with these constraints away from a node, whatever is free there; None for nothing."""
    if node.unschedulable and not constraints.tolerates(CORDON):
        return Refusal("cordon", "the node is cordoned")
    taints = [str(taint) for taint in node.taints if taint.keeps_away and not constraints.tolerates(taint)]
    if taints:
        return Refusal("taint", f"not tolerated: taint{'s' * (len(taints) > 1)} {', '.join(taints)}")
    words = constraints.unmet(node.name, node.labels)
    return None if words is None else Refusal("affinity", words)


def lack(demand: Demand, node: SchedulingNode, used: Demand, without: Collection[str] = frozenset()) -> Refusal | None:
    """Return which host port is taken or which resources are missing, None where there is room; see `refusal`."""
    if has_room(demand, node, used, without):
        return None
    taken = sorted({port.port for port in demand.ports if any(map(port.collides, used.ports))})
    if taken:
        return Refusal("port", f"host port{'s' * (len(taken) > 1)} taken: {', '.join(map(str, taken))}")
    missing = tuple(
        Shortage(name, asked, free)
        for name, asked in sorted(demand.resources.items())
        if name not in without and asked > (free := node.allocatable.get(name, 0) - used.resources.get(name, 0))
    )
    return Refusal("resources", "; ".join(map(str, missing)), missing)


def has_room(demand: Demand, node: SchedulingNode, used: Demand, without: Collection[str] = frozenset()) -> bool:
    """Return whether a node has the host ports and resources that a pod demands; see `refusal`.

    Plain loops: thousands of nodes are asked for each of hundreds of pods.
    """
    allocatable, taken = node.allocatable, used.resources
    for name, asked in demand.resources.items():
        if asked > allocatable.get(name, 0) - taken.get(name, 0) and name not in without:
            return False
    if demand.ports and used.ports:
        return not any(port.collides(other) for port in demand.ports for other in used.ports)
    return True


class Screening:
    """Which nodes can take pods with which constraints; a verdict is found once, until the node is another object."""

    def __init__(self) -> None:
        """Know of no node yet."""
        self._verdicts: dict[str, tuple[SchedulingNode, dict[Constraints, Refusal | None]]] = {}

    def unmet(self, constraints: Constraints, node: SchedulingNode) -> Refusal | None:
        """Return what `unmet` returns."""
        of, verdicts = self._verdicts.get(node.name, (None, {}))
        if of is not node or len(verdicts) >= _MOST_KEPT:
            verdicts = {}
            self._verdicts[node.name] = node, verdicts
        try:
            return verdicts[constraints]
        except KeyError:
            verdict = verdicts[constraints] = unmet(constraints, node)
            return verdict

    def admitting(self, constraints: Constraints, nodes: Iterable[SchedulingNode]) -> list[SchedulingNode]:
        """Return the nodes, of those given, that pods with these constraints can go to where there is room."""
        return [node for node in nodes if self.unmet(constraints, node) is None]

    def forget(self, node: str) -> None:
        """Forget a node that is gone."""
        self._verdicts.pop(node, None)
