"""`gpushare demo`: pods that share simulated GPUs, on one screen."""

import asyncio

import click

from gpushare_plugin.cli.demonstration import run, show
from gpushare_plugin.cli.logs import configure_log


@click.command("demo", short_help="Show sample pods that share four simulated GPUs.")
def command() -> None:
    """Share four simulated GPUs among sample pods, with an embedded kubelet, and show what each pod gets."""
    configure_log("console", "error")
    show(asyncio.run(run()))
