"""What is simulated: nodes and pods, where both are from, and what was changed of them."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.simulator.trace import MOST_NODES, Trace
from gpushare_plugin.simulator.unplaceable import in_words, unplaceable
from gpushare_plugin.simulator.what_ifs import FoundNode, WhatIfs, changed_nodes, changed_pods

PodsFor = Callable[[Collection[str]], Sequence[PodKind]]
"""Returns the pods, given the models of the nodes."""


class Scenario(NamedTuple):
    """What is simulated."""

    trace: Trace
    """The nodes and pods, after all changes."""
    source: str
    """Where nodes and pods are from, as a sentence without a full stop."""
    changes: Sequence[str]
    """What was changed of nodes and pods, each as a sentence without a full stop."""


def scenario(nodes: Sequence[FoundNode], pods_for: PodsFor, source: str, what_ifs: WhatIfs) -> Scenario:
    """Return what is simulated; raises GpushareError for what cannot be simulated.

    There must be a node with a GPU, a pod that asks for a GPU and fits a node, and not more than `MOST_NODES` nodes.
    """
    kinds, of_nodes = changed_nodes(nodes, what_ifs)
    if not any(kind.gpus for kind in kinds):
        raise GpushareError("found no node with a GPU after the changes, expected one at least: remove fewer nodes")
    if len(kinds) > MOST_NODES:
        raise GpushareError(f"found {len(kinds):,} nodes, expected {MOST_NODES:,} at most: simulate a part of them")
    pods, of_pods = changed_pods(pods_for({kind.model for kind in kinds if kind.gpus}), what_ifs.requests)
    if not any(pod.gpus for pod in pods):
        raise GpushareError("found no pod that asks for a GPU after the changes, expected one at least")
    trace = Trace(kinds, pods)
    never = unplaceable(trace)
    if not any(pod.gpus and pod not in never for pod in pods):
        raise GpushareError(
            f"found no pod with a GPU that fits a node, expected one at least; these fit none: {in_words(never)}"
        )
    return Scenario(trace, source, [*of_nodes, *of_pods])
