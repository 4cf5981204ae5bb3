"""Decisions in words, for Events, the log and people."""

from collections.abc import Iterator, Mapping

from gpushare_plugin.base.text import some_of
from gpushare_plugin.core.gpu import gpu_label
from gpushare_plugin.ledger.refusal import Refusal
from gpushare_plugin.partition.decide import Assigned
from gpushare_plugin.partition.refusal import NoSlice
from gpushare_plugin.partition.taking_back import TakenBack
from gpushare_plugin.slices.slice import named_slice

MOST_NODES = 3
"""The most nodes named for one cause, and the most nodes described GPU by GPU: the nodes with the least missing."""


def assignment(assigned: Assigned, making: str = "is being made") -> str:
    """Return the slices being made or kept for a pod, with GPU and node; `making` says that a slice is not made yet."""
    doing = {"idle": "is idle and kept for the pod", "kept": "is kept for the pod"}
    hows = assigned.how or ("kept",) * len(assigned.kept)
    return "; ".join(
        f"slice {named_slice(kept.slice).resource} {doing.get(how, making)} on GPU {gpu_label(index)} of "
        f"{assigned.node}"
        for kept, index, how in zip(assigned.kept, assigned.indexes, hows, strict=True)
    )


def unwritten(assigned: Assigned, reason: str) -> str:
    """Return the slices decided for a pod, and why the decision cannot be written to the Node."""
    slices = ", ".join(
        f"slice {named_slice(kept.slice).resource} was decided on GPU {gpu_label(index)}"
        for kept, index in zip(assigned.kept, assigned.indexes, strict=True)
    )
    return f"{slices} of {assigned.node} and cannot be written to the Node: {reason}"


def taken_back(taken: TakenBack) -> str:
    """Return the slices no longer kept for a pod, the reason, and the consequence."""
    slices = ", ".join(
        f"{named_slice(kept.slice).resource} on {gpu}" for kept, gpu in zip(taken.kept, taken.gpus, strict=True)
    )
    then = "other nodes are tried first" if taken.failed else "the pod is considered again"
    return f"{slices} of {taken.node} is no longer kept for the pod: {taken.reason}; {then}"


def refusal(refused: NoSlice) -> str:
    """Return why no slice can be made for a pod: by cause, and GPU by GPU on the nodes with the least missing."""
    if refused.problem is not None:
        return refused.problem
    nodes = refused.nodes
    asked = ", ".join(each.resource for each in refused.pod.slices)
    if not nodes:
        return f"no slice can be made for {asked}: no node is partitioned"
    return f"no slice can be made for {asked}: " + "; ".join((*_causes(nodes), *_nearest(nodes)))


def _causes(nodes: Mapping[str, Refusal]) -> Iterator[str]:
    """Yield every cause with the number and some names of the affected nodes, the most frequent cause first."""
    alike: dict[str, list[str]] = {}
    for node, why in nodes.items():
        alike.setdefault(why.summary, []).append(node)
    for summary, same in sorted(alike.items(), key=lambda each: -len(each[1])):
        count = "1 node" if len(same) == 1 else f"{len(same):,} nodes"
        names = some_of(same, MOST_NODES)
        yield f"{count}: {summary} ({names})"


def _nearest(nodes: Mapping[str, Refusal]) -> Iterator[str]:
    """Yield the nodes with the least missing, GPU by GPU."""
    lacking = [
        (why.missing, number, node) for number, (node, why) in enumerate(nodes.items()) if why.missing is not None
    ]
    for _, _, node in sorted(lacking)[:MOST_NODES]:
        yield f"{node}: {', '.join(each.text for each in nodes[node].shortages)}"
