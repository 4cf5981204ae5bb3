"""What is free on the nodes of a cluster, in arrays: one row for each node."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.packing.pod_kind import WHOLE, PodKind

Integers = NDArray[np.int64]
Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]


class NodeKind(Struct, frozen=True):
    """A node without any pod."""

    cpu: int
    """CPU in thousandths of a core."""
    memory: int
    """Memory in MiB."""
    gpus: int
    """The number of GPUs."""
    model: str = ""
    """The model of the GPUs; empty if the node has none."""


class Spot(NamedTuple):
    """Where a pod is, or would be placed."""

    row: int
    """The row of the node."""
    gpus: tuple[int, ...] = ()
    """The columns of the GPUs."""


class NodeRows:
    """The nodes of a cluster with what is free of each, in a fixed order.

    A simulation has as many rows as nodes. Where nodes come and go, a row without a node is that of an empty node
    without GPUs, CPU and memory.
    """

    def __init__(self, nodes: Sequence[NodeKind]) -> None:
        """Start with empty nodes."""
        self.gpus: Integers = np.array([node.gpus for node in nodes], np.int64)
        """The number of GPUs of each node."""
        self.cpu: Integers = np.array([node.cpu for node in nodes], np.int64)
        """The CPU of each node, in thousandths of a core."""
        self.memory: Integers = np.array([node.memory for node in nodes], np.int64)
        """The memory of each node in MiB."""
        self.models: list[str] = sorted({node.model for node in nodes})
        """The models of the cluster."""
        places = {model: place for place, model in enumerate(self.models)}
        self.model: Integers = np.array([places[node.model] for node in nodes], np.int64)
        """The place of each node's model in `models`."""
        columns = np.arange(self.gpus.max(initial=1))
        self.free: Integers = np.where(columns < self.gpus[:, None], WHOLE, 0)
        """The free piece of each GPU in percent, by node and column; 0 in columns beyond a node's GPUs."""
        self.free_cpu: Integers = self.cpu.copy()
        """The free CPU of each node, in thousandths of a core."""
        self.free_memory: Integers = self.memory.copy()
        """The free memory of each node in MiB."""
        self.free_percent: Integers = self.free.sum(axis=1)
        """The sum of the free pieces of each node, in percent of one GPU."""
        self.free_whole: Integers = self.gpus.copy()
        """The number of GPUs of each node that are wholly free."""
        self._accepted: dict[frozenset[str], Flags] = {}

    def fitting(self, kind: PodKind) -> Integers:
        """Return the rows of the nodes that have room for a pod, in order."""
        fits = (self.free_cpu >= kind.cpu) & (self.free_memory >= kind.memory)
        if kind.is_share:
            roomy = self.free >= kind.percent
            fits &= roomy.any(axis=1) if kind.gpus == 1 else roomy.sum(axis=1) >= kind.gpus
        elif kind.gpus:
            fits &= self.free_whole >= kind.gpus
        if kind.models:
            fits &= self._accepting(kind.models)
        return np.flatnonzero(fits)

    def spot(self, row: int, kind: PodKind, gpu: int) -> Spot:
        """Return the spot of a pod on a node: of a share on GPU `gpu`, of whole GPUs on the first that are free."""
        if kind.is_share:
            return Spot(row, (gpu,))
        whole = np.flatnonzero(self.free[row] == WHOLE)[: kind.gpus]
        return Spot(row, tuple(whole.tolist()))

    def make_room(self, rows: int, columns: int) -> None:
        """Have at least so many rows and columns."""
        more, wider = max(0, rows - len(self.gpus)), max(0, columns - self.free.shape[1])
        self.free = np.pad(self.free, ((0, more), (0, wider)))
        for each in ("gpus", "cpu", "memory", "model", "free_cpu", "free_memory", "free_percent", "free_whole"):
            setattr(self, each, np.pad(getattr(self, each), (0, more)))
        self._accepted.clear()

    def put(self, row: int, node: NodeKind, free: Sequence[int], free_cpu: int, free_memory: int) -> bool:
        """Put a node with the free pieces of its GPUs into a row; return whether another kind of node was there."""
        if node.model not in self.models:
            self.models.append(node.model)
        kind = node.gpus, node.cpu, node.memory, self.models.index(node.model)
        differs = kind != (self.gpus[row], self.cpu[row], self.memory[row], self.model[row])
        if differs:
            self.gpus[row], self.cpu[row], self.memory[row], self.model[row] = kind
            self._accepted.clear()
        self.free[row] = 0
        self.free[row, : len(free)] = free
        self.free_cpu[row], self.free_memory[row] = free_cpu, free_memory
        self.free_percent[row], self.free_whole[row] = sum(free), sum(piece == WHOLE for piece in free)
        return differs

    def take(self, kind: PodKind, spot: Spot) -> None:
        """Place a pod, which must fit there."""
        self._change(kind, spot, -1)

    def give_back(self, kind: PodKind, spot: Spot) -> None:
        """Remove a pod that was placed there."""
        self._change(kind, spot, 1)

    def _change(self, kind: PodKind, spot: Spot, sign: int) -> None:
        row = spot.row
        self.free_cpu[row] += sign * kind.cpu
        self.free_memory[row] += sign * kind.memory
        if spot.gpus:
            self.free[row, spot.gpus] += sign * kind.percent
            self.free_percent[row] += sign * kind.gpu_percent
            self.free_whole[row] = np.count_nonzero(self.free[row] == WHOLE)

    def among(self, models: frozenset[str]) -> Flags:
        """Return for each of the cluster's models whether it is one of `models`."""
        return np.array([model in models for model in self.models], np.bool_)

    def _accepting(self, models: frozenset[str]) -> Flags:
        """Return for each node whether the node has GPUs of one of these models."""
        if models not in self._accepted:
            self._accepted[models] = self.among(models)[self.model]
        return self._accepted[models]
