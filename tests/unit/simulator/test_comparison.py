"""Tests of the two modes and of what is reported."""

import pytest

from gpushare_plugin.observe.cluster.columns import Style
from gpushare_plugin.observe.parts import encode
from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import NodeKind, NodeRows
from gpushare_plugin.simulator.churn import churn
from gpushare_plugin.simulator.comparison import Mode, Simulation, SimulationReport, compare
from gpushare_plugin.simulator.filling import CURVE, LEVELS, fill
from gpushare_plugin.simulator.leftover import Leftover, leftover
from gpushare_plugin.simulator.mean import mean
from gpushare_plugin.simulator.policies.table import COMPARED
from gpushare_plugin.simulator.refused_pods import RefusedPods
from gpushare_plugin.simulator.scenario import Scenario
from gpushare_plugin.simulator.tables import lines
from gpushare_plugin.simulator.trace import Trace
from tests.unit.simulator.traces import NODES, a_trace

PACKING = ("packing", "fgd", "random")
A_SCENARIO = Scenario(a_trace(), "Nodes and pods from a test", ["1 node added", "3 nodes removed"])


def compared(mode: Mode, processes: int = 1, seeds: int = 2, policies: tuple[str, ...] = PACKING) -> SimulationReport:
    """Compare policies on the small trace."""
    return compare(Simulation(A_SCENARIO, policies, mode, 95, seeds), processes, lambda: None)


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
    filled, curve = fill(a_trace(pods), "packing", 1)
    assert [each.demand for each in filled] == list(LEVELS)
    assert [each.demand for each in curve] == list(CURVE)
    for each in filled:
        assert 50 < each.allocated <= min(100, each.demand)
        assert 0 <= each.unusable <= 100 + 1e-9
        assert each.allocated == next(at.allocated for at in curve if at.demand == each.demand)
    assert all(max(0, at.demand - 3) < at.allocated <= at.demand for at in curve if at.demand <= 50)


def test_pods_come_until_the_full_demand() -> None:
    """Pods that ask for 130 % of all GPUs all come: here both models are full only after the last of the pods."""
    nodes = (NodeKind(96_000, 393_216, 10, "T4"), NodeKind(96_000, 393_216, 10, "V100"))
    pods = [PodKind(1_000, 1_024, 1, 100, frozenset({model})) for model in ["T4"] * 16 + ["V100"] * 10]
    for seed in range(1, 4):
        *_, before, full = fill(Trace(nodes, tuple(pods)), "packing", seed).filled
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


def test_refused_pods_are_told_by_what_they_ask_for() -> None:
    """Pods beyond the CPU are refused, whatever they ask for; what never came counts as 0."""
    nodes = (NodeKind(4_000, 393_216, 4, "T4"),)
    one, several, share = PodKind(1_000, 1_024, 1), PodKind(1_000, 1_024, 2), PodKind(2_000, 1_024, 1, 10)
    *_, full = fill(Trace(nodes, (one, several, share, share, share)), "packing", 1).filled
    refused = full.refused_pods
    assert refused.none == 0
    assert 0 < refused.share < 100
    every = fill(Trace((NodeKind(0, 393_216, 4, "T4"),), (one, several, PodKind(1, 1, 0))), "packing", 1).filled[-1]
    assert every.refused_pods == RefusedPods(share=0, one=100, several=100, none=100)
    assert churn(Trace(nodes, (one, PodKind(9_000, 1, 0))), "packing", 1, 500).refused_pods.none == 100


def test_what_is_left_is_told_by_size_with_cpu_beside() -> None:
    """A part counts where its size belongs, and a node without free GPU adds no CPU and no memory."""
    rows = NodeRows([NodeKind(8_000, 8_192, 6, "T4"), NodeKind(8_000, 4_096, 1, "T4")])
    rows.take(kind := PodKind(1_000, 1_024, 1), rows.spot(1, kind, 0))
    for gpu, left in enumerate((10, 11, 20, 21, 90)):
        rows.take(kind := PodKind(500, 1_024, 1, 100 - left), rows.spot(0, kind, gpu))
    assert leftover(rows) == Leftover(gpus_by_size=(0.1, 0.31, 0.21, 0, 0, 0, 0, 0, 0.9, 1), cpu=5.5, memory=3)


def test_the_mean_of_results_is_the_mean_of_their_numbers() -> None:
    """In tuples and in parts within parts; what is the same everywhere keeps its type."""
    first, second = (Leftover(gpus_by_size=(1.0, 2.0), cpu=cpu, memory=4) for cpu in (1.0, 2.0))
    assert mean([first, second]) == Leftover(gpus_by_size=(1.0, 2.0), cpu=1.5, memory=4)
    assert mean([(1.0, 4.0), (2.0, 4.0)]) == (1.5, 4.0)


def test_the_tables_have_the_means_of_the_seeds() -> None:
    """A row for each policy in the order that was asked for, with two decimals."""
    report = compared("fill")
    source, *changes, head, _ = (filled := list(lines(report, Style())))[:5]
    assert source == "Nodes and pods from a test."
    assert changes == ["Changed: 1 node added.", "Changed: 3 nodes removed."]
    assert head.startswith("20 nodes with 88 GPUs; 120 pods ask for ")
    assert head.endswith("In percent, mean of the seeds 1 to 2:")
    tables = [each.split("\n") for each in "\n".join(filled).split("\n\n")]
    (first, refused, left) = tables[1], tables[3], tables[5]
    assert len(tables) == 6
    for table in (first, refused, left):
        assert [row.split()[0] for row in table] == ["POLICY", *PACKING]
    assert "  ALLOCATED AT 100  " in first[0]
    seeds = [seed.filled[1].allocated for seed in report.policies[0].seeds]
    assert first[1].split()[2] == f"{sum(seeds) / 2:.2f}"
    assert refused[1].split()[4] == f"{report.policies[0].filled[-1].refused_pods.none:.2f}"
    assert left[1].split()[10] == f"{report.policies[0].filled[-1].leftover.gpus_by_size[9]:.2f}"
    _, _, _, _, _, titles, *rows = lines(compared("churn", seeds=1), Style())
    assert titles.split() == ["POLICY", "AT", "95", "ALLOCATED", "REFUSED"]
    assert [row.split()[0] for row in rows[:3]] == list(PACKING)
    assert rows[-4].split() == ["POLICY", "SHARE", "ONE", "SEVERAL", "NONE"]
