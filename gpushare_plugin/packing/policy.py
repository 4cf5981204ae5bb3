"""The policy `packing`: a pod goes where the least room for pods to come is lost.

The room of a node is the sum of the values of its free pieces. Its balanced room is the room that the free CPU and
memory of the node can feed. docs/packing.md explains the rules and the numbers.
"""

import math

import numpy as np

from gpushare_plugin.packing.pod_kind import WHOLE, PodKind
from gpushare_plugin.packing.rows import Flags, Integers, NodeRows, Numbers, Spot
from gpushare_plugin.packing.seen import SeenPods
from gpushare_plugin.packing.values import LINEAR, TIGHTNESS, part_values, share_cost

ROOM = 0.9
"""The weight of the loss in room; the remainder is the weight of the loss in balanced room."""
SCARCITY = 0.15
"""The cost of a GPU of a model that all pods insist on."""
DRAINING = 0.5
"""The cost of an empty node while no idle node of the largest kind is left."""
BESIDE_GPUS = 0.3
"""The cost for a pod without GPUs of a node whose GPUs are all free."""
LEFT_CPU = 1 / 128_000
"""The cost for a pod with several GPUs of each thousandth of a core left free on the node."""
IDLE_TARGET = 0.1
"""Which part of the largest nodes is to be idle."""
DRAINING_STEPS = 4
"""In how many steps draining begins."""
FEEDING = 0.9
"""Which part of the CPU and memory of a node feeds its GPUs; also, which part of the CPU is free on an idle node."""
ROUNDED = 0.01
"""Losses are rounded to multiples of this number of GPUs."""


class Packing:
    """Places pods of a cluster, and learns from them."""

    def __init__(self, rows: NodeRows) -> None:
        """Follow `rows`; whoever changes a row says so with `changed`."""
        self._rows = rows
        self._seen = SeenPods()
        self._values: Numbers = np.array(LINEAR)
        self._share_costs: dict[int, Numbers] = {}
        """What `_costs` found, by the size of a share."""
        self._scarcity: Numbers = np.zeros(len(rows.gpus))
        self._largest: Flags = (rows.gpus == rows.gpus.max(initial=0)) & (rows.gpus > 0)
        self.room: Numbers = np.zeros(len(rows.gpus))
        """The room of each node, in GPUs."""
        self.balanced: Numbers = np.zeros(len(rows.gpus))
        """The balanced room of each node, in GPUs."""
        self.idle: Flags = np.zeros(len(rows.gpus), np.bool_)
        """Which of the largest nodes are idle."""
        self.recompute()

    def see(self, kind: PodKind) -> None:
        """Take note of a pod that is to be placed, once for each pod."""
        if self._seen.see(kind):
            self._learn()

    def changed(self, row: int) -> None:
        """Take note that what is free on a node has changed."""
        self._recompute(slice(row, row + 1))

    def recompute(self) -> None:
        """Compute all rows anew."""
        self._recompute(slice(None))

    def choose(self, kind: PodKind) -> Spot | None:
        """Return where a pod loses least, the first such node in order; None if the pod fits nowhere."""
        fitting = self._rows.fitting(kind)
        if not fitting.size:
            return None
        gpus, losses = self.losses(kind, fitting)
        best = int(np.floor(losses / ROUNDED + 0.5).argmin())
        return self._rows.spot(int(fitting[best]), kind, int(gpus[best]))

    def losses(self, kind: PodKind, fitting: Integers) -> tuple[Integers, Numbers]:
        """Return the GPU for a share, and the loss in GPUs, on each of the nodes that have room for a pod."""
        gpus, lost = np.zeros_like(fitting), np.full(len(fitting), float(kind.gpus))
        losses = np.zeros(len(fitting))
        if kind.is_share:
            gpus, lost, left = self._best_gpus(kind.percent, fitting)
            losses += TIGHTNESS * left
        losses += self._loss_of_room(kind, fitting, lost)
        if not kind.gpus:
            return gpus, losses + BESIDE_GPUS * self._free_part(fitting)
        losses += self._scarcity[fitting] * (kind.gpu_percent / WHOLE)
        if (draining := self._draining()) > 0:
            losses += draining * DRAINING * self._free_part(fitting, kind.gpu_percent)
        if kind.gpus > 1:
            losses += LEFT_CPU * (self._rows.free_cpu[fitting] - kind.cpu)
        return gpus, losses

    def _best_gpus(self, percent: int, fitting: Integers) -> tuple[Integers, Numbers, Numbers]:
        """Return the best GPU for a share on each node, the value that is lost there, and the part that is left."""
        free = self._rows.free[fitting]
        gpus = self._costs(percent)[free].argmin(axis=1)
        before = free[np.arange(len(fitting)), gpus]
        after = before - percent
        return gpus, self._values[before] - self._values[after], after / WHOLE

    def _costs(self, percent: int) -> Numbers:
        """Return what a share costs on each free piece from 0 to 100 percent; infinite if the share has no room."""
        if percent not in self._share_costs:
            values = self._values.tolist()
            fitting = [share_cost(values, free, percent) for free in range(percent, WHOLE + 1)]
            self._share_costs[percent] = np.array([np.inf] * percent + fitting)
        return self._share_costs[percent]

    def _loss_of_room(self, kind: PodKind, fitting: Integers, lost: Numbers) -> Numbers:
        rows = self._rows
        after = self._balanced(
            fitting,
            self.room[fitting] - lost,
            rows.free_cpu[fitting] - kind.cpu,
            rows.free_memory[fitting] - kind.memory,
        )
        return ROOM * lost + (1 - ROOM) * (self.balanced[fitting] - after)

    def _balanced(self, rows: Integers | slice, room: Numbers, cpu: Integers, memory: Integers) -> Numbers:
        """Return the balanced room of nodes with so much room, free CPU and free memory."""
        all_rows = self._rows
        fed = all_rows.gpus[rows] / FEEDING
        by_cpu = fed * cpu / np.maximum(1, all_rows.cpu[rows])
        by_memory = fed * memory / np.maximum(1, all_rows.memory[rows])
        return np.minimum(room, np.minimum(by_cpu, by_memory))

    def _free_part(self, fitting: Integers, taken: int = 0) -> Numbers:
        """Return which part of a node's GPUs is free after a pod has taken some; 0 for nodes without GPUs."""
        return (self._rows.free_percent[fitting] - taken) / np.maximum(1, WHOLE * self._rows.gpus[fitting])

    def _draining(self) -> float:
        """Return how much nodes are to be drained, from 0 to 1."""
        wanted = IDLE_TARGET * np.count_nonzero(self._largest)
        if not self._seen.several or not wanted:
            return 0.0
        missing = max(0.0, 1 - np.count_nonzero(self.idle) / wanted)
        return math.ceil(DRAINING_STEPS * missing) / DRAINING_STEPS

    def _recompute(self, rows: slice) -> None:
        nodes = self._rows
        self.room[rows] = self._values[nodes.free[rows]].sum(axis=1)
        self.balanced[rows] = self._balanced(rows, self.room[rows], nodes.free_cpu[rows], nodes.free_memory[rows])
        empty = nodes.free_whole[rows] == nodes.gpus[rows]
        self.idle[rows] = self._largest[rows] & empty & (nodes.free_cpu[rows] >= FEEDING * nodes.cpu[rows])

    def _learn(self) -> None:
        self._values = np.array(part_values(self._seen.shares))
        self._share_costs.clear()
        self._scarcity = SCARCITY * self._insistence()[self._rows.model]
        self._seen.learned()
        self.recompute()

    def _insistence(self) -> Numbers:
        """Return the demand of pods that insist on each model, per GPU of the model, divided by all demand per GPU."""
        rows = self._rows
        gpus = np.bincount(rows.model, rows.gpus, len(rows.models))
        demand = self._seen.demand
        insistence = np.zeros(len(rows.models))
        for models in filter(None, demand):
            accepted = rows.among(models)
            if (supply := gpus[accepted].sum()) > 0:
                insistence[accepted] += demand[models] / sum(demand.values()) * gpus.sum() / supply
        return insistence
