"""A simulation as tables for people."""

from collections.abc import Iterable, Iterator, Sequence

from gpushare_plugin.observe.cluster.columns import Style, Table
from gpushare_plugin.simulator.comparison import SimulationReport
from gpushare_plugin.simulator.leftover import STEP
from gpushare_plugin.simulator.refused_pods import RefusedPods


def lines(report: SimulationReport, style: Style) -> Iterator[str]:
    """Yield sentences, each with a table below; a table has a row for each policy, with means over the seeds."""
    yield f"{report.source}."
    yield from (f"Changed: {change}." for change in report.changes)
    trace = f"{report.nodes:,} nodes with {report.gpus:,} GPUs; {report.pods:,} pods ask for {report.demand:,.1f}."
    seeds = len(report.policies[0].seeds)
    yield f"{trace} In percent, {f'mean of the seeds 1 to {seeds}' if seeds > 1 else 'seed 1'}:"
    yield ""
    yield from (_filled if report.mode == "fill" else _churned)(report, style)


def _filled(report: SimulationReport, style: Style) -> Iterator[str]:
    filled = {each.policy: each.filled for each in report.policies}
    levels = [f"AT {each.demand}" for each in report.policies[0].filled]
    yield from Table(
        ["POLICY", *(f"ALLOCATED {level}" for level in levels), *(f"UNUSABLE FREE {level}" for level in levels)],
        [
            [policy, *_cells([each.allocated for each in result] + [each.unusable for each in result])]
            for policy, result in filled.items()
        ],
        short=["POLICY", *levels, *(f"UNUSABLE {level}" for level in levels)],
    ).lines(style)
    yield from _refused(
        levels[-1].lower(), [(policy, result[-1].refused_pods) for policy, result in filled.items()], style
    )
    yield ""
    yield f"Free GPU {levels[-1].lower()} %, in GPUs, by the size of the free piece in percent:"
    yield ""
    yield from Table(
        ["POLICY", *(f"{most - STEP + 1}-{most}" for most in range(STEP, 101, STEP))],
        [[policy, *_cells(result[-1].leftover.gpus_by_size)] for policy, result in filled.items()],
    ).lines(style)


def _churned(report: SimulationReport, style: Style) -> Iterator[str]:
    churned = {each.policy: each.churned for each in report.policies if each.churned is not None}
    yield from Table(
        [f"POLICY AT {report.load:g}", "ALLOCATED", "REFUSED"],
        [[policy, *_cells([result.allocated, result.refused])] for policy, result in churned.items()],
    ).lines(style)
    yield from _refused(
        f"at {report.load:g}", [(policy, result.refused_pods) for policy, result in churned.items()], style
    )


def _refused(when: str, policies: Sequence[tuple[str, RefusedPods]], style: Style) -> Iterator[str]:
    yield ""
    yield f"Refused pods {when} %, in percent of those that ask for a share, for one GPU, for several, and for none:"
    yield ""
    yield from Table(
        ["POLICY", "SHARE", "ONE", "SEVERAL", "NONE"],
        [[policy, *_cells([pods.share, pods.one, pods.several, pods.none])] for policy, pods in policies],
    ).lines(style)


def _cells(numbers: Iterable[float]) -> list[str]:
    return [f"{number:.2f}" for number in numbers]
