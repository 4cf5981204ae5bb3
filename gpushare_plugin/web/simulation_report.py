"""A simulation as one file for people: the file loads nothing, runs nothing, and needs no program."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from gpushare_plugin.simulator.comparison import SimulationReport
from gpushare_plugin.simulator.filling import AllocatedAt
from gpushare_plugin.simulator.tables import SIZES, about, at_last, tables
from gpushare_plugin.web.curves import HEIGHT, WIDTH, Curves, curves
from gpushare_plugin.web.markup import in_one_file

_FROM = 70
"""The demand from which on the curve is shown, in percent of all GPUs: before, most policies find room for all pods."""


def simulation_report(report: SimulationReport, made: datetime) -> str:
    """Return a report as HTML; `made` is the time of the report, an aware time."""
    return in_one_file(
        "simulation.html",
        made=made,
        sentences=list(about(report)),
        pictures=list(_filled(report) if report.mode == "fill" else _churned(report)),
        tables=list(tables(report, spread=True)),
        width=WIDTH,
        height=HEIGHT,
    )


def _filled(report: SimulationReport) -> Iterator[Curves]:
    if not (last := at_last(report)):
        return
    reached = {each.policy: _reached(each.curve) for each in report.policies}
    yield curves(
        "Allocated GPU over demand",
        "asked for, in percent of all GPUs",
        "allocated, in percent of all GPUs",
        [str(demand) for demand in reached[last[0].policy]],
        {policy: list(allocated.values()) for policy, allocated in reached.items()},
    )
    yield curves(
        f"Free GPU by the size of the free pieces, at {last[0].demand} % demand",
        "size of the free piece, in percent of a GPU",
        "free, in GPUs",
        SIZES,
        {each.policy: each.leftover.gpus_by_size for each in last},
    )


def _reached(curve: Sequence[AllocatedAt]) -> dict[int, float]:
    """Return what is allocated at each demand that is shown and was reached."""
    return {at.demand: at.allocated for at in curve if at.demand >= _FROM and at.allocated is not None}


def _churned(report: SimulationReport) -> Iterator[Curves]:
    seeds = [str(each.seed) for each in report.policies[0].seeds]
    allocated = {
        each.policy: [seed.churned.allocated for seed in each.seeds if seed.churned is not None]
        for each in report.policies
    }
    refused = {
        each.policy: [seed.churned.refused for seed in each.seeds if seed.churned is not None]
        for each in report.policies
    }
    title = f"by seed, at {report.load:g} % load"
    yield curves(f"Allocated GPU {title}", "seed", "allocated, in percent of all GPUs", seeds, allocated)
    yield curves(f"Refused GPU {title}", "seed", "refused, in percent of the GPU demand", seeds, refused)
