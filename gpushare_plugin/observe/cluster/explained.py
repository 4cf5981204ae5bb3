"""An explanation of a pod in words: what it asks for, what each node lacks, and what would make it fit."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from gpushare_plugin.base.text import amount_of, some_of
from gpushare_plugin.observe.cluster.columns import Headed, Style, Table
from gpushare_plugin.observe.cluster.explanation import Explanation, GpuVerdict, Granted, NodeVerdict

MOST_NODES = 10
"""The most nodes that are all shown GPU by GPU; of more nodes, only the nearest are shown."""
NEAREST = 3
"""The number of nearest nodes to show: the nodes with the fewest missing units."""
_MOST_NAMES = 5

_ALL_ASKED = 100
"""The largest cluster where kube-scheduler looks at every node, not at a sample (minFeasibleNodesToFind)."""

_SOURCES = {
    "allocation": "says the node",
    "promise": "as the scheduler extender promised; the node has not confirmed it",
    "indexes": "by the annotations of Aliyun's tools",
    "reservation": "is being bound",
}


_SAMPLE = "of so many nodes it asks about a sample, unless its configuration has percentageOfNodesToScore: 100."


def lines(explained: Explanation) -> Iterator[str]:
    """Yield the explanation line by line."""
    if explained.verdict:
        yield Headed(explained.verdict)
        yield ""
    yield from _head(explained)
    if explained.state == "placed":
        yield from _placed(explained)
    elif explained.state == "pending":
        yield from _pending(explained)


def _head(explained: Explanation) -> Iterator[str]:
    name = f"{explained.namespace}/{explained.pod}"
    states = {
        "pending": "waits for a node",
        "placed": f"is on node {explained.node}",
        "ended": "has ended: it holds no GPU",
        "not ours": "asks for nothing that gpushare serves: gpushare does not decide where it goes",
    }
    yield Headed(f"Pod {name} {states[explained.state]}")
    asked = ", ".join(f"{amount} {resource}" for resource, amount in explained.amounts.items())
    split = f", split evenly over {explained.gpu_count} GPUs" if explained.gpu_count > 1 else ""
    by_units = _by_units(explained)
    if by_units:
        yield f"Asks for: {asked or 'no extended resource'}{split}"
    for each in explained.not_offered:
        if each.made:
            yield f"No node offers {each.resource} now"
            continue
        meant = f"; did you mean {each.nearest}?" if each.nearest else ""
        yield f"No node offers {each.resource}: all {each.amount} units are missing{meant}"
    if explained.problem:
        yield f"No node can take it: {explained.problem}"
    for ignored in explained.ignored:
        yield f"Not understood, and ignored: {ignored}"
    if by_units and explained.policy is not None and explained.state in {"pending", "placed"}:
        assumed, source = explained.policy_assumed, explained.policy_source
        yield f"Placement policy: {explained.policy}, {f'assumed: {assumed}' if assumed else f'chosen by {source}'}"
    if by_units and explained.extender_problem:
        yield explained.extender_problem
    if explained.scheduler:
        yield f"Scheduler: {explained.scheduler}"
    yield from explained.waits
    if explained.claims:
        yield ""
        yield Headed("By claim:")
        yield from (f"  {sentence}" for sentence in explained.claims)


def _pending(explained: Explanation) -> Iterator[str]:
    fitting = [node for node in explained.nodes if node.fits and not node.also]
    elsewhere = [node for node in explained.nodes if node.fits and node.also]
    misfits = [node for node in explained.nodes if not node.fits]
    if explained.slices:
        yield ""
        yield Headed("Automatic partitioning:")
        yield from (f"  {sentence}" for sentence in explained.slices)
        if not explained.nodes:
            return
    if explained.claims and not explained.nodes:
        return
    yield ""
    if not explained.nodes:
        yield "The cluster has no node."
    if fitting:
        yield from _fits(explained, fitting)
    if elsewhere:
        yield Headed(f"{amount_of(len(elsewhere), 'node')} with room on GPUs, where the pod does not go:")
        yield from _reasons(elsewhere)
    if misfits:
        yield from _misfits(explained, misfits)
    if explained.notes:
        yield ""
    yield from explained.notes


def _fits(explained: Explanation, fitting: Sequence[NodeVerdict]) -> Iterator[str]:
    """Yield the nodes where the pod fits, and why it may wait nevertheless."""
    fits = "Would fit, but for what no node offers," if explained.not_offered else "Fits"
    yield Headed(f"{fits} on {len(fitting):,} of {len(explained.nodes):,} nodes, by its GPUs:")
    shown = fitting[:MOST_NODES]
    yield from (f"  {node.node}: {_place(node)} (score {node.score}{_loses(node)})" for node in shown)
    if len(fitting) > len(shown):
        yield f"  … and {len(fitting) - len(shown):,} more; -o json shows all"
    if not explained.not_offered:
        yield "  If it still waits, the scheduler has another reason; `kubectl describe pod` shows its last one."
        if len(explained.nodes) > _ALL_ASKED:
            yield f"  Or kube-scheduler has not asked about {'it' if len(fitting) == 1 else 'them'}: {_SAMPLE}"


def _reasons(nodes: Sequence[NodeVerdict]) -> Iterator[str]:
    """Yield why nodes do not take the pod, GPUs aside, each reason with the number of its nodes."""
    for reason, same in _by_reason(nodes, lambda node: ", ".join(node.also)):
        yield f"  {amount_of(len(same), 'node')}: {reason}: {some_of([node.node for node in same], _MOST_NAMES)}"


def _by_reason(
    nodes: Sequence[NodeVerdict], reason: Callable[[NodeVerdict], str]
) -> Iterator[tuple[str, list[NodeVerdict]]]:
    """Yield each reason with its nodes, the most common reason first."""
    found: dict[str, list[NodeVerdict]] = {}
    for node in nodes:
        found.setdefault(reason(node), []).append(node)
    yield from sorted(found.items(), key=lambda each: -len(each[1]))


def _loses(node: NodeVerdict) -> str:
    """Return what later pods would lose, in words; nothing where `packing` does not decide."""
    return "" if node.loss is None else f", loses {node.loss:.2f} GPUs"


def _misfits(explained: Explanation, misfits: Sequence[NodeVerdict]) -> Iterator[str]:
    """Yield why the pod does not fit on nodes, and the nearest of the nodes GPU by GPU."""
    yield Headed(f"Does not fit on {len(misfits):,} of {len(explained.nodes):,} nodes:")
    yield from _causes(misfits)
    in_sum = [node.node for node in misfits if node.fits_sum and not node.also]
    if explained.wishes_problem:
        if explained.wishes_problem != explained.verdict:
            yield f"  {explained.wishes_problem}"
    elif in_sum and len(misfits) == len(explained.nodes):
        yield from _asleep(in_sum)
    near = [node for node in misfits if node.gpus]
    yield from _nearest(near if len(near) <= MOST_NODES else near[:NEAREST], len(near))


def _causes(misfits: Sequence[NodeVerdict]) -> Iterator[str]:
    """Yield each cause with the number of its nodes and the fewest missing units of these nodes."""
    for cause, same in _by_reason(misfits, lambda node: node.cause or ""):
        missing = [node.missing for node in same if node.missing is not None and not _is_unwanted(node)]
        least = f"; {'at least ' if min(missing) < max(missing) else ''}{min(missing)} missing" if missing else ""
        yield f"  {amount_of(len(same), 'node')}: {cause}{least}: {some_of([node.node for node in same], _MOST_NAMES)}"


def _is_unwanted(node: NodeVerdict) -> bool:
    """Return whether the pod wants no GPU of a node, so that the node lacks no units, whatever is free there."""
    return bool(node.gpus) and not any(gpu.wanted for gpu in node.gpus)


def _asleep(in_sum: Sequence[str]) -> Iterator[str]:
    """Yield what autoscalers make of a pod for which nodes have room in sum, in their own words.

    cluster-autoscaler: core/podlistprocessor/filter_out_schedulable.go of kubernetes/autoscaler at 0cc6febf. Karpenter:
    pkg/controllers/provisioning/scheduling/events.go of kubernetes-sigs/karpenter at 16a04753.
    """
    nodes = some_of(in_sum, _MOST_NAMES)
    yield f"  Together, the GPUs of {nodes} have room for the pod; no single GPU has. Autoscalers count sums:"
    yield "  cluster-autoscaler adds no node, and logs that pods marked as unschedulable can be scheduled;"
    yield "  Karpenter says Nominated. A smaller request, or room on one GPU, helps (docs/scheduling.md, Autoscalers)."


def _nearest(nodes: Sequence[NodeVerdict], count: int) -> Iterator[str]:
    if len(nodes) < count:
        yield ""
        yield f"The {len(nodes)} nodes that lack least; -o json shows all:"
    for node in nodes:
        yield ""
        head = node.cause if _is_unwanted(node) else (node.reason or "").partition(": ")[0]
        yield Headed(node.node, f": {head}{_also(node)}")
        rows = [[f"  GPU{gpu.index}", *_room(gpu), _why(gpu)] for gpu in node.gpus]
        yield from Table(("  GPU", "FREE/TOTAL", "MISSING", "WHY"), rows).lines(Style())
        if node.unplaced:
            yield f"  {node.unplaced} units are held on unknown GPUs and count against each GPU"
        yield from (f"  {cure}" for cure in _cures(node))


def _room(gpu: GpuVerdict) -> tuple[str, str]:
    """Return free and missing units; a GPU that the pod does not want lacks nothing, whatever is free there."""
    return (f"{gpu.free}/{gpu.units}", str(gpu.missing)) if gpu.wanted else (f"-/{gpu.units}", "-")


def _why(gpu: GpuVerdict) -> str:
    held = f"held by {some_of(gpu.holders, _MOST_NAMES)}" if gpu.holders else ""
    return "; ".join(filter(None, (gpu.reason, held))) or "-"


def _cures(node: NodeVerdict) -> Iterator[str]:
    """Yield the changes that would make the pod fit."""
    if node.ending:
        yield f"Would fit if these pods ended: {some_of(node.ending, _MOST_NAMES)}"
    if node.smaller:
        yield f"Would fit if it asked for {node.smaller} units of {node.resource} at most"
    if node.ending or node.smaller:
        return
    if any(gpu.reason is None for gpu in node.gpus):
        yield "No end of a pod would make it fit"
    elif any(gpu.wanted for gpu in node.gpus):
        yield "Would fit once a GPU of this node can be used again"
    else:
        yield "The pod wants none of the GPUs of this node"


def _also(node: NodeVerdict) -> str:
    return f"; {', '.join(node.also)}" if node.also else ""


def _place(node: NodeVerdict) -> str:
    """Return the GPUs for a pod in words."""
    return ", ".join(
        f"{units} {resource} on GPU{(node.indexes or {}).get(gpu, '?')}"
        for resources in (node.place or {}).values()
        for resource, gpus in resources.items()
        for gpu, units in gpus.items()
    )


def _by_units(explained: Explanation) -> bool:
    """Return whether the pod asks for extended resources; a pod that asks for nothing is told that."""
    return bool(explained.amounts) or not explained.claims


def _placed(explained: Explanation) -> Iterator[str]:
    if _by_units(explained):
        yield _promise(explained)
        if not explained.granted:
            yield ""
            yield f"Node {explained.node} offers none of these resources now."
    indexes = {gpu: index for each in explained.granted for gpu, index in each.indexes.items()}
    for limit in explained.limits:
        who = f"container {limit.container}" if limit.container else "its containers"
        gpu = f"GPU{indexes[limit.gpu]}" if limit.gpu in indexes else limit.gpu
        yield f"Limit of {who} on {gpu}: {limit.effect}"
    for each in explained.granted:
        yield ""
        yield Headed(f"{each.resource}: {each.amount} {each.unit}")
        source = _SOURCES.get(each.source or "", "")
        yield from (f"  {_name(each, gpu)}: {units} {each.unit}, {source}" for gpu, units in each.gpus.items())
        if each.unplaced:
            yield f"  {each.unplaced} {each.unit} on unknown GPUs: nothing says where; they count against every GPU"
        if each.drift:
            yield f"  Promised: {_by_container(each, each.promised or {})}"
            yield f"  Allocated: {_by_container(each, each.allocated or {})}"
            yield "  Drift: the node gave it other units than were promised; what the node says counts"


def _promise(explained: Explanation) -> str:
    if explained.promise_problem is not None:
        return f"Promise: cannot be read, so it does not count: {explained.promise_problem}"
    if explained.promise_node is None:
        by_aliyun = any(each.source == "indexes" for each in explained.granted)
        chose = "" if by_aliyun else ", and the node chose the GPU"
        return f"Promise: none; it was bound without the scheduler extender of gpushare{chose}"
    if explained.promise_node != explained.node:
        return f"Promise: for node {explained.promise_node}, so it does not count here"
    return f"Promise: made by the scheduler extender at {explained.promise_time}"


def _by_container(granted: Granted, shares: Mapping[str, Mapping[str, int]]) -> str:
    return "; ".join(
        f"{container}: " + ", ".join(f"{units} on {_name(granted, gpu)}" for gpu, units in gpus.items())
        for container, gpus in shares.items()
    )


def _name(granted: Granted, gpu: str) -> str:
    index = granted.indexes.get(gpu)
    return gpu if index is None else f"GPU{index} ({gpu})"
