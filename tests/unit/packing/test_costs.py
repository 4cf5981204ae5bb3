"""Tests of what shares cost on GPUs, in percent and in units."""

from random import Random

import numpy as np
import pytest

from gpushare_plugin.packing.costs import NO_ROOM, ShareCosts, free_percent, sizes_in_percent
from gpushare_plugin.packing.pod_kind import PodKind, percent_of_units
from gpushare_plugin.packing.policy import LEFT_CPU, Packing
from gpushare_plugin.packing.rows import NodeKind, NodeRows
from gpushare_plugin.packing.values import part_values


@pytest.mark.parametrize(
    ("size", "units", "percent"), [(1, 8, 12), (7, 21, 33), (12, 21, 58), (21, 21, 100), (1, 500, 1), (27, 80, 34)]
)
def test_a_share_is_rounded_up_unless_fewer_would_fit(size: int, units: int, percent: int) -> None:
    """An eighth is 12 percent, because eight eighths fit; of 21 units, 12 are 58 percent: two do not fit anyway."""
    whole = np.array([units])
    assert sizes_in_percent(size, whole, whole).tolist() == [percent]


def test_a_gpu_has_as_many_shares_by_percent_as_by_units() -> None:
    """No share is refused by rounding: a size fits as often by percent, and has room wherever units are free."""
    for units in (8, 21, 80, 100):
        for size in range(1, units + 1):
            free = np.arange(units % size, units + 1, size)
            percents = sizes_in_percent(size, free, np.full_like(free, units))
            assert ((percents == NO_ROOM) == (free < size)).all()
            assert 100 // percents[-1] >= units // size
            assert percents[-1] == percent_of_units(size, units)


def test_the_cost_of_units_is_that_of_their_percent() -> None:
    """A GPU without room costs infinitely much; the tightest of pieces of equal loss costs least."""
    costs = ShareCosts(part_values({50: 1.0}))
    free, units = np.array([4, 8, 16, 16]), np.array([16, 16, 16, 32])
    assert (
        costs.of_units(8, free, units).tolist()
        == costs.on(np.array([101, 50, 50, 25]), free_percent(free, units)).tolist()
    )
    assert np.isinf(costs.of_units(8, free, units)[0])


def test_several_shares_take_the_cheapest_gpus() -> None:
    """Two shares lose what one loses on the tightest GPU, and what one loses on the next, in room and in tightness."""
    kind = NodeKind(100_000, 100_000, 4, "A")
    rows = NodeRows([kind])
    rows.put(0, kind, [100, 50, 30, 60], 100_000, 100_000)
    policy, nodes = Packing(rows), np.array([0])
    gpus, losses = policy.losses(PodKind(0, 0, 2, 30), nodes)
    one = [policy.losses(PodKind(0, 0, 1, 30), nodes, np.array([mask]))[1][0] for mask in _only(2, 1)]
    assert gpus.tolist() == [2]
    assert losses[0] == pytest.approx(sum(one) + 100_000 * LEFT_CPU)


def _only(*columns: int) -> list[list[int]]:
    """Return the sizes of a share of 30 percent that can have one of four GPUs, for each of `columns`."""
    return [[30 if column == only else NO_ROOM for column in range(4)] for only in columns]


def test_rows_grow_and_are_used_again() -> None:
    """Nodes that came, changed and went leave rows equal to those of a cluster that began so."""
    chance = Random(1)  # noqa: S311 - no secret
    kinds = [NodeKind(8_000, 1_000, 2, "B"), NodeKind(16_000, 2_000, 8, "A"), NodeKind(4_000, 500, 0)]
    rows = NodeRows(())
    asked = PodKind(1_000, 10, 1, 40, frozenset({"A"}))
    for row, kind in enumerate(kinds):
        assert rows.fitting(asked).tolist() == [1] * (row > 1)
        rows.make_room(row + 1, kind.gpus)
        assert rows.put(row, kind, [100] * kind.gpus, kind.cpu, kind.memory)
        assert not rows.put(row, kind, [chance.randint(0, 99)] * kind.gpus, 0, 0)
        rows.put(row, kind, [100] * kind.gpus, kind.cpu, kind.memory)
    fresh, policy = NodeRows(kinds), Packing(rows)
    assert [rows.models[model] for model in rows.model] == [fresh.models[model] for model in fresh.model]
    for name in ("gpus", "cpu", "memory", "free", "free_cpu", "free_memory", "free_percent", "free_whole"):
        assert np.array_equal(getattr(rows, name), getattr(fresh, name)), name
    assert policy.choose(asked) == Packing(fresh).choose(asked)
