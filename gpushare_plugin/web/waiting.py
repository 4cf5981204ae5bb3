"""Pods that wait for GPUs: which a viewer may see, in which order, and why each of them waits."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.base.text import nearest
from gpushare_plugin.kube.whole_cluster.waiting import WaitingPod
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.node import ALWAYS_OURS
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.standing import ExtenderStanding
from gpushare_plugin.ledger.verdicts import Fit
from gpushare_plugin.observe.cluster.explanation import Explanation, GpuVerdict, NodeVerdict, Told, explain_in_steps
from gpushare_plugin.observe.cluster.report import waiting_uses
from gpushare_plugin.observe.cluster.slices import kept_where
from gpushare_plugin.observe.cluster.verdict import with_verdict
from gpushare_plugin.partition.conversion import partition_node_of
from gpushare_plugin.web.tiles import OTHERS
from gpushare_plugin.web.viewer import Viewer

_STEPS = 16
"""Steps of an explanation before other tasks have a turn."""


class WaitingPods(Struct, frozen=True):
    """The pods that wait for GPUs."""

    seen: tuple[WaitingPod, ...]
    """Those that the viewer may see, the oldest first."""
    others: int
    """The number of those in namespaces that the viewer may not see."""


def waiting_pods(account: ClusterAccount, pods: Iterable[WaitingPod], viewer: Viewer) -> WaitingPods:
    """Return the pods among `pods` that wait for units, slices or claims, for a viewer.

    Pods with a name that no node offers count, too, where gpushare serves other names of the same domain.
    """
    domains = {_domain(name) for node in account.nodes.values() for name in node.offers}.union(
        map(_domain, ALWAYS_OURS)
    )
    found = [each for each in pods if each.waits_for_gpus(account) or _asks_of(each.pod, domains)]
    seen = sorted(
        (each for each in found if viewer.sees(each.pod.namespace)), key=lambda each: (each.pod.created, each.pod.label)
    )
    return WaitingPods(tuple(seen), len(found) - len(seen))


def _asks_of(pod: Pod, domains: AbstractSet[str]) -> bool:
    return not domains.isdisjoint(map(_domain, pod.request.amounts))


def _domain(resource: str) -> str:
    return resource.partition("/")[0]


def asked(waiting: WaitingPod) -> str:
    """Return what a pod asks for, in words."""
    amounts = [f"{amount} {name}" for name, amount in waiting.pod.request.amounts.items()]
    return ", ".join([*amounts, *(f"claim {name}" for name in waiting.claims)])


def verdict(account: ClusterAccount, waiting: WaitingPod, now: datetime) -> str:
    """Return in a sentence why a pod waits, with the causes that `gpushare explain` tells."""
    return next(_verdicts(account, waiting, now))


def _verdicts(account: ClusterAccount, waiting: WaitingPod, now: datetime) -> Iterator[str]:
    """Yield why a pod waits, one sentence at least; the first sentence outweighs all others."""
    pod, said = waiting.pod, waiting.reasons
    if pod.ending:
        yield "The pod is being deleted"
    if pod.gates:
        yield said[0]
    if pod.request.problem:
        yield f"No node can take the pod: {pod.request.problem}"
    for sentence in slice_sentences(account, pod, now):
        yield f"Automatic partitioning: {sentence}"
    yield from _unoffered(account, pod)
    if account.concerns(pod.request):
        yield from _of_gpus(account, pod, said)
    yield said[0] if said else "The pod waits for its claims, or for another reason of its scheduler"


def _unoffered(account: ClusterAccount, pod: Pod) -> Iterator[str]:
    """Yield which resource no node offers, with the nearest name."""
    offered = {name for node in account.nodes.values() for name in (*node.extended, *node.offers)}
    for name in pod.request.amounts:
        if name not in offered:
            close = nearest(name, sorted(offered))
            yield f"No node offers {name}{f'; did you mean {close}?' if close else ''}"


def _of_gpus(account: ClusterAccount, pod: Pod, said: Sequence[str]) -> Iterator[str]:
    """Yield where the pod would fit, or the cause on most nodes."""
    causes = Counter(
        "" if isinstance(found, Fit) else found.summary
        for name, found in account.fits_pod(pod, list(account.nodes)).items()
        if name in account.nodes
    )
    if fitting := causes.pop("", 0):
        yield f"Fits on {_nodes(fitting)}, by the GPUs; {said[0] if said else 'the scheduler says nothing'}"
    if causes:
        # What a node does not offer at all says less than what is missing on nodes that offer the resource.
        why, count = min(causes.items(), key=lambda each: (each[0].startswith("the node does not offer"), -each[1]))
        yield f"{why[:1].upper()}{why[1:]} ({_nodes(count)})"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count:,} nodes"


def slice_sentences(account: ClusterAccount, pod: Pod, now: datetime) -> tuple[str, ...]:
    """Return what partitioned nodes keep for a pod that waits for slices; nothing where no node is partitioned."""
    if not pod.slices:
        return ()
    partitioned = [name for name, node in account.nodes.items() if node.partitioning is not None]
    nodes = [node for name in partitioned if (node := partition_node_of(account.account_of(name))) is not None]
    return tuple(kept_where(use, now) for use in waiting_uses([pod], nodes)) if nodes else ()


async def explained(
    account: ClusterAccount, waiting: WaitingPod, viewer: Viewer, now: datetime, extender: ExtenderStanding
) -> Explanation:
    """Return the explanation of a pod for a viewer; other tasks have turns meanwhile."""
    pod = waiting.pod
    claims = tuple(f"{name}: `gpushare explain {pod.name} -n {pod.namespace}` says more" for name in waiting.claims)
    slices = slice_sentences(account, pod, now)
    told = Told({}, waiting.scheduler, waiting.reasons, extender, slices, claims)
    for number, found in enumerate(explain_in_steps(account, pod, told)):
        if found is not None:
            return with_verdict(replace(found, nodes=tuple(for_viewer(each, viewer) for each in found.nodes)))
        if number % _STEPS == 0:
            await asyncio.sleep(0)
    raise AssertionError("an explanation has an end")


def for_viewer(found: NodeVerdict, viewer: Viewer) -> NodeVerdict:
    """Return the verdict of a node without names of pods that a viewer may not see."""
    if viewer.namespaces is None:
        return found
    ending = None if found.ending is None else tuple(_named(found.ending, viewer))
    return replace(found, ending=ending, gpus=tuple(_gpu(each, viewer) for each in found.gpus))


def _gpu(found: GpuVerdict, viewer: Viewer) -> GpuVerdict:
    return replace(found, holders=tuple(_named(found.holders, viewer)))


def _named(labels: Sequence[str], viewer: Viewer) -> Iterator[str]:
    """Yield the labels of pods that a viewer may see, and the number of the others."""
    seen = [label for label in labels if viewer.sees(label.partition("/")[0])]
    yield from seen
    if hidden := len(labels) - len(seen):
        yield f"{hidden} of {OTHERS}"
