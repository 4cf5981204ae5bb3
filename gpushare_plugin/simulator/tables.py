"""A simulation as tables for people."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from gpushare_plugin.base.text import amount_of
from gpushare_plugin.observe.cluster.columns import Style, Table
from gpushare_plugin.simulator.comparison import PolicyResult, SeedResult, SimulationReport
from gpushare_plugin.simulator.leftover import STEP, Leftover
from gpushare_plugin.simulator.refused_pods import RefusedPods

SIZES = tuple(f"{most - STEP + 1}-{most}" for most in range(STEP, 101, STEP))
"""The size classes of free pieces, in percent."""


class AtLast(NamedTuple):
    """What came of the pods under a policy, at the last level of demand that was reached."""

    policy: str
    """The name of the policy."""
    demand: int
    """The level, in percent of all GPUs."""
    refused_pods: RefusedPods
    """Which pods were refused."""
    leftover: Leftover
    """What is left of the nodes."""


class CaptionedTable(NamedTuple):
    """A table with a sentence above."""

    caption: str
    """The sentence."""
    table: Table
    """The table: a row for each policy."""


def about(report: SimulationReport) -> Iterator[str]:
    """Yield sentences on what was simulated: where nodes and pods are from, what was changed, and how many are left."""
    yield f"{report.source}."
    yield from (f"Changed: {change}." for change in report.changes)
    if report.unplaceable is not None:
        yield f"Pods that fit no node, even alone: {report.unplaceable}."
    pods = f"{amount_of(report.pods, 'pod')} ask{'s' if report.pods == 1 else ''} for {report.demand:,.1f} GPUs"
    yield f"{amount_of(report.nodes, 'node')} with {amount_of(report.gpus, 'GPU')}; {pods}."


def at_last(report: SimulationReport) -> list[AtLast]:
    """Return what came of the pods under each policy; empty if no level was reached, and if pods came and went.

    Every policy gets the same pods, and so reaches the same levels.
    """
    last: dict[str, AtLast] = {}
    for policy in report.policies:
        for each in policy.filled:
            if each.refused_pods is not None and each.leftover is not None:
                last[policy.policy] = AtLast(policy.policy, each.demand, each.refused_pods, each.leftover)
    return list(last.values())


def tables(report: SimulationReport, *, spread: bool = False) -> Iterator[CaptionedTable]:
    """Yield the tables, with means over the seeds; with `spread`, the first has the least and the most of the seeds."""
    seeds = len(report.policies[0].seeds)
    mean = f"mean of the seeds 1 to {seeds}" if seeds > 1 else "seed 1"
    between = ", in brackets the least and the most" if spread and seeds > 1 else ""
    cells = _with_spread if between else _means
    yield from (_filled if report.mode == "fill" else _churned)(report, f"In percent, {mean}{between}:", cells)


def lines(report: SimulationReport, style: Style) -> Iterator[str]:
    """Yield the whole report; each table stands below its sentence."""
    *sentences, last = about(report)
    yield from sentences
    first, *others = tables(report)
    yield f"{last} {first.caption}"
    yield ""
    yield from first.table.lines(style)
    for each in others:
        yield ""
        yield each.caption
        yield ""
        yield from each.table.lines(style)


_Cells = Callable[[PolicyResult], list[str]]
"""Returns the cells of a policy in the first table."""


def _filled(report: SimulationReport, caption: str, cells: _Cells) -> Iterator[CaptionedTable]:
    levels = [f"AT {each.demand}" for each in report.policies[0].filled]
    yield CaptionedTable(
        caption,
        Table(
            ["POLICY", *(f"ALLOCATED {level}" for level in levels), *(f"UNUSABLE FREE {level}" for level in levels)],
            [[each.policy, *cells(each)] for each in report.policies],
            short=["POLICY", *levels, *(f"UNUSABLE {level}" for level in levels)],
        ),
    )
    if last := at_last(report):
        yield _refused(f"at {last[0].demand}", [(each.policy, each.refused_pods) for each in last])
        yield CaptionedTable(
            f"Free GPU at {last[0].demand} %, in GPUs, by the size of the free piece in percent:",
            Table(["POLICY", *SIZES], [[each.policy, *_cells(each.leftover.gpus_by_size)] for each in last]),
        )


def _churned(report: SimulationReport, caption: str, cells: _Cells) -> Iterator[CaptionedTable]:
    yield CaptionedTable(
        caption,
        Table(
            [f"POLICY AT {report.load:g}", "ALLOCATED", "REFUSED"],
            [[each.policy, *cells(each)] for each in report.policies],
        ),
    )
    refused = [(each.policy, each.churned.refused_pods) for each in report.policies if each.churned is not None]
    yield _refused(f"at {report.load:g}", refused)


def _refused(when: str, policies: Sequence[tuple[str, RefusedPods]]) -> CaptionedTable:
    return CaptionedTable(
        f"Refused pods {when} %, in percent of those that ask for a share, for one GPU, for several, and for none:",
        Table(
            ["POLICY", "SHARE", "ONE", "SEVERAL", "NONE"],
            [[policy, *_cells([pods.share, pods.one, pods.several, pods.none])] for policy, pods in policies],
        ),
    )


def _numbers(result: PolicyResult | SeedResult) -> list[float | None]:
    """Return the numbers of the first table; None where no seed reached the demand."""
    if result.churned is not None:
        return [result.churned.allocated, result.churned.refused]
    return [each.allocated for each in result.filled] + [each.unusable for each in result.filled]


def _means(result: PolicyResult) -> list[str]:
    return _cells(_numbers(result))


def _with_spread(result: PolicyResult) -> list[str]:
    of_seeds = zip(*map(_numbers, result.seeds), strict=True)
    return [_spread([number for number in found if number is not None]) for found in of_seeds]


def _spread(numbers: Sequence[float]) -> str:
    return f"{fmean(numbers):.2f} ({min(numbers):.2f} to {max(numbers):.2f})" if numbers else "-"


def _cells(numbers: Iterable[float | None]) -> list[str]:
    return ["-" if number is None else f"{number:.2f}" for number in numbers]
