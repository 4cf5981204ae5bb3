"""Churn: pods come and go, and the cluster is observed after some lifetimes.

Pods arrive as a Poisson process. Lifetimes are log-normal with mean 1, the unit of time here. The cluster starts with
the pods that such a process has running at any moment.
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpushare_plugin.observe.parts import Part
from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import Spot
from gpushare_plugin.simulator.cluster import SimulatedCluster
from gpushare_plugin.simulator.refused_pods import PodCounts, RefusedPods
from gpushare_plugin.simulator.trace import Trace

LENGTH = 4.0
"""How long pods come, in mean lifetimes."""
MEASURED_FROM = 1.5
"""From when on is measured, in mean lifetimes."""
_SIGMA = 1.0
_MU = -(_SIGMA**2) / 2


class Churned(Part, frozen=True, kw_only=True):
    """What came of pods that came and went."""

    allocated: float
    """The allocated part of all GPUs, in percent, on average over time."""
    refused: float
    """The refused part of the GPU demand that arrived, in percent."""
    refused_pods: RefusedPods
    """Which of the pods that arrived were refused."""


class _Arrival(NamedTuple):
    """A pod that arrives."""

    time: float
    """When the pod arrives."""
    life: float
    """How long the pod runs."""
    kind: PodKind
    """What the pod asks for."""


def churn(trace: Trace, policy: str, seed: int, load: float) -> Churned:
    """Return what comes of pods whose demand is `load` percent of all GPUs on average."""
    cluster = SimulatedCluster(trace, policy, seed)
    allocated, counts = _MeanOverTime(), PodCounts()
    ends: list[tuple[float, int, PodKind, Spot]] = []
    arrived = refused = 0
    for number, arrival in enumerate(_arrivals(trace, load, np.random.default_rng(seed))):
        while ends and ends[0][0] <= arrival.time:
            end, _, kind, spot = heapq.heappop(ends)
            allocated.until(end, cluster.allocated)
            cluster.end(kind, spot)
        allocated.until(arrival.time, cluster.allocated)
        found = cluster.place(arrival.kind)
        if found is not None:
            heapq.heappush(ends, (arrival.time + arrival.life, number, arrival.kind, found))
        if arrival.time >= MEASURED_FROM:
            arrived += arrival.kind.gpu_percent
            refused += arrival.kind.gpu_percent if found is None else 0
            counts.count(arrival.kind, refused=found is None)
    return Churned(allocated=allocated.mean, refused=100 * refused / max(1, arrived), refused_pods=counts.refused_pods)


def expected_pods(trace: Trace, load: float) -> float:
    """Return how many pods come, on average, those at the start included."""
    return _rate(trace, load) * (1 + LENGTH)


def _rate(trace: Trace, load: float) -> float:
    """Return how many pods arrive in a lifetime, and how many run at a moment, on average."""
    return load / 100 * trace.gpus * len(trace.pods) / trace.demand


class _MeanOverTime:
    """The mean of a number from `MEASURED_FROM` on."""

    def __init__(self) -> None:
        """Start at time 0."""
        self._now = 0.0
        self._sum = 0.0

    def until(self, time: float, value: float) -> None:
        """Add the value that the number had until a time."""
        self._sum += max(0.0, time - max(self._now, MEASURED_FROM)) * value
        self._now = time

    @property
    def mean(self) -> float:
        """The mean; 0 before anything is measured."""
        return self._sum / (self._now - MEASURED_FROM) if self._now > MEASURED_FROM else 0.0


def _arrivals(trace: Trace, load: float, chance: np.random.Generator) -> Iterator[_Arrival]:
    """Yield the pods that run at the start, and then those that arrive, in the order of time.

    A pod that runs at a moment is more likely a long one: the density of lifetimes is weighted by the lifetime, which
    raises the mean of the logarithm by the variance of the logarithm. Any part of the lifetime may have passed.
    """
    rate = _rate(trace, load)
    present = int(chance.poisson(rate))
    for life in chance.random(present) * chance.lognormal(_MU + _SIGMA**2, _SIGMA, present):
        yield _Arrival(0.0, float(life), trace.pods[chance.integers(len(trace.pods))])
    time = 0.0
    while (time := time + chance.exponential(1 / rate)) < LENGTH:
        yield _Arrival(time, float(chance.lognormal(_MU, _SIGMA)), trace.pods[chance.integers(len(trace.pods))])
