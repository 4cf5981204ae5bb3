"""What is simulated: nodes and pods, where both are from, and what was changed of them."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.simulator.trace import Trace
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
    """Return what is simulated; raises GpushareError for changes of nodes or pods that are not there, or of all."""
    kinds, of_nodes = changed_nodes(nodes, what_ifs)
    if not any(kind.gpus for kind in kinds):
        raise GpushareError("found no node with a GPU after the changes, expected one at least: remove fewer nodes")
    pods, of_pods = changed_pods(pods_for({kind.model for kind in kinds if kind.gpus}), what_ifs.requests)
    if not any(pod.gpus for pod in pods):
        raise GpushareError("found no pod that asks for a GPU after the changes, expected one at least")
    return Scenario(Trace(kinds, pods), source, [*of_nodes, *of_pods])
