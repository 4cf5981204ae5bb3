"""Tests of the benchmarks: that every one of them measures something, never how long anything takes."""

import json
import math
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import commands
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary
from benchmarks.machine import machine
from benchmarks.measures.web import CHROMIUM
from benchmarks.packing import PackingGoal, goals
from benchmarks.processes import python
from benchmarks.registry import MEASURES
from benchmarks.report import as_data, findings
from gpushare_plugin.simulator.comparison import Mode, Simulation, compare
from gpushare_plugin.simulator.scenario import Scenario
from tests.unit.simulator.traces import a_trace

LEAST = Effort(0.001)


@pytest.mark.parametrize("name", MEASURES)
async def test_every_measure_gives_figures(name: str) -> None:
    """Whatever is measured comes out as figures of one name each, which JSON keeps as they are."""
    if name == "web" and shutil.which(CHROMIUM) is None:
        pytest.skip(f"Debian's package `{CHROMIUM}` is not installed")
    figures = await MEASURES[name](LEAST)
    assert figures
    assert len({figure.name for figure in figures}) == len(figures)
    assert all(figure.measured.count >= 1 for figure in figures)
    data = json.loads(json.dumps(as_data(figures, machine())))
    assert list(map(Figure.from_data, data["figures"])) == figures


def test_p99_is_the_worst_of_a_few_and_the_hundredth_of_many() -> None:
    """A statistic is a sample that was measured, but for the median of an even number."""
    assert Summary.of([3, 1, 2]) == Summary(median=2, p99=3, worst=3, count=3)
    assert Summary.of(range(1, 201)) == Summary(median=100.5, p99=198, worst=200, count=200)


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (Goal("median", 2), True),
        (Goal("median", 1.9), False),
        (Goal("worst", 9), True),
        (Goal("p99", 2, of_floor=True), False),
        (Goal("p99", 2.25, of_floor=True), True),
        (Goal("median", 1, of_floor=True), True),
    ],
)
def test_a_goal_is_met_up_to_its_limit(goal: Goal, met: bool) -> None:  # noqa: FBT001 - what is expected
    """A goal bounds one statistic, by a number or by a multiple of the floor's same statistic."""
    figure = Figure("what", "ms", Summary.of([1, 2, 9]), Summary.of([1, 2, 4]))
    assert figure.meets(goal) is met


def test_statistics_of_several_runs_are_medians() -> None:
    """Of the figure and of its floor; a run at a bad moment, or at the best one, does not decide."""
    runs = [
        Figure("what", "ms", Summary.of([measured]), Summary.of([floor]), (Goal("p99", 2, of_floor=True),), note)
        for measured, floor, note in ((3, 1, "first"), (9, 1, "second"), (5, 2, "third"))
    ]
    figure = Figure.of_runs(runs)
    assert figure == Figure(
        "what", "ms", Summary(5, 5, 5, 3), Summary(1, 1, 1, 3), (Goal("p99", 2, of_floor=True),), "third"
    )
    assert list(findings([figure], 3, [0.5, 2.25, 1]))[1:] == [
        "Goals missed: 1 of 1:",
        "- what: 5 ms (goal p99 ≤ 2 x floor, the floor is 1)",
    ]


def test_figures_come_with_the_load_and_the_missed_goals() -> None:
    """Whoever reads a table sees of how many runs it is, how busy the machine was, and what is not as it should be."""
    met = Figure("what", "ms", Summary.of([1]), goals=(Goal("worst", 1),))
    first, second = findings([met], 1, [0.5, 2.25])
    assert first.startswith("One run, at loads of 0.5 to 2.2 on ")
    assert second == "Goals missed: 0 of 1."


async def test_the_memory_of_a_round_is_that_of_its_own_process(tmp_path: Path) -> None:
    """However much memory whoever measures it had before."""
    had = bytes(range(256)) * (1 << 20)
    arguments = ("-m", "benchmarks.cluster.partition", "2", "2", "1", "0.7", "0.8")
    async with python(*arguments, output=tmp_path / "output") as process:
        assert await process.process.wait() == 0
    found = json.loads((tmp_path / "output").read_text())
    assert found["before"] <= found["most"] < len(had) / 1024**2


def test_compare_tells_what_changed(tmp_path: Path) -> None:
    """Two runs are compared by name: change of the median, both ratios, what came and went, and other machines."""
    old = run_file(tmp_path / "old.json", {"Allocate": (200, 100), "gone": (1, None)}, cores=2)
    new = run_file(tmp_path / "new.json", {"Allocate": (150, 50), "added": (7, None)}, cores=4)
    result = CliRunner().invoke(commands, ["compare", str(old), str(new)])
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert lines == [
        ["FIGURE", "OLD", "NEW", "CHANGE", "OLD", "RATIO", "NEW", "RATIO"],
        ["Allocate", "200", "150", "-25", "%", "2", "3", "ms"],
        ["gone", "1", "gone", "ms"],
        ["added", "7", "new", "ms"],
        ["another", "machine:", "cores:", "2", "->", "4"],
    ]


def run_file(file: Path, medians: dict[str, tuple[float, float | None]], **facts: Any) -> Path:
    """Write a run down whose figures have these medians, of their own and of their floors."""
    figures = [
        Figure(name, "ms", Summary.of([measured]), None if floor is None else Summary.of([floor]))
        for name, (measured, floor) in medians.items()
    ]
    file.write_text(json.dumps(as_data(figures, facts)))
    return file


def test_the_goals_of_packing_are_read_from_what_was_simulated() -> None:
    """Each goal has the number of the report; a number that is out of bounds, or no number at all, misses the goal."""
    policies = ("packing", "fgd", "best-fit")
    scenario = Scenario(a_trace(), "", ())
    filled, churned = (compare(Simulation(scenario, policies, mode, 95, 1), 1, lambda: None) for mode in get_args(Mode))
    found = {goal.what: goal for goal in goals(filled, churned)}
    assert [found[f"allocated by {each.policy} at 130 %"].found for each in filled.policies] == [
        each.filled[-1].allocated for each in filled.policies
    ]
    ours, theirs, _ = (each.churned.allocated for each in churned.policies if each.churned is not None)
    assert found["packing ahead of fgd with churn, in points"].found == ours - theirs
    assert str(PackingGoal("what", 95.5, 95, 95.5)) == "met     what: found 95.50, expected 95 to 95.5"
    assert str(PackingGoal("what", 0.99, 1)) == "MISSED  what: found 0.99, expected at least 1"
    assert not any(goal.met for goal in (PackingGoal("what", math.nan, 1), PackingGoal("what", 95.6, 95, 95.5)))
