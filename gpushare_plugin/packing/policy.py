"""The policy `packing`: a pod goes where the least room for pods to come is lost.

The room of a node is the sum of the values of its free pieces. Its balanced room is the room that the free CPU and
memory of the node can feed. docs/adr/0029 explains the rules and the numbers.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gpushare_plugin.packing.costs import ShareCosts
from gpushare_plugin.packing.pod_kind import WHOLE, PodKind
from gpushare_plugin.packing.rows import Flags, Integers, NodeRows, Numbers, Spot
from gpushare_plugin.packing.seen import Lesson, SeenPods
from gpushare_plugin.packing.values import TIGHTNESS, part_values

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


class Learned(NamedTuple):
    """What a policy has learned from a lesson."""

    costs: ShareCosts
    """The values of free pieces, and the costs of shares by these values."""
    demand: Mapping[frozenset[str], float]
    """The GPU demand of the pods that accept these models only, in percent of a GPU; empty for any model."""


def learned(lesson: Lesson) -> Learned:
    """Return what a policy learns from a lesson; takes some milliseconds, and may run in another thread."""
    return Learned(ShareCosts(part_values(lesson.shares)), lesson.demand)


class _ChosenGpus(NamedTuple):
    """The GPUs that a pod would take on each of some nodes."""

    gpus: Integers
    """The column of the GPU, or of the first of several."""
    lost: Numbers
    """The value in GPUs that the free pieces lose."""
    left: Numbers
    """What stays free of the GPUs, in GPUs."""
    percent: Numbers
    """What the pod takes of the GPUs, in percent of one GPU."""


class Packing:
    """Places pods of a cluster, and learns from them."""

    def __init__(self, rows: NodeRows) -> None:
        """Follow `rows`; whoever changes rows says so with `changed`, `recompute` or `rebuild`."""
        self._rows = rows
        self._seen = SeenPods()
        self.learned = Learned(ShareCosts(), {})
        """What the last lesson taught; before the first lesson, a free piece is worth its size."""
        self.rebuild()

    def see(self, kind: PodKind) -> None:
        """Take note of a pod that is to be placed, once for each pod, and learn if a lesson is due."""
        if self.note(kind):
            self.apply(learned(self.lesson()))

    def note(self, kind: PodKind) -> bool:
        """Take note of a pod that is to be placed, once for each pod; return whether a lesson is due."""
        return self._seen.see(kind)

    def lesson(self) -> Lesson:
        """Begin a lesson: return what was seen until now."""
        return self._seen.lesson()

    def apply(self, found: Learned) -> None:
        """Use what was learned from now on."""
        self.learned = found
        self.rebuild()

    def recall(self, lesson: Lesson) -> None:
        """Go on from a lesson of another process."""
        self._seen = SeenPods(lesson)
        self.apply(learned(lesson))

    @property
    def smallest(self) -> int:
        """The smallest common size of a share; see `SeenPods.smallest`."""
        return self._seen.smallest

    def changed(self, row: int) -> None:
        """Take note that what is free on a node has changed."""
        self.recompute(slice(row, row + 1))

    def rebuild(self) -> None:
        """Take note of new rows, and of rows that stand for other nodes; compute everything anew."""
        rows = self._rows
        self._largest: Flags = (rows.gpus == rows.gpus.max(initial=0)) & (rows.gpus > 0)
        self._scarcity: Numbers = SCARCITY * self._insistence()[rows.model]
        self.room: Numbers = np.zeros(len(rows.gpus))
        """The room of each node, in GPUs."""
        self.balanced: Numbers = np.zeros(len(rows.gpus))
        """The balanced room of each node, in GPUs."""
        self.idle: Flags = np.zeros(len(rows.gpus), np.bool_)
        """Which of the largest nodes are idle."""
        self.recompute()

    def recompute(self, rows: Integers | slice = slice(None)) -> None:
        """Compute some rows anew, or all."""
        nodes = self._rows
        self.room[rows] = self.learned.costs.values[nodes.free[rows]].sum(axis=1)
        self.balanced[rows] = self._balanced(rows, self.room[rows], nodes.free_cpu[rows], nodes.free_memory[rows])
        empty = nodes.free_whole[rows] == nodes.gpus[rows]
        self.idle[rows] = self._largest[rows] & empty & (nodes.free_cpu[rows] >= FEEDING * nodes.cpu[rows])

    def choose(self, kind: PodKind) -> Spot | None:
        """Return where a pod loses least, the first such node in order; None if the pod fits nowhere."""
        fitting = self._rows.fitting(kind)
        if not fitting.size:
            return None
        gpus, losses = self.losses(kind, fitting)
        best = int(rounded(losses).argmin())
        return self._rows.spot(int(fitting[best]), kind, int(gpus[best]))

    def losses(self, kind: PodKind, fitting: Integers, percents: Integers | None = None) -> tuple[Integers, Numbers]:
        """Return the GPU for a share, and the loss in GPUs, on each of the nodes that have room for a pod.

        `percents` has what the pod would take of each GPU, by node and column, where this differs between GPUs:
        NO_ROOM for a GPU that the pod cannot have. A pod with several GPUs gets the cheapest.
        """
        if percents is not None or kind.is_share:
            taken = self._cheapest(kind.gpus, kind.percent if percents is None else percents, fitting)
        else:
            none, lost = np.zeros(len(fitting)), np.full(len(fitting), float(kind.gpus))
            taken = _ChosenGpus(np.zeros_like(fitting), lost, none, WHOLE * lost)
        losses = TIGHTNESS * taken.left + self._loss_of_room(kind, fitting, taken.lost)
        if not kind.gpus:
            return taken.gpus, losses + BESIDE_GPUS * self._free_part(fitting, taken.percent)
        losses += self._scarcity[fitting] * (taken.percent / WHOLE)
        if (draining := self._draining()) > 0:
            losses += draining * DRAINING * self._free_part(fitting, taken.percent)
        if kind.gpus > 1:
            losses += LEFT_CPU * (self._rows.free_cpu[fitting] - kind.cpu)
        return taken.gpus, losses

    def _cheapest(self, count: int, percents: int | Integers, fitting: Integers) -> _ChosenGpus:
        """Return the cheapest GPUs for a number of shares on each node, the first of equally cheap GPUs."""
        values, free = self.learned.costs.values, self._rows.free[fitting]
        costs = self.learned.costs.on(percents, free)
        gpus = costs.argmin(axis=1)[:, None] if count == 1 else costs.argsort(axis=1, kind="stable")[:, :count]
        nodes = np.arange(len(fitting))[:, None]
        before = free[nodes, gpus]
        sizes = np.full_like(before, percents) if isinstance(percents, int) else percents[nodes, gpus]
        after = np.maximum(0, before - sizes)
        lost = np.where(sizes <= WHOLE, values[before] - values[after], np.inf)
        return _ChosenGpus(
            gpus[:, 0], lost.sum(axis=1), after.sum(axis=1) / WHOLE, sizes.sum(axis=1).astype(np.float64)
        )

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

    def _free_part(self, fitting: Integers, taken: Numbers) -> Numbers:
        """Return which part of a node's GPUs is free after a pod has taken some; 0 for nodes without GPUs."""
        return (self._rows.free_percent[fitting] - taken) / np.maximum(1, WHOLE * self._rows.gpus[fitting])

    def _draining(self) -> float:
        """Return how much nodes are to be drained, from 0 to 1."""
        wanted = IDLE_TARGET * np.count_nonzero(self._largest)
        if not self._seen.several or not wanted:
            return 0.0
        missing = max(0.0, 1 - np.count_nonzero(self.idle) / wanted)
        return math.ceil(DRAINING_STEPS * missing) / DRAINING_STEPS

    def _insistence(self) -> Numbers:
        """Return the demand of pods that insist on each model, per GPU of the model, divided by all demand per GPU."""
        rows = self._rows
        gpus = np.bincount(rows.model, rows.gpus, len(rows.models))
        demand = self.learned.demand
        insistence = np.zeros(len(rows.models))
        for models in filter(None, demand):
            accepted = rows.among(models)
            if (supply := gpus[accepted].sum()) > 0:
                insistence[accepted] += demand[models] / sum(demand.values()) * gpus.sum() / supply
        return insistence


def rounded(losses: Numbers) -> Numbers:
    """Return losses in multiples of ROUNDED: nodes with equal results are equally good."""
    return np.floor(losses / ROUNDED + 0.5)
