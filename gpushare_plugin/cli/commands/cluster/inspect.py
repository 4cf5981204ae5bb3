"""`gpushare inspect`: the GPUs of a cluster, and the pods that have them; also `kubectl inspect gpushare`."""

import asyncio
import gc
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

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
from gpushare_plugin.observe.cluster.blocks import MOST_LINES, blocks
from gpushare_plugin.observe.cluster.by_claim import with_claims
from gpushare_plugin.observe.cluster.claim_table import claims
from gpushare_plugin.observe.cluster.columns import Style
from gpushare_plugin.observe.cluster.filters import check, is_shown, narrowed, nothing_found
from gpushare_plugin.observe.cluster.report import ClusterReport, cluster_report
from gpushare_plugin.observe.cluster.slices import slices
from gpushare_plugin.observe.cluster.tables import by_node, details, summary, wide
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
@click.option("-d", "--details", "detailed", is_flag=True, help="Show the pods of each GPU.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "blocks", "wide", "json", "html"]),
    help="blocks: a line a node, a character a GPU; wide: a row a GPU, with model, mode and UUID; html: the map as a "
    f"file. Default: table; on a terminal above {MOST_LINES} lines, blocks.",
)
@click.option("-w", "--watch", is_flag=True, help="Show again after each change, until interrupted.")
@filter_options
@person_kubeconfig_option
@context_option
def command(nodes: tuple[str, ...], kubeconfig: Path | None, context: str | None, **options: Any) -> None:
    """Show what is allocated of each GPU of a cluster, or of these nodes, and what is wrong.

    PENDING units are of pods on a node (not of phase Pending) whose GPU is unknown; PROMISED units are allocated by a
    scheduler and not confirmed by the node.

    Filters add up; a repeated filter accepts each of its values.
    """
    configure_log("console", "warning")
    client, shown = Client(kubeconfig, PATIENT, context=context), chosen(nodes, options)
    form = _OutputForm(options["output"], options["detailed"])
    if options["watch"]:
        asyncio.run(until_stopped(_watch(client, shown, form), interactive=True))
    else:
        # Almost nothing of a cluster that is read once is garbage, and to look for it takes as long as to read it.
        gc.disable()
        _show(_inspected(asyncio.run(_read(client, shown)), shown, form), form)


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


async def _watch(client: Client, chosen: Chosen, form: "_OutputForm") -> None:
    before = None
    with _labels_explained(chosen.labels):
        async with client, aclosing(follow(client, chosen.nodes, _EVERY, chosen.labels, empty=Overview)) as overviews:
            async for overview in overviews:
                view = _inspected(overview, chosen, form, checked=before is not None)
                if view != before:
                    if sys.stdout.isatty():
                        click.echo(_CLEAR, nl=False)
                    elif before is not None and form.output != "json":
                        click.echo()
                    _show(view, form, indent=None)
                    before = view


class _OutputForm(NamedTuple):
    """How the cluster is shown."""

    output: str | None
    """The output that was asked for; None for a table, or for blocks where a terminal has no room for the table."""
    detailed: bool
    """Whether the pods of each node are shown."""

    @property
    def can_be_blocks(self) -> bool:
        """Whether the output is blocks, or depends on the size of the cluster: never so in a pipe."""
        return self.output == "blocks" or (self.output is None and not self.detailed and sys.stdout.isatty())

    def is_blocks(self, report: ClusterReport, style: Style) -> bool:
        """Return whether a report is shown as blocks."""
        if self.output == "blocks" or not self.can_be_blocks:
            return self.output == "blocks"
        return len(report.nodes) > MOST_LINES or sum(1 for _ in by_node(report, style)) > MOST_LINES


class _Inspected(NamedTuple):
    """What is shown of a cluster at a moment."""

    report: ClusterReport
    """The nodes and pods that were chosen."""
    waiting: int | None
    """The number of pods without a node, None where they are not counted."""
    nothing: str
    """Why no node is shown; empty where there is one."""


def _inspected(overview: Overview, chosen: Chosen, form: _OutputForm, *, checked: bool = False) -> _Inspected:
    """Return what is shown; raises GpushareError for filters that cannot be met, unless they are `checked`."""
    account = overview.account
    units = cluster_report(
        map(account.account_of, account.nodes),
        () if chosen.labels else overview.waiting.values(),
        everything=bool(chosen.nodes),
    )
    whole = with_claims(units, overview.claims)
    if not checked:
        check(whole, chosen.filters)
    report = narrowed(whole, chosen.filters)
    counted = form.can_be_blocks and not (chosen.nodes or chosen.labels or chosen.filters.choose_nodes)
    waiting = [each.pod for each in overview.without_node.values() if each.waits_for_gpus(account)] if counted else []
    number = sum(is_shown(pod, chosen.filters) for pod in waiting) if counted else None
    return _Inspected(report, number, "" if report.nodes else _nothing(whole, chosen))


def _show(view: _Inspected, form: _OutputForm, *, indent: int | None = 2) -> None:
    report, style = view.report, output_style()
    if form.output == "json":
        show_json(encode(report, indent))
        return
    if form.output == "html":
        from gpushare_plugin.web.single_file import single_file  # noqa: PLC0415 - Jinja takes a while to import

        click.echo(single_file(report, datetime.now(UTC)))
        return
    if view.nothing or not form.is_blocks(report, style):
        show(_tables(view, form, style), style)
    else:
        show(blocks(report, style, view.waiting), style)


def _tables(view: _Inspected, form: _OutputForm, style: Style) -> list[str]:
    report, detailed = view.report, form.detailed or form.output == "wide"
    lines = [view.nothing] if view.nothing else []
    lines += (wide if form.output == "wide" else details if detailed else summary)(report, style)
    lines += [*claims(report, style, detailed=detailed), *slices(report, style, datetime.now(UTC), detailed=detailed)]
    # The tables of claims and slices stand below an empty line, which nothing may be above.
    return lines if lines[:1] != [""] else lines[1:]


def _nothing(whole: ClusterReport, chosen: Chosen) -> str:
    """Return why no node is shown."""
    if whole.nodes:
        return nothing_found(whole, chosen.filters)
    return f"No node with the labels {chosen.labels} shares GPUs." if chosen.labels else NOTHING
