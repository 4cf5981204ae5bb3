"""`gpushare demo`: the main job on one screen."""

import asyncio

import click

from gpushare_plugin.cli.logs import configure_log


@click.command("demo", short_help="Show sample pods that share four simulated GPUs.")
def command() -> None:
    """Share four simulated GPUs among sample pods, with an embedded kubelet, and show what each pod got."""
    from gpushare_plugin.cli.demonstration import show  # noqa: PLC0415 - not to be had before, see `__main__`

    configure_log("console", "error")
    asyncio.run(show())
