"""Pods that fit no node of a simulation, not even a node without other pods."""

from collections import Counter
from collections.abc import Iterable

from gpushare_plugin.base.memory import MIB_PER_GIB
from gpushare_plugin.base.text import some_of
from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import NodeKind
from gpushare_plugin.simulator.spelled import GpuRequest
from gpushare_plugin.simulator.trace import Trace

_SHOWN = 5
"""The most kinds of pods in a sentence."""


def unplaceable(trace: Trace) -> Counter[PodKind]:
    """Return the number of pods of each kind that fit no node."""
    nodes = set(trace.nodes)
    return Counter({kind: number for kind, number in Counter(trace.pods).items() if not _fits_any(kind, nodes)})


def in_words(kinds: Counter[PodKind]) -> str:
    """Return how many pods of each kind there are, and what each asks for, the commonest kinds first."""
    return some_of(kinds.most_common(), _SHOWN, lambda each: f"{each[1]:,} with {_request(each[0])}", "; ")


def _fits_any(kind: PodKind, nodes: Iterable[NodeKind]) -> bool:
    return any(
        kind.cpu <= node.cpu
        and kind.memory <= node.memory
        and kind.gpus <= node.gpus
        and (not kind.models or node.model in kind.models)
        for node in nodes
    )


def _request(kind: PodKind) -> str:
    models = f" {' or '.join(sorted(kind.models))}" if kind.models else ""
    return (
        f"{GpuRequest(kind.gpus, kind.percent)}{models}, {kind.cpu / 1_000:g} cores, {kind.memory / MIB_PER_GIB:g} GiB"
    )
