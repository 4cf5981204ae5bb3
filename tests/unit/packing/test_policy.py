"""Tests of the policy `packing`."""

from collections.abc import Iterator
from math import ceil
from random import Random

import numpy as np
import pytest

from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.policy import Packing
from gpushare_plugin.packing.rows import NodeKind, NodeRows
from gpushare_plugin.packing.values import LINEAR, part_values
from tests.unit.packing.clusters import NODES, a_node, a_pod, lives

STEPS = 3_000


def a_cluster(chance: Random) -> NodeRows:
    """Return a small cluster of any nodes."""
    return NodeRows([a_node(chance) for _ in range(20)])


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_follow_each_change_equal_rows_computed_anew(seed: int) -> None:
    """After thousands of pods that came and went, and lessons meanwhile, no row has drifted."""
    chance = Random(seed)  # noqa: S311 - no secret
    rows = a_cluster(chance)
    policy = Packing(rows)
    for number, (kind, spot) in enumerate(lives(rows, STEPS, chance)):
        policy.see(kind)
        policy.changed(spot.row)
        if number % 100 == 0:
            kept = policy.room.copy(), policy.balanced.copy(), policy.idle.copy()
            assert (rows.free_percent == rows.free.sum(axis=1)).all()
            assert (rows.free_whole == (rows.free == 100).sum(axis=1)).all()
            policy.recompute()
            for each, anew in zip(kept, (policy.room, policy.balanced, policy.idle), strict=True):
                assert np.array_equal(each, anew)


class Plain:
    """The rules of docs/adr/0029 for one node after the other, without arrays."""

    def __init__(self, rows: NodeRows) -> None:
        """Start without any pod."""
        self.rows = rows
        self.values = LINEAR
        self.shares: dict[int, float] = {}
        self.demand: dict[frozenset[str], float] = {}
        self.learned_demand: dict[frozenset[str], float] = {}
        self.seen = 0
        self.several = False

    def see(self, kind: PodKind) -> None:
        """Count a pod, and learn after 100, 200, 400, 800 and 1600 of them."""
        if not kind.gpus:
            return
        self.seen += 1
        self.several |= kind.gpus > 1
        self.demand[kind.models] = self.demand.get(kind.models, 0) + kind.gpus * kind.percent
        if kind.percent < 100:
            self.shares[kind.percent] = self.shares.get(kind.percent, 0) + 1
        if self.seen in {100, 200, 400, 800, 1600}:
            self.values = part_values(self.shares)
            self.learned_demand = dict(self.demand)

    def insistence(self, model: str) -> float:
        """Return the demand of pods that insist on a model, per GPU, beside all demand per GPU."""
        supply = dict.fromkeys(self.rows.models, 0)
        for place, gpus in zip(self.rows.model.tolist(), self.rows.gpus.tolist(), strict=True):
            supply[self.rows.models[place]] += gpus
        every = sum(self.learned_demand.values())
        return sum(
            weight / every * sum(supply.values()) / sum(supply.get(each, 0) for each in models)
            for models, weight in self.learned_demand.items()
            if model in models
        )

    def balanced(self, row: int, room: float, cpu: float, memory: float) -> float:
        """Return the balanced room of a node."""
        gpus = float(self.rows.gpus[row])
        by_cpu = gpus * cpu / (0.9 * float(self.rows.cpu[row]))
        return min(room, by_cpu, gpus * memory / (0.9 * float(self.rows.memory[row])))

    def draining(self) -> float:
        """Return how much nodes are drained."""
        rows, most = self.rows, self.rows.gpus.max()
        big = [row for row in range(len(rows.gpus)) if rows.gpus[row] == most]
        idle = [row for row in big if rows.free_whole[row] == most and rows.free_cpu[row] >= 0.9 * rows.cpu[row]]
        return ceil(4 * max(0.0, 1 - len(idle) / (0.1 * len(big)))) / 4 if self.several else 0.0

    def loss(self, row: int, kind: PodKind) -> float | None:
        """Return the loss on a node; None if the pod has no room there."""
        rows, values = self.rows, self.values
        free: list[int] = rows.free[row].tolist()
        gpus = int(rows.gpus[row])
        cpu, memory = float(rows.free_cpu[row] - kind.cpu), float(rows.free_memory[row] - kind.memory)
        if cpu < 0 or memory < 0 or (kind.models and rows.models[rows.model[row]] not in kind.models):
            return None
        room = sum(values[part] for part in free)
        extra: float = 0.0
        lost: float = 0.0
        if kind.percent < 100:
            costs = [
                (values[part] - values[part - kind.percent] + 0.1 * (part - kind.percent) / 100, part)
                for part in free
                if part >= kind.percent
            ]
            if not costs:
                return None
            best = min(costs)[1]
            lost, extra = values[best] - values[best - kind.percent], 0.1 * (best - kind.percent) / 100
        elif free.count(100) < kind.gpus:
            return None
        else:
            lost = float(kind.gpus)
        before = self.balanced(row, room, float(rows.free_cpu[row]), float(rows.free_memory[row]))
        loss = 0.9 * lost + 0.1 * (before - self.balanced(row, room - lost, cpu, memory)) + extra
        if not kind.gpus:
            return loss + (0.3 * sum(free) / (100 * gpus) if gpus else 0.0)
        taken = kind.gpus * kind.percent
        loss += 0.15 * self.insistence(rows.models[rows.model[row]]) * taken / 100
        loss += self.draining() * 0.5 * (sum(free) - taken) / (100 * gpus)
        return loss + (cpu / 128_000 if kind.gpus > 1 else 0.0)


@pytest.mark.parametrize("seed", range(2))
def test_losses_are_those_of_the_rules(seed: int) -> None:
    """Every loss on every node is what the rules say, before and after lessons; where nothing fits, both say so."""
    chance = Random(seed)  # noqa: S311 - no secret
    rows = a_cluster(chance)
    policy, plain = Packing(rows), Plain(rows)
    for kind, spot in lives(rows, 1_000, chance):
        policy.changed(spot.row)
        asked = a_pod(chance)
        for seen in (kind, asked):
            policy.see(seen)
            plain.see(seen)
        assert_by_the_rules(policy, plain, asked)


def assert_by_the_rules(policy: Packing, plain: Plain, kind: PodKind) -> None:
    """Fail if a loss is not what the rules say, or if a pod does not go where the loss is least but for rounding."""
    rows = plain.rows
    by_rules = {row: loss for row in range(len(rows.gpus)) if (loss := plain.loss(row, kind)) is not None}
    fitting = rows.fitting(kind)
    _, losses = policy.losses(kind, fitting)
    assert dict(zip(fitting.tolist(), losses.tolist(), strict=True)) == pytest.approx(by_rules, abs=1e-6)
    chosen = policy.choose(kind)
    assert (chosen is None) == (not by_rules)
    if chosen is not None:
        assert by_rules[chosen.row] <= min(by_rules.values()) + 0.01 + 1e-6


def test_nodes_are_drained_in_steps() -> None:
    """As idle nodes of the largest kind become scarce, fuller nodes are preferred, in steps of a quarter."""
    rows = NodeRows([NODES[0]] * 30)
    policy, plain, kind = Packing(rows), Plain(rows), PodKind(1_000, 1_024, 2)
    steps = []
    for row in range(30):
        for each in (policy, plain):
            each.see(kind)
        assert_by_the_rules(policy, plain, kind)
        steps.append(plain.draining())
        rows.take(kind, rows.spot(row, kind, 0))
        policy.changed(row)
    assert [steps.count(step) for step in (0.0, 0.5, 0.75, 1.0)] == [28, 1, 1, 0]


def choosing(nodes: list[NodeKind], pods: list[PodKind]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the node and the GPUs of each pod, one pod after the other."""
    rows = NodeRows(nodes)
    policy = Packing(rows)
    for pod in pods:
        policy.see(pod)
        spot = policy.choose(pod)
        assert spot is not None
        rows.take(pod, spot)
        policy.changed(spot.row)
        yield spot


def test_a_share_takes_the_tightest_gpu() -> None:
    """A share goes beside another share, and not onto a GPU that is free."""
    node = NodeKind(cpu=96_000, memory=393_216, gpus=4, model="T4")
    spots = list(
        choosing([node, node], [PodKind(1000, 1024, 1, 60), PodKind(1000, 1024, 1), PodKind(1000, 1024, 1, 40)])
    )
    assert spots[2] == spots[0]


def test_pods_without_gpu_go_where_no_gpu_needs_the_cpu() -> None:
    """A node without GPUs comes before a node whose GPUs are free, and so does a node whose GPUs are taken."""
    gpus, bare, pod = NodeKind(96_000, 393_216, 2, "T4"), NodeKind(8_000, 393_216, 0), PodKind(8_000, 1_024, 0)
    assert [row for row, _ in choosing([gpus, bare], [pod, pod])] == [1, 0]
    pods = [PodKind(96_000, 1_024, 1), PodKind(1_000, 1_024, 2), pod]
    assert [row for row, _ in choosing([gpus, gpus], pods)] == [0, 1, 1]


def test_models_that_pods_insist_on_are_kept_for_these_pods() -> None:
    """After a hundred pods, of which many insist on one model, others take another model."""
    rows = NodeRows([NodeKind(96_000, 393_216, 2, "A100"), NodeKind(96_000, 393_216, 2, "T4")])
    policy, anywhere = Packing(rows), PodKind(1_000, 1_024, 1)
    before = policy.choose(anywhere)
    for _ in range(100):
        policy.see(PodKind(1_000, 1_024, 1, 100, frozenset({"A100"})))
    after = policy.choose(anywhere)
    assert before is not None
    assert after is not None
    assert (before.row, after.row) == (0, 1)


def test_a_pod_that_fits_nowhere_has_no_spot() -> None:
    """Two halves of different GPUs are no whole GPU."""
    policy = Packing(NodeRows([NodeKind(96_000, 393_216, 1, "T4")]))
    assert policy.choose(PodKind(1_000, 1_024, 2)) is None
    assert policy.choose(PodKind(97_000, 1_024, 0)) is None
    assert policy.choose(PodKind(1_000, 1_024, 1, 50, frozenset({"A100"}))) is None
