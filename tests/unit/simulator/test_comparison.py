"""Tests of the two modes and of what is reported."""

import pytest

from gpushare_plugin.observe.cluster.columns import Style
from gpushare_plugin.observe.parts import encode
from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import NodeKind
from gpushare_plugin.simulator.churn import churn
from gpushare_plugin.simulator.comparison import Mode, Simulation, SimulationReport, compare
from gpushare_plugin.simulator.filling import LEVELS, fill
from gpushare_plugin.simulator.policies.table import COMPARED
from gpushare_plugin.simulator.tables import lines
from gpushare_plugin.simulator.trace import Trace
from tests.unit.simulator.traces import NODES, a_trace

PACKING = ("packing", "fgd", "random")


def compared(mode: Mode, processes: int = 1, seeds: int = 2, policies: tuple[str, ...] = PACKING) -> SimulationReport:
    """Compare policies on the small trace."""
    return compare(Simulation(a_trace(), policies, mode, 95, seeds), processes, lambda: None)


@pytest.mark.parametrize("mode", ["fill", "churn"])
def test_a_seed_gives_the_same_result_in_any_number_of_processes(mode: Mode) -> None:
    """Two runs have the same JSON, byte by byte."""
    assert encode(compared(mode)) == encode(compared(mode, processes=2))


def test_another_seed_gives_other_pods() -> None:
    """Seeds are not the same run again."""
    assert len({fill(a_trace(), "packing", seed) for seed in (1, 2, 3)}) == 3


def test_every_policy_gets_the_same_pods() -> None:
    """Below the room of the cluster every policy takes all pods, and so allocates the same: no pod differs."""
    small = Trace(NODES, a_trace().pods)
    at_load_20 = {round(churn(small, policy, 1, 20).allocated, 6) for policy in COMPARED}
    assert len(at_load_20) == 1


@pytest.mark.parametrize("pods", [30, 120, 400])
def test_filling_reaches_every_level(pods: int) -> None:
    """Whether the trace asks for less or for more than the full demand, each level is reached."""
    filled = fill(a_trace(pods), "packing", 1)
    assert [each.demand for each in filled] == list(LEVELS)
    for each in filled:
        assert 50 < each.allocated <= min(100, each.demand + 0.5)
        assert 0 <= each.unusable <= 100


def test_pods_come_until_the_full_demand() -> None:
    """Pods that ask for 130 % of all GPUs all come: here both models are full only after the last of the pods."""
    nodes = (NodeKind(96_000, 393_216, 10, "T4"), NodeKind(96_000, 393_216, 10, "V100"))
    pods = [PodKind(1_000, 1_024, 1, 100, frozenset({model})) for model in ["T4"] * 16 + ["V100"] * 10]
    for seed in range(1, 4):
        *_, before, full = fill(Trace(nodes, tuple(pods)), "packing", seed)
        assert before.allocated < full.allocated == 100


def test_packing_allocates_more_than_chance() -> None:
    """With shares that leave parts over, the policy beats random placement, filling up and with pods that go."""
    report = compared("fill", seeds=3)
    packing, _, chance = report.policies
    assert packing.filled[-1].allocated > chance.filled[-1].allocated + 2
    packed, _, by_chance = compared("churn").policies
    assert packed.churned is not None
    assert by_chance.churned is not None
    assert packed.churned.allocated > by_chance.churned.allocated


def test_the_load_is_what_is_asked_for() -> None:
    """Where nothing is refused, the allocated part is the load on average over time and seeds."""
    results = [churn(a_trace(), "packing", seed, 50) for seed in range(1, 9)]
    assert all(each.refused == 0 for each in results)
    assert sum(each.allocated for each in results) / len(results) == pytest.approx(50, abs=3)


def test_the_table_has_the_means_of_the_seeds() -> None:
    """A row for each policy in the order that was asked for, with two decimals."""
    report = compared("fill")
    head, empty, titles, *rows = lines(report, Style())
    assert head.startswith("20 nodes with 88 GPUs; 120 pods ask for ")
    assert head.endswith("In percent, mean of the seeds 1 to 2:")
    assert not empty
    assert titles.split()[0] == "POLICY"
    assert [row.split()[0] for row in rows] == list(PACKING)
    seeds = [seed.filled[1].allocated for seed in report.policies[0].seeds]
    assert rows[0].split()[2] == f"{sum(seeds) / 2:.2f}"
    _, _, titles, *rows = lines(compared("churn", seeds=1), Style())
    assert titles.split() == ["POLICY", "AT", "95", "ALLOCATED", "REFUSED"]
    assert len(rows) == 3
