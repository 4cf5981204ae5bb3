"""`gpushare cleanup`: what was written on Nodes is removed."""

import asyncio
from pathlib import Path

import click

from gpushare_plugin.adapters.cluster.client import Client
from gpushare_plugin.adapters.cluster.owned_fields import clean
from gpushare_plugin.cli.logs import configure_log
from gpushare_plugin.cli.options import kubeconfig_option, node_name_option
from gpushare_plugin.foundation.errors import GpushareError


@click.command("cleanup", short_help="Remove what this daemon wrote on Nodes.")
@node_name_option
@kubeconfig_option
def command(node_name: str | None, kubeconfig: Path | None) -> None:
    """Remove every label, annotation and capacity that this daemon wrote, from one Node, or from all without a name."""

    async def cleaned() -> list[str]:
        failed = []
        async with Client(kubeconfig) as client:
            async for name, error in clean(client, node_name):
                click.echo(f"{name}: {error or 'cleaned'}", err=error is not None)
                failed += [name] if error else []
        return failed

    configure_log("console", "error")
    if failed := asyncio.run(cleaned()):
        raise GpushareError(f"{len(failed)} nodes are not clean yet: {', '.join(failed)}; run this again")
