"""Filling up: pods come to an empty cluster and stay, until their demand is 130 % of all GPUs.

The measure is that of FGD's authors (USENIX ATC 2023, section 6): a pod that fits nowhere is refused and forgotten.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpushare_plugin.observe.parts import Part
from gpushare_plugin.packing.pod_kind import WHOLE, PodKind
from gpushare_plugin.simulator.cluster import SimulatedCluster
from gpushare_plugin.simulator.leftover import Leftover, leftover
from gpushare_plugin.simulator.refused_pods import PodCounts, RefusedPods
from gpushare_plugin.simulator.trace import Trace

FULL_DEMAND = 130
"""The demand of all pods that come, in percent of all GPUs."""
LEVELS = (90, 100, FULL_DEMAND)
"""The demand at which all is measured, in percent of all GPUs."""
CURVE = tuple(range(5, FULL_DEMAND + 1, 5))
"""The demand at which the allocated part of all GPUs is measured, in percent of all GPUs; with all of `LEVELS`."""


class AllocatedAt(Part, frozen=True, kw_only=True):
    """What was allocated after pods of some demand came."""

    demand: int
    """The demand of the pods that came, in percent of all GPUs."""
    allocated: float
    """The allocated part of all GPUs, in percent."""


class Filled(Part, frozen=True, kw_only=True):
    """A cluster after pods of some demand came."""

    demand: int
    """The demand of the pods that came, in percent of all GPUs."""
    allocated: float
    """The allocated part of all GPUs, in percent."""
    unusable: float
    """The part of free GPU that typical pods cannot use, in percent."""
    refused_pods: RefusedPods
    """Which of the pods that came were refused."""
    leftover: Leftover
    """What is left of the nodes."""


class FilledUp(NamedTuple):
    """How a cluster filled up."""

    filled: tuple[Filled, ...]
    """The cluster at each of `LEVELS`."""
    curve: tuple[AllocatedAt, ...]
    """The allocated part of all GPUs at each demand of `CURVE`."""


def fill(trace: Trace, policy: str, seed: int) -> FilledUp:
    """Return what a cluster is when the pods that came have asked for each demand, and no pod asks for more yet."""
    cluster, counts = SimulatedCluster(trace, policy, seed), PodCounts()
    filled: list[Filled] = []
    curve: list[AllocatedAt] = []

    def reach(demand: float) -> None:
        """Measure what is to be measured before the pods ask for more than `demand`, in percent of all GPUs."""
        for level in (each for each in CURVE[len(curve) :] if each < demand):
            curve.append(AllocatedAt(demand=level, allocated=cluster.allocated))
            if level in LEVELS:
                filled.append(_filled(level, cluster, counts))

    arrived = 0
    for kind in _arriving(trace, np.random.default_rng(seed)):
        arrived += kind.gpu_percent
        reach(arrived / cluster.gpus)
        counts.count(kind, refused=cluster.place(kind) is None)
    reach(math.inf)
    return FilledUp(tuple(filled), tuple(curve))


def _filled(demand: int, cluster: SimulatedCluster, counts: PodCounts) -> Filled:
    """Return what a cluster is now, when a demand has come."""
    return Filled(
        demand=demand,
        allocated=cluster.allocated,
        unusable=cluster.unusable,
        refused_pods=counts.refused_pods,
        leftover=leftover(cluster.rows),
    )


def _arriving(trace: Trace, chance: np.random.Generator) -> Iterator[PodKind]:
    """Yield the pods of the trace in an order by chance, and then pods drawn from the trace, up to the full demand.

    Pods of the trace whose demand would be more than the full demand are left out.
    """
    most, arrived = trace.gpus * FULL_DEMAND / 100 * WHOLE, 0
    pods = [trace.pods[number] for number in chance.permutation(len(trace.pods))]
    while True:
        for pod in pods:
            arrived += pod.gpu_percent
            if arrived > most:
                return
            yield pod
        pods = [trace.pods[number] for number in chance.integers(len(trace.pods), size=len(trace.pods))]
