"""The checks before a Binding, apart from GPUs: the pod waits for a node, and may go to the node.

kube-scheduler has already made the same checks. Any further client of the port must not get more pods bound than
kube-scheduler would bind: a Binding passes over node selectors, affinity, taints and cordons.
"""

from collections.abc import Collection

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.text import some_of
from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.kube.nodes import judged_node
from gpushare_plugin.kube.objects import ApiNode, ApiPod
from gpushare_plugin.kube.pods import constraints_of
from gpushare_plugin.ledger.constraints import DEFAULT_SCHEDULER
from gpushare_plugin.ledger.kube_scheduler import constraints_refusal
from gpushare_plugin.ledger.pod import Pod

_SHOWN = 3
"""The most scheduling gates in a message."""
_LONGEST = 64
"""The most characters that a message repeats of a name written by a tenant."""

NOT_MANAGED = (
    "asks for nothing that this extender manages; expected a resource of GPUs, such as aliyun.com/gpu-mem: name only "
    "these in managedResources of the extender in the KubeSchedulerConfiguration, so that kube-scheduler binds other "
    "pods itself"
)
"""The refusal of a pod without a request for GPUs, to follow the name of the pod."""


def check_identity(asked: ObjectIdentity, found: ApiPod | None) -> ApiPod:
    """Return the pod found under the requested name; raises PlacementError for no pod or a different UID."""
    if found is None:
        raise PlacementError(f"{asked} does not exist any more")
    if found.metadata.uid != asked.uid:
        raise PlacementError(
            f"{asked} has the UID {found.metadata.uid}, and the request has {asked.uid[:_LONGEST]!r}; expected the UID "
            "of the pod: the one that was meant does not exist any more"
        )
    return found


def check_waits(pod: Pod, found: ApiPod, schedulers: Collection[str]) -> None:
    """Raise PlacementError unless a pod waits for one of `schedulers`; empty `schedulers` stand for any scheduler."""
    gates = found.spec.scheduling_gates
    if pod.ended:
        why = "has ended"
    elif pod.ending:
        why = "is being deleted"
    elif pod.node is not None:
        why = f"is already bound to node {pod.node}"
    elif gates:
        why = f"has scheduling gates ({some_of(gates, _SHOWN, lambda gate: repr(gate.name[:_LONGEST]))})"
    else:
        _check_scheduler(pod, found.spec.scheduler_name or DEFAULT_SCHEDULER, schedulers)
        return
    raise PlacementError(f"pod {pod.label} {why}; expected a pod that waits for a node: only such pods are bound")


def _check_scheduler(pod: Pod, scheduler: str, schedulers: Collection[str]) -> None:
    if schedulers and scheduler not in schedulers:
        raise PlacementError(
            f"pod {pod.label} has schedulerName {scheduler[:_LONGEST]!r}; expected {' or '.join(sorted(schedulers))}: "
            "name every scheduler that asks this extender in --scheduler-names"
        )


def check_place(pod: Pod, found: ApiPod, name: str, node: ApiNode | None) -> None:
    """Raise PlacementError for a missing node, or a node that the rules of the pod or of the node forbid."""
    if node is None:
        raise PlacementError(
            f"node {name} does not exist any more; expected a node of this cluster: kube-scheduler tries again"
        )
    if (refusal := constraints_refusal(constraints_of(found), judged_node(node))) is not None:
        raise PlacementError(
            f"pod {pod.label} may not go to node {name}: {refusal.summary}; expected a node that the pod's node "
            "selector, node affinity and tolerations allow: kube-scheduler tries again"
        )
