"""The answers to kube-scheduler from the account alone: filter, prioritize and preempt."""

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpushare_plugin.base.text import visible
from gpushare_plugin.extender.learning import Learning
from gpushare_plugin.extender.protocol import (
    Arguments,
    FilterResult,
    HostPriority,
    MetaPod,
    MetaVictims,
    NodeObjects,
    PreemptionArguments,
    PreemptionResult,
    node_names,
)
from gpushare_plugin.kube.pods import pod_of, request_of
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.disruption import Disruptions
from gpushare_plugin.ledger.packed import NO_SCORE, PackedCluster
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.verdicts import FITS, Fit, Misfit, Verdict
from gpushare_plugin.ledger.victims import MOST_TRIED, EvictionCosts, VictimCandidates


def asks_for_nothing(asked: Arguments) -> bool:
    """Return whether a pod asks for no extended resource at all, and so needs no account, whatever nodes offer."""
    request = request_of(asked.pod)
    return not request.amounts and not request.unreadable


def every_node(asked: Arguments) -> FilterResult:
    """Return all nodes as fitting."""
    return FilterResult(nodes=asked.nodes if asked.node_names is None else None, node_names=asked.node_names)


def filter_nodes(
    account: ClusterAccount, asked: Arguments, learning: Learning | None = None, *, exact: bool = False
) -> FilterResult:
    """Return the nodes where a pod fits on a GPU, and for each remaining node the reason why not.

    A pod without a request for a resource of the account fits on every node. `learning` is there where `packing` is the
    default policy, and takes note of the pod. With `exact`, only the nodes are returned where the pod loses least.
    """
    pod = pod_of(asked.pod, measured=learning is not None)
    if not account.concerns(pod.request):
        return every_node(asked)
    objects = None if asked.node_names is not None else dict(node_names(asked.nodes))
    names = list(objects) if objects is not None else asked.node_names or []
    sorted_out = _sort_out(names, _verdicts(account, pod, names))
    if learning is not None:
        learning.see(pod)
        sorted_out = _only_best(sorted_out, pod, learning.packed) if exact else sorted_out
    if objects is not None:
        nodes, node_names_ = NodeObjects(items=[objects[name] for name in sorted_out.fitting]), None
    else:
        nodes, node_names_ = None, sorted_out.fitting
    return FilterResult(
        nodes=nodes,
        node_names=node_names_,
        failed_nodes=sorted_out.curable,
        failed_and_unresolvable_nodes=sorted_out.incurable,
    )


def _verdicts(account: ClusterAccount, pod: Pod, names: Sequence[str]) -> Mapping[str, Verdict]:
    """Return the verdict of each named node on a pod; nodes beyond `names` can be among the keys.

    A pod with an unanswered Binding may be bound to the reserved node, now or later. The pod therefore fits on the
    reserved node only.
    """
    if (reserved := account.reservation(pod.uid)) is None:
        return account.fits_pod(pod, names)
    elsewhere = Misfit(f"the pod is being bound to node {reserved.node}", curable=False)
    return {name: FITS[-1] if name == reserved.node else elsewhere for name in names}


class _Sorted(NamedTuple):
    """The nodes of a request, sorted by their verdicts."""

    fitting: list[str]
    """The names of the nodes where the pod fits."""
    curable: dict[str, str]
    """The reason by node, for nodes where evicting pods could make room."""
    incurable: dict[str, str]
    """The reason by node, for nodes where evicting pods cannot make room."""


def _sort_out(names: Iterable[str], verdicts: Mapping[str, Verdict]) -> _Sorted:
    """Return the nodes that fit, and a reason for each remaining node.

    kube-scheduler counts nodes with the same reason. A reason therefore has no numbers of its node; `gpushare explain`
    shows the numbers.
    """
    fitting: list[str] = []
    curable: dict[str, str] = {}
    incurable: dict[str, str] = {}
    for name in names:
        verdict = verdicts[name]
        if isinstance(verdict, Fit):
            fitting.append(name)
        else:
            (curable if verdict.curable else incurable)[name] = visible(verdict.summary)
    return _Sorted(fitting, curable, incurable)


WASTES_MORE = "has room, and another node wastes less of its GPUs"
"""The reason why a node with room is not returned."""


def _only_best(found: _Sorted, pod: Pod, packed: PackedCluster) -> _Sorted:
    """Return only the fitting nodes where a pod loses least; no eviction of pods makes another node better."""
    kept = packed.best(pod, found.fitting)
    others = dict.fromkeys(found.fitting, WASTES_MORE)
    for name in kept:
        del others[name]
    return _Sorted(kept, found.curable, {**found.incurable, **others})


def prioritize(account: ClusterAccount, asked: Arguments, packed: PackedCluster | None = None) -> list[HostPriority]:
    """Return the scores of nodes for a pod: all 0 for a pod without a request for a resource of the account.

    `packed` is there where `packing` is the default policy.
    """
    names = _names(asked)
    pod = pod_of(asked.pod, measured=packed is not None)
    if not account.concerns(pod.request):
        return [HostPriority(name, 0) for name in names]
    verdicts = _verdicts(account, pod, names)
    found = [verdicts[name] for name in names]
    scores = [each.score for each in found]
    if packed is not None:
        known = packed.scores(pod, names, [isinstance(each, Fit) for each in found])
        scores = [score if said == NO_SCORE else said for score, said in zip(scores, known, strict=True)]
    return list(map(HostPriority, names, scores))


def prioritize_others(
    account: ClusterAccount, asked: Arguments, packed: PackedCluster | None = None
) -> list[HostPriority]:
    """Return the scores of nodes for a pod without GPUs, by the policy `packing`.

    The nodes have room for the pod: kube-scheduler asks about no other nodes. All scores are 0 for pods that
    `prioritize` scores.
    """
    names = _names(asked)
    pod = pod_of(asked.pod, measured=packed is not None)
    if packed is None or account.concerns(pod.request):
        return [HostPriority(name, 0) for name in names]
    return list(map(HostPriority, names, [max(0, score) for score in packed.scores(pod, names)]))


def _names(asked: Arguments) -> list[str]:
    return asked.node_names if asked.node_names is not None else [name for name, _ in node_names(asked.nodes)]


MOST_TRIED_TOGETHER = 16_384
"""The most sets of pods to try for a preemption, on all nodes together."""


async def preempt(account: ClusterAccount, disruptions: Disruptions, asked: PreemptionArguments) -> PreemptionResult:
    """Return the proposed nodes where the pod fits on a GPU after evictions, and the pods to evict there.

    kube-scheduler's victims free the sum of a node, perhaps a little on each GPU. Victims that free enough units of a
    GPU stay unchanged; otherwise the fewest further pods are added. Violations of disruption budgets are counted anew.
    If the budgets cannot be read, kube-scheduler's own number stays.

    The event loop answers waiting requests between two nodes, because kube-scheduler can propose hundreds of nodes and
    some nodes take milliseconds.
    """
    pod = pod_of(asked.pod)
    if not account.concerns(pod.request):
        return PreemptionResult(node_name_to_meta_victims=asked.victims)
    most = min(MOST_TRIED, MOST_TRIED_TOGETHER // max(1, len(asked.victims)))
    costs, pods = disruptions.costs, account.pods
    found: dict[str, MetaVictims] = {}
    for node, proposed in asked.victims.items():
        await asyncio.sleep(0)
        uids = dict.fromkeys(each.uid for each in proposed.pods or ())
        candidates = VictimCandidates(
            certain=[each for uid in uids if (each := pods.get(uid)) is not None and _is_on(account, each, node)],
            others=[
                each for each in account.account_of(node).pods if each.priority < pod.priority and each.uid not in uids
            ],
            ahead=account.ahead_of(pod, node),
            costs=costs,
            most=most,
        )
        if (needed := account.victims(pod, node, candidates)) is not None:
            evicted = [*candidates.certain, *needed]
            violations = costs.violations(evicted) if disruptions.counts(evicted) else proposed.num_pdb_violations
            ranked = _most_important_first(uids, evicted, costs)
            found[node] = MetaVictims(pods=ranked, num_pdb_violations=violations)
    return PreemptionResult(node_name_to_meta_victims=found)


def _is_on(account: ClusterAccount, pod: Pod, node: str) -> bool:
    """Return whether a pod is on a node or being bound to the node: any client of the port may name pods elsewhere."""
    reservation = account.reservation(pod.uid)
    return node == (reservation.node if reservation is not None else pod.node)


def _most_important_first(proposed: Iterable[str], known: Iterable[Pod], costs: EvictionCosts) -> tuple[MetaPod, ...]:
    """Return victims, the most important first: kube-scheduler ranks nodes by the first victim.

    Pods known to kube-scheduler and not yet to the account come before all known pods.
    """
    ranks = {each.uid: costs.importance(each) for each in known}
    uids = dict.fromkeys((*proposed, *ranks))
    return tuple([MetaPod(uid=uid) for uid in sorted(uids, key=lambda uid: ranks.get(uid, _UNKNOWN), reverse=True)])


_UNKNOWN = (math.inf,)
"""The importance of a pod unknown to the account: above every known pod."""
