"""`gpushare demo`: pods that share simulated GPUs, on one screen."""

import asyncio

import click

from gpushare_plugin.base.log.form import configure_log
from gpushare_plugin.cli.demonstration import run, show


@click.command("demo", short_help="Show sample pods that share four simulated GPUs.")
def command() -> None:
    """Share four simulated GPUs among sample pods, with an embedded kubelet, and show what each pod gets."""
    configure_log("console", "error")
    show(asyncio.run(run()))
