"""`gpushare inspect`: the GPUs of a cluster, and the pods that have them; also `kubectl inspect gpushare`."""

import asyncio
import gc
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import click

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.log.form import configure_log
from gpushare_plugin.base.signals.ending import until_stopped
from gpushare_plugin.cli import completing
from gpushare_plugin.cli.filter_options import Chosen, chosen, filter_options
from gpushare_plugin.cli.options import context_option, person_kubeconfig_option
from gpushare_plugin.cli.output import output_style, show, show_json
from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.kube.whole_cluster.overview import Overview, follow, read_all
from gpushare_plugin.kube.whole_cluster.reading import PATIENT
from gpushare_plugin.observe.cluster.by_claim import with_claims
from gpushare_plugin.observe.cluster.claim_table import claims
from gpushare_plugin.observe.cluster.filters import check, narrowed, nothing_found
from gpushare_plugin.observe.cluster.report import ClusterReport, cluster_report
from gpushare_plugin.observe.cluster.slices import slices
from gpushare_plugin.observe.cluster.tables import details, summary, wide
from gpushare_plugin.observe.parts import encode

_EVERY = 1.0
"""Seconds between two tables of `--watch` at least."""

_CLEAR = "\x1b[H\x1b[2J\x1b[3J"
"""Makes a terminal empty, what was scrolled away included (ECMA-48, ED)."""

NOTHING = (
    "No node of this cluster shares GPUs: none has the annotation gpushare/gpus, which daemons with cluster.enabled "
    "write, or both aliyun.com/gpu-mem and aliyun.com/gpu-count as capacity."
)


@click.command("inspect", short_help="Show the GPUs of a cluster and the pods that have them.")
@click.argument("nodes", metavar="[NODE]…", nargs=-1, shell_complete=completing.nodes)
@click.option("-d", "--details", "detailed", is_flag=True, help="Show the pods of each node, GPU by GPU.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json"]),
    default="table",
    help="Output format; wide has a row for each GPU, with models, modes and UUIDs.",
)
@click.option("-w", "--watch", is_flag=True, help="Show it again after each change, until interrupted.")
@filter_options
@person_kubeconfig_option
@context_option
def command(nodes: tuple[str, ...], kubeconfig: Path | None, context: str | None, **options: Any) -> None:
    """Show the GPUs of a cluster, or of these nodes: what is allocated of each GPU, and what is wrong with any.

    Columns are those of Aliyun's `kubectl inspect gpushare`. Pods that nothing places on a GPU are PENDING; units that
    a scheduler promised and the node has not confirmed yet are PROMISED, and counted as allocated.

    GPUs that nodes give by claim have a table of their own, and a table of the ResourceClaims that have them.

    Needs the right to list nodes and pods in the whole cluster; with --watch, also to watch them. What claims have is
    shown to those who may also read resourceclaims and resourceslices.

    Options that choose what is shown go together: what meets all of them is shown. An option that is given several
    times is met by each of its values.
    """
    configure_log("console", "warning")
    client, shown = Client(kubeconfig, PATIENT, context=context), chosen(nodes, options)
    if options["watch"]:
        watching = _watch(client, shown, options["output"], detailed=options["detailed"])
        asyncio.run(until_stopped(watching, interactive=True))
    else:
        # Almost nothing of a cluster that is read once is garbage, and to look for it takes as long as to read it.
        gc.disable()
        report = _report(asyncio.run(_read(client, shown)), shown)
        check(report, shown.filters)
        _show(report, shown, options["output"], detailed=options["detailed"])


async def _read(client: Client, chosen: Chosen) -> Overview:
    with _labels_explained(chosen.labels):
        async with client:
            return await read_all(client, chosen.nodes, chosen.labels)


@contextmanager
def _labels_explained(labels: str) -> Iterator[None]:
    """Tell whoever gave labels that the API server does not understand what is expected."""
    try:
        yield
    except ClusterError as error:
        if not labels or error.status != HTTPStatus.BAD_REQUEST:
            raise
        message = f"--selector {labels}: {error}; expected labels such as zone=a,pool!=b,disk in (x, y),!old"
        raise GpushareError(message) from error


async def _watch(client: Client, chosen: Chosen, output: str, *, detailed: bool) -> None:
    before = None
    with _labels_explained(chosen.labels):
        async with client, aclosing(follow(client, chosen.nodes, _EVERY, chosen.labels)) as overviews:
            async for overview in overviews:
                report = _report(overview, chosen)
                if before is None:
                    check(report, chosen.filters)
                if report != before:
                    if sys.stdout.isatty():
                        click.echo(_CLEAR, nl=False)
                    elif before is not None and output != "json":
                        click.echo()
                    _show(report, chosen, output, detailed=detailed, indent=None)
                    before = report


def _report(overview: Overview, chosen: Chosen) -> ClusterReport:
    account = overview.account
    units = cluster_report(
        map(account.account_of, account.nodes),
        () if chosen.labels else overview.waiting.values(),
        everything=bool(chosen.nodes),
    )
    return with_claims(units, overview.claims)


def _show(whole: ClusterReport, chosen: Chosen, output: str, *, detailed: bool, indent: int | None = 2) -> None:
    report = narrowed(whole, chosen.filters)
    if output == "json":
        show_json(encode(report, indent))
        return
    style = output_style()
    lines = list(wide(report, style) if output == "wide" else (details if detailed else summary)(report, style))
    detailed = detailed or output == "wide"
    lines += [*claims(report, style, detailed=detailed), *slices(report, style, datetime.now(UTC), detailed=detailed)]
    if not report.nodes:
        lines = [_nothing(whole, chosen), *lines]
    # The tables of claims and slices stand below an empty line, which nothing may be above.
    show(lines if lines[:1] != [""] else lines[1:], style)


def _nothing(whole: ClusterReport, chosen: Chosen) -> str:
    """Return why no node is shown."""
    if whole.nodes:
        return nothing_found(whole, chosen.filters)
    return f"No node with the labels {chosen.labels} shares GPUs." if chosen.labels else NOTHING
