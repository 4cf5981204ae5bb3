"""What kube-scheduler is answered from the account alone: filter, prioritize and preempt."""

from collections.abc import Mapping
from typing import NamedTuple

from gpushare_plugin.adapters.cluster.accounts import account_pod
from gpushare_plugin.model.account.cluster import ClusterAccount
from gpushare_plugin.model.account.verdicts import Fit, Misfit
from gpushare_plugin.programs.scheduler.protocol import (
    Arguments,
    FilterResult,
    HostPriority,
    MetaPod,
    MetaVictims,
    NodeObject,
    NodeObjects,
    PreemptionArguments,
    PreemptionResult,
    node_names,
)


def filter_nodes(account: ClusterAccount, asked: Arguments) -> FilterResult:
    """Return the nodes where a pod fits on a GPU, and why it fits on none of the others.

    A pod that asks for nothing of ours fits everywhere.
    """
    objects: dict[str, NodeObject] = dict(node_names(asked.nodes)) if asked.nodes is not None else {}
    names = asked.node_names if asked.node_names is not None else list(objects)
    fitting = names
    reasons = _Reasons({}, {})
    pod = account_pod(asked.pod)
    if account.concerns(pod.request):
        verdicts = account.fits(pod.request, names, pod.owner)
        fitting = [name for name in names if isinstance(verdicts[name], Fit)]
        if len(fitting) < len(names):
            reasons = _reasons(verdicts)
    as_names = asked.node_names is not None
    return FilterResult(
        nodes=None if as_names else NodeObjects(items=[objects[name] for name in fitting]),
        node_names=fitting if as_names else None,
        failed_nodes=reasons.curable,
        failed_and_unresolvable_nodes=reasons.incurable,
    )


class _Reasons(NamedTuple):
    """Why nodes do not fit, by name: those where other pods could make room, and those where that would not help."""

    curable: dict[str, str]
    incurable: dict[str, str]


def _reasons(verdicts: Mapping[str, Fit | Misfit]) -> _Reasons:
    """Return why nodes do not fit.

    kube-scheduler counts nodes with the same reason, so it has no numbers of the node; `gpushare explain` shows them.
    """
    reasons = _Reasons({}, {})
    for name, verdict in verdicts.items():
        if isinstance(verdict, Misfit):
            (reasons.curable if verdict.curable else reasons.incurable)[name] = verdict.summary
    return reasons


def prioritize(account: ClusterAccount, asked: Arguments) -> list[HostPriority]:
    """Return the scores of nodes for a pod; all are 0 where it asks for nothing of ours."""
    names = asked.node_names
    if names is None:
        names = [name for name, _ in node_names(asked.nodes or NodeObjects())]
    pod = account_pod(asked.pod)
    if not account.concerns(pod.request):
        return [HostPriority(host=name, score=0) for name in names]
    verdicts = account.fits(pod.request, names, pod.owner)
    return [
        HostPriority(host=name, score=verdict.score if isinstance(verdict := verdicts[name], Fit) else 0)
        for name in names
    ]


def preempt(account: ClusterAccount, asked: PreemptionArguments) -> PreemptionResult:
    """Return, of the nodes that kube-scheduler could free, those where the pod then fits on a GPU, and whom to evict.

    kube-scheduler's victims free the sum of a node, perhaps a little on each GPU. Where they are not enough, pods of
    one GPU are chosen among all of the node with a lower priority.
    """
    pod = account_pod(asked.pod)
    if not account.concerns(pod.request):
        return PreemptionResult(node_name_to_meta_victims=asked.victims)
    found: dict[str, MetaVictims] = {}
    for node, victims in asked.victims.items():
        proposed = [each.uid for each in victims.pods or ()]
        # The others of lower priority come after those that kube-scheduler proposes.
        others = (each.uid for each in account.node(node).pods if each.priority < pod.priority)
        lower = list(dict.fromkeys((*proposed, *others)))
        if (needed := account.victims(pod.request, node, lower, pod.owner)) is None:
            continue
        # What kube-scheduler frees beside GPUs, such as memory, needs its victims too.
        uids = tuple(dict.fromkeys((*proposed, *needed)))
        found[node] = MetaVictims(
            pods=tuple(MetaPod(uid=uid) for uid in uids), num_pdb_violations=victims.num_pdb_violations
        )
    return PreemptionResult(node_name_to_meta_victims=found)
