"""Policies that score each node by what would be left there, without any memory.

`fullest` and `emptiest` are `binpack` and `spread` by GPU alone. The other scores are those of the simulator of FGD's
authors (hkust-adsl/kubernetes-scheduler-simulator): whole hundredths, with CPU as a part of 128 cores and GPU as a part
of 8 GPUs.
"""

from collections.abc import Callable

import numpy as np

from gpushare_plugin.packing.pod_kind import WHOLE, PodKind
from gpushare_plugin.packing.rows import Integers, NodeRows, Numbers, Spot
from gpushare_plugin.simulator.policies.policy import ComparedPolicy

_CORES = 128_000
_GPUS = 8 * WHOLE

NodeScore = Callable[[NodeRows, PodKind, Integers], Numbers]
"""Returns the score of each node that has room for a pod; the highest is best."""
GpuScore = Callable[[Integers], Integers]
"""Returns the score of each GPU from the free pieces; the highest is best, of the GPUs that have room."""


class Scored(ComparedPolicy):
    """Places pods on the node with the best score, and shares on the GPU with the best score there."""

    def __init__(self, rows: NodeRows, node_score: NodeScore, gpu_score: GpuScore) -> None:
        """Follow `rows`."""
        self._rows = rows
        self._node_score = node_score
        self._gpu_score = gpu_score

    def choose(self, kind: PodKind) -> Spot | None:
        """Return the best spot, on the first such node in order; None if the pod fits nowhere."""
        fitting = self._rows.fitting(kind)
        if not fitting.size:
            return None
        row = int(fitting[self._node_score(self._rows, kind, fitting).argmax()])
        free = self._rows.free[row]
        return self._rows.spot(
            row, kind, int(np.where(free >= kind.percent, self._gpu_score(free), -WHOLE - 1).argmax())
        )


def tightest(free: Integers) -> Integers:
    """Prefer the GPU with the smallest free piece."""
    return -free


def most_free(free: Integers) -> Integers:
    """Prefer the GPU with the largest free piece."""
    return free


def fullest(rows: NodeRows, kind: PodKind, fitting: Integers) -> Numbers:
    """Prefer the node with the smallest part of its GPUs left."""
    return -emptiest(rows, kind, fitting)


def emptiest(rows: NodeRows, kind: PodKind, fitting: Integers) -> Numbers:
    """Prefer the node with the largest part of its GPUs left."""
    left: Numbers = (rows.free_percent[fitting] - kind.gpu_percent) / np.maximum(1, WHOLE * rows.gpus[fitting])
    return left


def least_left(rows: NodeRows, kind: PodKind, fitting: Integers) -> Numbers:
    """Prefer the node with the least CPU and GPU left."""
    return np.floor(100 - 100 * _left(rows, kind, fitting))


def most_left(rows: NodeRows, kind: PodKind, fitting: Integers) -> Numbers:
    """Prefer the node with the most CPU and GPU left."""
    return np.floor(100 * _left(rows, kind, fitting))


def least_aligned(rows: NodeRows, kind: PodKind, fitting: Integers) -> Numbers:
    """Prefer the node whose free CPU and GPU have the smallest dot product with those that the pod asks for."""
    product = rows.free_cpu[fitting] / _CORES * (kind.cpu / _CORES)
    product += rows.free_percent[fitting] / _GPUS * (kind.gpu_percent / _GPUS)
    return np.floor(100 - 50 * product)


def _left(rows: NodeRows, kind: PodKind, fitting: Integers) -> Numbers:
    """Return the mean of the parts of CPU and GPU that a pod would leave."""
    cpu = (rows.free_cpu[fitting] - kind.cpu) / _CORES
    gpu = (rows.free_percent[fitting] - kind.gpu_percent) / _GPUS
    left: Numbers = (cpu + gpu) / 2
    return left
