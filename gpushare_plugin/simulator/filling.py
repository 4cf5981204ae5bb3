"""Filling up: pods come to an empty cluster and stay, until their demand is 130 % of all GPUs.

The measure is that of FGD's authors (USENIX ATC 2023, section 6): a pod that fits nowhere is refused and forgotten.
"""

import math
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from gpushare_plugin.observe.parts import Part
from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.simulator.cluster import SimulatedCluster
from gpushare_plugin.simulator.leftover import Leftover, leftover
from gpushare_plugin.simulator.refused_pods import PodCounts, RefusedPods
from gpushare_plugin.simulator.trace import MOST_PODS, Trace
from gpushare_plugin.simulator.unplaceable import unplaceable

FULL_DEMAND = 130
"""The demand of all pods that come, in percent of all GPUs."""
LEVELS = (90, 100, FULL_DEMAND)
"""The demand at which all is measured, in percent of all GPUs."""
NEAR = 15
"""How far below a level the demand may be, in percent of all GPUs, when the next pod would exceed the level.

A level counts as not reached where the demand is further away: then a single pod asks for a large part of the cluster.
"""
CURVE = tuple(range(5, FULL_DEMAND + 1, 5))
"""The demand at which the allocated part of all GPUs is measured, in percent of all GPUs; with all of `LEVELS`."""


class AllocatedAt(Part, frozen=True, kw_only=True):
    """What was allocated after pods of some demand came."""

    demand: int
    """The demand of the pods that came, in percent of all GPUs."""
    allocated: float | None = None
    """The allocated part of all GPUs, in percent; None if the demand was not reached."""


class Filled(Part, frozen=True, kw_only=True):
    """A cluster after pods of some demand came; all but the demand is None if the demand was not reached."""

    demand: int
    """The demand of the pods that came, in percent of all GPUs."""
    allocated: float | None = None
    """The allocated part of all GPUs, in percent."""
    unusable: float | None = None
    """The part of free GPU that typical pods cannot use, in percent."""
    refused_pods: RefusedPods | None = None
    """Which of the pods that came were refused."""
    leftover: Leftover | None = None
    """What is left of the nodes."""


class FilledUp(NamedTuple):
    """How a cluster filled up."""

    filled: tuple[Filled, ...]
    """The cluster at each of `LEVELS`."""
    curve: tuple[AllocatedAt, ...]
    """The allocated part of all GPUs at each demand of `CURVE`."""


def fill(trace: Trace, policy: str, seed: int) -> FilledUp:
    """Return what a cluster is when the pods that came have asked for each demand, and no pod asks for more yet.

    A pod that would exceed the full demand by far is left out, and counts as refused if the pod fits no node.
    """
    cluster, counts, gpus, never = SimulatedCluster(trace, policy, seed), PodCounts(), trace.gpus, unplaceable(trace)
    smallest = min((pod.gpu_percent for pod in trace.pods if pod.gpus), default=0)
    filled: list[Filled] = []
    curve: list[AllocatedAt] = []
    arrived = 0

    def pass_levels(demand: float) -> None:
        """Measure each level below a demand that comes next, in percent of all GPUs."""
        for level in (each for each in CURVE[len(curve) :] if each < demand):
            reached = arrived >= (level - NEAR) * gpus
            curve.append(AllocatedAt(demand=level, allocated=cluster.allocated if reached else None))
            if level in LEVELS:
                filled.append(_filled(level, cluster, counts) if reached else Filled(demand=level))

    for kind in islice(_arriving(trace, np.random.default_rng(seed)), MOST_PODS):
        if arrived + kind.gpu_percent > FULL_DEMAND * gpus:
            if arrived >= (FULL_DEMAND - NEAR) * gpus or arrived + smallest > FULL_DEMAND * gpus:
                break
            if kind in never:
                counts.count(kind, refused=True)
            continue
        pass_levels((arrived + kind.gpu_percent) / gpus)
        arrived += kind.gpu_percent
        counts.count(kind, refused=cluster.place(kind) is None)
    pass_levels(math.inf)
    return FilledUp(tuple(filled), tuple(curve))


def expected_pods(trace: Trace) -> float:
    """Return how many pods come, on average, until the full demand is reached."""
    most = FULL_DEMAND * trace.gpus
    return len(trace.pods) * most / max(1, sum(pod.gpu_percent for pod in trace.pods if pod.gpu_percent <= most))


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
    """Yield the pods of the trace in an order by chance, and then, without end, pods drawn from the trace."""
    yield from (trace.pods[number] for number in chance.permutation(len(trace.pods)))
    while True:
        yield from (trace.pods[number] for number in chance.integers(len(trace.pods), size=len(trace.pods)))
