"""A simulation as a table for people."""

from collections.abc import Iterator

from gpushare_plugin.observe.cluster.columns import Style, Table
from gpushare_plugin.simulator.comparison import PolicyResult, SimulationReport


def lines(report: SimulationReport, style: Style) -> Iterator[str]:
    """Yield a sentence about the pods, and a row for each policy, with means over the seeds."""
    trace = f"{report.nodes:,} nodes with {report.gpus:,} GPUs; {report.pods:,} pods ask for {report.demand:,.1f}."
    seeds = len(report.policies[0].seeds)
    yield f"{trace} In percent, {f'mean of the seeds 1 to {seeds}' if seeds > 1 else 'seed 1'}:"
    yield ""
    yield from (_filled if report.mode == "fill" else _churned)(report).lines(style)


def _filled(report: SimulationReport) -> Table:
    levels = [f"AT {each.demand}" for each in report.policies[0].filled]
    return Table(
        ["POLICY", *(f"ALLOCATED {level}" for level in levels), *(f"UNUSABLE FREE {level}" for level in levels)],
        [[each.policy, *_cells(each)] for each in report.policies],
        short=["POLICY", *levels, *(f"UNUSABLE {level}" for level in levels)],
    )


def _cells(result: PolicyResult) -> list[str]:
    allocated, unusable = [each.allocated for each in result.filled], [each.unusable for each in result.filled]
    return [f"{value:.2f}" for value in allocated + unusable]


def _churned(report: SimulationReport) -> Table:
    rows = [
        [each.policy, f"{each.churned.allocated:.2f}", f"{each.churned.refused:.2f}"]
        for each in report.policies
        if each.churned is not None
    ]
    return Table([f"POLICY AT {report.load:g}", "ALLOCATED", "REFUSED"], rows)
