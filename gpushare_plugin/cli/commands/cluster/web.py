"""`gpushare web`: pages that show every GPU of a cluster; also `kubectl gpushare web`."""

import asyncio
import webbrowser
from functools import partial
from pathlib import Path

import click

from gpushare_plugin.base.log.form import configure_log
from gpushare_plugin.base.signals.ending import until_stopped
from gpushare_plugin.cli.options import context_option, person_kubeconfig_option
from gpushare_plugin.web.service import WebSettings, serve


@click.command("web", short_help="Show every GPU of a cluster in the browser.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the pages. Default: any free port.")
@click.option("--browser/--no-browser", default=True, help="Open the browser, or only print the address.")
@person_kubeconfig_option
@context_option
def command(port: int, *, browser: bool, kubeconfig: Path | None, context: str | None) -> None:
    """Show the GPUs of a cluster on pages at 127.0.0.1, until interrupted.

    The printed address is good once, for one browser. Needs the right to list and watch nodes and pods in the whole
    cluster, like `gpushare inspect --watch`.
    """
    configure_log("console", "warning")
    settings = WebSettings(kubeconfig, context, port, partial(_open, browser=browser))
    asyncio.run(until_stopped(serve(settings), interactive=True))


def _open(address: str, *, browser: bool) -> None:
    click.echo(f"The pages are at {address} (good once; Ctrl-C ends them)")
    if browser:
        webbrowser.open(address)
