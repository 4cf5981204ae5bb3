"""The explanation of a pod in one sentence: what keeps the pod waiting, and what to change; or what the pod has."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gpushare_plugin.base.structs import replace
from gpushare_plugin.ledger.node import GPU_COUNT, GPU_MEMORY
from gpushare_plugin.observe.cluster.explanation import Explanation, GpuVerdict, Granted, NodeVerdict, Unoffered


def with_verdict(explained: Explanation, of_claims: str = "") -> Explanation:
    """Return an explanation with its verdict; `of_claims` is the verdict on the claims of the pod.

    The sentence names nodes and GPUs, and no other pod: those who read it may not see other namespaces.
    """
    return replace(explained, verdict=next(_verdicts(explained, of_claims)))


def _verdicts(explained: Explanation, of_claims: str) -> Iterator[str]:
    """Yield what can be said of a pod, the most important first."""
    if explained.state == "ended":
        yield "The pod has ended and holds no GPU"
    if explained.state == "placed":
        yield _placed(explained, of_claims)
    yield from _before_gpus(explained)
    taking = [node for node in explained.nodes if not node.also]
    if explained.nodes and not taking:
        yield _not_taken(explained)
    misfits = [node for node in taking if not node.fits]
    if misfits and len(misfits) == len(taking):
        yield _misfits(explained, misfits)
    if explained.slices:
        yield explained.slices[0]
    if of_claims:
        yield of_claims
    yield _fits(explained, len(taking) - len(misfits))


def _before_gpus(explained: Explanation) -> Iterator[str]:
    """Yield what keeps a pod waiting whatever GPUs are free."""
    if explained.held_back:
        yield explained.held_back
    if explained.problem:
        yield f"No node can take the pod: {explained.problem}"
    if not (explained.nodes or explained.slices or explained.claims or explained.state == "not ours"):
        yield "The cluster has no node"
    yield from not_offered(explained.not_offered)
    if explained.state == "not ours":
        yield "gpushare does not decide where the pod goes: it asks for nothing that gpushare serves"


def not_offered(several: Iterable[Unoffered]) -> Iterator[str]:
    """Yield a sentence on each resource that no node offers, and that is not made for the pod."""
    for each in several:
        if not each.made:
            yield f"No node offers {each.resource}" + (f"; did you mean {each.nearest}?" if each.nearest else "")


def _fits(explained: Explanation, count: int) -> str:
    fits = f"The pod fits on {count:,} of {len(explained.nodes):,} nodes by their GPUs"
    if explained.extender_problem:
        return f"{fits}, and no scheduler extender runs, which it waits for"
    below = ", which stands below" if explained.waits else "; `kubectl describe pod` shows it"
    return f"{fits}, and waits for another reason{below}"


def _not_taken(explained: Explanation) -> str:
    """Return what keeps a pod from all nodes, GPUs aside."""
    causes = Counter(cause for node in explained.nodes for cause in node.also)
    cause, count = causes.most_common(1)[0]
    return f"No node takes the pod, whatever its GPUs: {cause} ({count:,} of {len(explained.nodes):,} nodes)"


def _among(explained: Explanation) -> str:
    """Return which nodes a sentence on all GPUs is about, where these are not all nodes of the cluster."""
    taking = sum(not node.also for node in explained.nodes)
    nodes = "only node that takes" if taking == 1 else f"{taking:,} nodes that take"
    return "" if taking == len(explained.nodes) else f" of the {nodes} the pod"


def _misfits(explained: Explanation, misfits: Sequence[NodeVerdict]) -> str:
    """Return what keeps a pod from all nodes that take it, GPUs aside."""
    if explained.wishes_problem:
        return explained.wishes_problem
    near = [node for node in misfits if node.gpus]
    if not near:
        causes = Counter(node.cause or "" for node in misfits)
        return f"No node can take the pod: {causes.most_common(1)[0][0]}"
    resource = near[0].resource or ""
    gpus = [(node, gpu) for node in near if node.resource == resource for gpu in node.gpus]
    size = max((gpu.free + gpu.missing for _, gpu in gpus if gpu.missing), default=0)
    if size <= 1:
        # What counts is the sum of a node, or the GPUs that are left to other containers of the pod.
        least = f"{near[0].node} lacks least, {near[0].missing} units of {resource}"
        return f"No node{_among(explained)} has room for the pod: {least}"
    return _by_gpu(explained, size, resource, [each for each in gpus if each[1].wanted])


def _by_gpu(explained: Explanation, size: int, resource: str, gpus: Sequence[tuple[NodeVerdict, GpuVerdict]]) -> str:
    """Return why no GPU that the pod wants gives it `size` units."""
    if not gpus:
        return f"No GPU{_among(explained) or ' of this cluster'} is one that the annotations of the pod want"
    among, largest = _among(explained), max(gpu.units for _, gpu in gpus)
    if size > largest:
        more = "several" if explained.gpu_count == 1 else "more"
        others = f", or for {more} GPUs by {GPU_COUNT}" if resource == GPU_MEMORY else ""
        wanted = "" if all(gpu.wanted for node in explained.nodes for gpu in node.gpus) else " that the pod wants"
        most = largest * explained.gpu_count
        larger = f"No GPU{among or ' of this cluster'}{wanted} is larger than {largest} units of {resource}"
        return f"{larger}; ask for {most} at most{others}"
    large = [(node, gpu) for node, gpu in gpus if gpu.units >= size]
    usable = [(node, gpu) for node, gpu in large if gpu.reason is None]
    if not usable:
        reasons = Counter((gpu.reason or "").partition(":")[0] for _, gpu in large)
        return f"No GPU{among} with {size} units of {resource} can be used now: {reasons.most_common(1)[0][0]}"
    if explained.gpu_count > 1:
        free = f"No node{among} has {explained.gpu_count} GPUs with {size} units of {resource} free each"
        return f"{free}; the pod fits when others end"
    node, gpu = max(usable, key=lambda each: each[1].free)
    less = f", or if it asks for {gpu.free} at most" if gpu.free > 0 else ""
    return (
        f"No GPU{among} has {size} units of {resource} free now; the most is {max(0, gpu.free)}, on GPU{gpu.index} of "
        f"{node.node}: the pod fits when others end{less}"
    )


def _placed(explained: Explanation, of_claims: str) -> str:
    has = [_granted(each) for each in explained.granted]
    if not has:
        return of_claims or f"The pod is on node {explained.node}, which offers none of its resources now"
    found = f"On node {explained.node}, the pod has {', '.join(has)}"
    if any(each.drift for each in explained.granted):
        found += "; that is other than was promised"
    if any(limit.state == "not in effect" for limit in explained.limits):
        found += "; a limit of it is not in effect"
    return found


def _granted(granted: Granted) -> str:
    parts = [
        f"{units} {granted.unit} on GPU{granted.indexes[gpu]}" if gpu in granted.indexes else f"{units} on {gpu}"
        for gpu, units in granted.gpus.items()
    ]
    parts += [f"{granted.unplaced} {granted.unit} on unknown GPUs"] if granted.unplaced else []
    return f"{' and '.join(parts) or 'nothing'} ({granted.resource})"
