"""`gpushare simulate`: what placement policies would do with the pods of a cluster."""

import math
import os
import sys
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from gpushare_plugin.cli.options import is_written, names_by_commas
from gpushare_plugin.cli.output import output_style, show, show_json
from gpushare_plugin.cli.scenario_options import chosen_scenario, scenario_options
from gpushare_plugin.observe.parts import encode
from gpushare_plugin.simulator.comparison import Simulation, compare
from gpushare_plugin.simulator.policies.table import COMPARED
from gpushare_plugin.simulator.tables import lines


def _policies(context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    """Return the names of policies in a text; raise click.BadParameter for a name that is none, or comes twice."""
    names = names_by_commas(context, option, text)
    if len(names) < sum(1 for each in text.split(",") if each.strip()):
        raise click.BadParameter(f"found a policy twice in {text!r}, expected each once")
    if unknown := [name for name in names if name not in COMPARED]:
        raise click.BadParameter(f"found {unknown[0]!r}, expected one of {', '.join(COMPARED)}")
    if not names:
        raise click.BadParameter(f"found no name, expected one of {', '.join(COMPARED)}")
    return names


def _load(_context: click.Context, _option: click.Parameter, percent: float) -> float:
    """Return the load unchanged; raise click.BadParameter for `nan`, which click takes to be within every range."""
    if math.isnan(percent):
        raise click.BadParameter("found nan, expected a number of percent")
    return percent


@click.command("simulate", short_help="Compare placement policies on the pods of a trace or a cluster.")
@scenario_options
@click.option(
    "--policies",
    metavar="NAME,…",
    callback=_policies,
    default=",".join(COMPARED),
    show_default=True,
    help="Policies to compare.",
)
@click.option(
    "--mode",
    type=click.Choice(["fill", "churn"]),
    default="fill",
    show_default=True,
    help="fill: pods stay, up to a demand of 130 % of all GPUs; churn: pods come and go.",
)
@click.option(
    "--load",
    type=click.FloatRange(1, 1000),
    callback=_load,
    default=95,
    show_default=True,
    help="churn: average demand in percent of all GPUs.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Runs of each policy, with the seeds 1, 2, and so on.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help="Processes. Default: one for each core.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "html"]),
    default="table",
    help="Output format; json has each seed; html is a file with curves.",
)
def command(jobs: int | None, output: str, **chosen: Any) -> None:
    """Compare how much of the GPUs of a cluster placement policies allocate to pods.

    CSV files have the columns of Alibaba's cluster-trace-gpu-v2023. A cluster is only read. The same seed
    gives the same result.
    """
    if chosen["mode"] == "fill" and is_written("load"):
        raise click.UsageError("found --load without --mode churn; a load is of pods that come and go")
    simulation = Simulation(chosen_scenario(chosen), **chosen)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("Simulating", total=len(simulation.runs))
        report = compare(simulation, jobs or len(os.sched_getaffinity(0)), lambda: progress.advance(task))
    if output == "json":
        show_json(encode(report, 2))
    elif output == "html":
        from gpushare_plugin.web.simulation_report import simulation_report  # noqa: PLC0415 - Jinja is imported slowly

        click.echo(simulation_report(report, datetime.now(UTC)))
    else:
        style = output_style()
        show(lines(report, style), style)
