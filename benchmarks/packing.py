"""`make bench-packing TRACE=DIR`: compares all policies on a published trace, and checks what docs/adr/0029 says.

Ends with status 1 if a goal is missed. What FGD and best-fit are held to is what FGD's authors report.
"""

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import click

from gpushare_plugin.observe.cluster.columns import Style
from gpushare_plugin.simulator.comparison import Mode, PolicyResult, Simulation, SimulationReport, compare
from gpushare_plugin.simulator.policies.table import COMPARED
from gpushare_plugin.simulator.scenario import Scenario
from gpushare_plugin.simulator.tables import lines
from gpushare_plugin.simulator.trace import Trace, read_nodes, read_pods

LOAD = 95
"""The demand of pods that come and go, in percent of all GPUs."""
SEEDS = 3
_LEVEL = 130
"""The demand at which FGD's authors report what is allocated, in percent of all GPUs."""


class PackingGoal(NamedTuple):
    """A number that is to be within bounds."""

    what: str
    """What the number is."""
    found: float
    """The number."""
    least: float
    """The least that the number is to be."""
    most: float = math.inf
    """The most that the number is to be."""

    @property
    def met(self) -> bool:
        """Whether the number is within the bounds."""
        return self.least <= self.found <= self.most

    def __str__(self) -> str:
        """Return a line with what was found and what is expected."""
        expected = f"at least {self.least:g}" if math.isinf(self.most) else f"{self.least:g} to {self.most:g}"
        return f"{'met   ' if self.met else 'MISSED'}  {self.what}: found {self.found:.2f}, expected {expected}"


def goals(filled: SimulationReport, churned: SimulationReport) -> Iterator[PackingGoal]:
    """Yield the goals, for the mean of all seeds unless a goal names a seed."""
    yield PackingGoal("allocated by packing at 100 %", _allocated_at(100, _of("packing", filled)), 96.0)
    yield PackingGoal("allocated by packing at 130 %", _allocated_at(130, _of("packing", filled)), 96.1)
    yield PackingGoal(f"allocated by fgd at {_LEVEL} %", _allocated_at(_LEVEL, _of("fgd", filled)), 95.0, 95.5)
    yield PackingGoal(
        f"allocated by best-fit at {_LEVEL} %", _allocated_at(_LEVEL, _of("best-fit", filled)), 92.8, 93.4
    )
    ahead = {
        ours.seed: ours.churned.allocated - theirs.churned.allocated
        for ours, theirs in zip(_of("packing", churned).seeds, _of("fgd", churned).seeds, strict=True)
        if ours.churned is not None and theirs.churned is not None
    }
    for seed, points in ahead.items():
        yield PackingGoal(f"packing ahead of fgd with churn, seed {seed}, in points", points, 0.01)
    yield PackingGoal("packing ahead of fgd with churn, in points", fmean(ahead.values()), 1)


def _of(policy: str, report: SimulationReport) -> PolicyResult:
    return next(each for each in report.policies if each.policy == policy)


def _allocated_at(demand: int, result: PolicyResult) -> float:
    found = next(each.allocated for each in result.filled if each.demand == demand)
    return math.nan if found is None else found


def _compared(scenario: Scenario, mode: Mode) -> SimulationReport:
    """Compare all policies, and print the tables."""
    simulation = Simulation(scenario, tuple(COMPARED), mode, LOAD, SEEDS)
    report = compare(simulation, len(os.sched_getaffinity(0)), lambda: None)
    click.echo("\n".join(lines(report, Style())) + "\n")
    return report


def main(directory: Path) -> int:
    """Compare all policies on `nodes.csv` and `pods_default.csv` of a directory; return the exit status."""
    nodes, pods = directory / "nodes.csv", directory / "pods_default.csv"
    scenario = Scenario(Trace(read_nodes(nodes), read_pods(pods)), f"Nodes from {nodes}, pods from {pods}", ())
    found = list(goals(_compared(scenario, "fill"), _compared(scenario, "churn")))
    click.echo("\n".join(map(str, found)))
    return 0 if all(each.met for each in found) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
