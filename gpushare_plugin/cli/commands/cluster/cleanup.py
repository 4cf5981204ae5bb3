"""`gpushare cleanup`: removes what gpushare wrote to Nodes."""

import asyncio
from pathlib import Path

import click

from gpushare_plugin.adapters.cluster.client import Client
from gpushare_plugin.adapters.cluster.own_node.owned_fields import clean
from gpushare_plugin.cli.logs import configure_log
from gpushare_plugin.cli.options import kubeconfig_option, option
from gpushare_plugin.foundation.errors import GpushareError


@click.command("cleanup", short_help="Remove what gpushare wrote to Nodes.")
@option("--node-name", "Name of the only Node to clean. Default: all Nodes.", metavar="NAME")
@kubeconfig_option
def command(node_name: str | None, kubeconfig: Path | None) -> None:
    """Remove all that gpushare wrote, from the named Node or from all: labels, annotations, capacity, condition."""

    async def cleaned() -> list[str]:
        failed = []
        async with Client(kubeconfig) as client:
            async for name, error in clean(client, node_name):
                click.echo(f"{name}: {error or 'cleaned'}", err=error is not None)
                failed += [name] if error else []
        return failed

    configure_log("console", "error")
    if failed := asyncio.run(cleaned()):
        raise GpushareError(f"cannot clean {len(failed)} nodes: {', '.join(failed)}; run this command again")
