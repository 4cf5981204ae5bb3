"""Tests of the two modes and of what is reported."""

from datetime import UTC, datetime
from typing import TypeVar

import pytest

from gpushare_plugin.base.errors import GpushareError
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
from gpushare_plugin.simulator.scenario import Scenario, scenario
from gpushare_plugin.simulator.tables import at_last, lines
from gpushare_plugin.simulator.trace import Trace
from gpushare_plugin.simulator.what_ifs import FoundNode, WhatIfs
from gpushare_plugin.web.simulation_report import simulation_report
from tests.unit.simulator.traces import NODES, a_trace

PACKING = ("packing", "fgd", "random")
A_SCENARIO = Scenario(a_trace(), "Nodes and pods from a test", ["1 node added", "3 nodes removed"])


T = TypeVar("T")


def reached(found: T | None) -> T:
    """Return what was found at a level of demand that was reached."""
    assert found is not None
    return found


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
        assert 50 < reached(each.allocated) <= min(100, each.demand)
        assert 0 <= reached(each.unusable) <= 100 + 1e-9
        assert each.allocated == next(at.allocated for at in curve if at.demand == each.demand)
    assert all(max(0, at.demand - 3) < reached(at.allocated) <= at.demand for at in curve if at.demand <= 50)


def test_pods_come_until_the_full_demand() -> None:
    """Pods that ask for 130 % of all GPUs all come: here both models are full only after the last of the pods."""
    nodes = (NodeKind(96_000, 393_216, 10, "T4"), NodeKind(96_000, 393_216, 10, "V100"))
    pods = [PodKind(1_000, 1_024, 1, 100, frozenset({model})) for model in ["T4"] * 16 + ["V100"] * 10]
    for seed in range(1, 4):
        *_, before, full = fill(Trace(nodes, tuple(pods)), "packing", seed).filled
        assert reached(before.allocated) < reached(full.allocated) == 100


def test_a_pod_that_asks_for_too_much_ends_nothing() -> None:
    """Other pods come until the full demand; the large pod is refused."""
    small, large = PodKind(0, 0, 1, 10), PodKind(0, 0, 4)
    trace = Trace((NodeKind(96_000, 786_432, 2, "A100"),), (*[small] * 9, large))
    for seed in range(1, 4):
        nine, _, full = fill(trace, "packing", seed).filled
        assert (reached(nine.allocated), reached(full.allocated)) == (90, 100)
        assert reached(full.refused_pods).several == 100


def test_a_level_that_no_demand_comes_near_has_no_numbers() -> None:
    """Three GPUs and whole pods: their demand is 67 %, 100 %, and not more. Tables show the last level reached."""
    scenario = Scenario(Trace((NodeKind(1, 1, 3, "T4"),), (PodKind(0, 0, 1),)), "Nodes from a test", ())
    report = compare(Simulation(scenario, ("packing", "random"), "fill", 95, 2), 1, lambda: None)
    filled, curve = report.policies[0].filled, report.policies[0].curve
    assert [each.allocated for each in filled] == [None, 100, None]
    assert {at.demand for at in curve if at.allocated is None} == {
        *(20, 25, 30, 50, 55, 60, 65, 85, 90, 95, 120, 125, 130)
    }
    shown = list(lines(report, Style()))
    assert shown[1].startswith("1 node with 3 GPUs; 1 pod asks for 1.0 GPUs.")
    assert shown[4].split() == ["packing", "-", "100.00", "-", "-", "0.00", "-"]
    assert any(line.startswith("Refused pods at 100 %") for line in shown)
    assert simulation_report(report, datetime.now(UTC)).count("<svg") == 2


def test_pods_that_fit_no_node_are_told() -> None:
    """With what each asks for; a simulation without others is refused."""
    upper, wide = PodKind(4_000, 16_384, 1, 81, frozenset({"t4"})), PodKind(97_000, 0, 9)
    node = FoundNode("", NodeKind(96_000, 786_432, 8, "T4"))
    told = "2 with 81 % of a GPU t4, 4 cores, 16 GiB; 1 with 9 GPUs, 97 cores, 0 GiB"

    def found(*pods: PodKind) -> Scenario:
        return scenario([node], lambda _: pods, "Nodes from a test", WhatIfs())

    fitting = found(upper, wide, upper, PodKind(0, 0, 1))
    report = compare(Simulation(fitting, ("packing",), "fill", 95, 1), 1, lambda: None)
    assert f"Pods that fit no node, even alone: {told}." in list(lines(report, Style()))
    with pytest.raises(GpushareError, match=f"found no pod with a GPU that fits a node, .*{told}"):
        found(upper, wide, upper, PodKind(0, 0, 0))


@pytest.mark.parametrize(("mode", "load"), [("fill", 95), ("churn", 1)])
def test_a_run_that_would_take_days_is_refused(mode: Mode, load: float) -> None:
    """A share that comes once among a hundred thousand pods without GPUs does not fill a cluster."""
    pods = (*[PodKind(1_000, 0, 0)] * 100_000, PodKind(0, 0, 1, 1))
    endless = Scenario(Trace(NODES, pods), "", ())
    with pytest.raises(GpushareError, match=r"a run would have about .* pods, expected 2,000,000 at most"):
        compare(Simulation(endless, ("packing",), mode, load, 1), 1, lambda: None)
    with pytest.raises(GpushareError, match="found 100,001 nodes, expected 100,000 at most"):
        scenario([FoundNode("", NODES[0])] * 100_001, lambda _: pods, "", WhatIfs())


def test_packing_allocates_more_than_chance() -> None:
    """With shares that leave parts over, the policy beats random placement, filling up and with pods that go."""
    report = compared("fill", seeds=3)
    packing, _, chance = report.policies
    assert reached(packing.filled[-1].allocated) > reached(chance.filled[-1].allocated) + 2
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
    refused = reached(full.refused_pods)
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
    assert mean([(1.0, None), (None, None), (2.0, None)]) == (1.5, None)


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
    seeds = [reached(seed.filled[1].allocated) for seed in report.policies[0].seeds]
    assert first[1].split()[2] == f"{sum(seeds) / 2:.2f}"
    assert refused[1].split()[4] == f"{at_last(report)[0].refused_pods.none:.2f}"
    assert left[1].split()[10] == f"{at_last(report)[0].leftover.gpus_by_size[9]:.2f}"
    _, _, _, _, _, titles, *rows = lines(compared("churn", seeds=1), Style())
    assert titles.split() == ["POLICY", "AT", "95", "ALLOCATED", "REFUSED"]
    assert [row.split()[0] for row in rows[:3]] == list(PACKING)
    assert rows[-4].split() == ["POLICY", "SHARE", "ONE", "SEVERAL", "NONE"]
