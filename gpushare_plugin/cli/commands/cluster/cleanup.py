"""`gpushare cleanup`: removes everything that gpushare wrote to Nodes, and the Leases of gpushare."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import click

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.log.form import configure_log
from gpushare_plugin.cli.options import kubeconfig_option, option
from gpushare_plugin.cli.output import show
from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.kube.whole_cluster.cleaning import clean_nodes, delete_leases

Cleaned = AsyncIterator[tuple[str, ClusterError | None]]
"""The names of objects with the error of an object that could not be cleaned, None after a success."""


@click.command("cleanup", short_help="Remove what gpushare wrote to Nodes.")
@option("--node-name", "The only Node to clean; Leases stay. Default: all Nodes.", metavar="NAME")
@option(
    "--lease-namespace",
    "Namespace of the Leases.",
    metavar="NAMESPACE",
    default="kube-system",
)
@kubeconfig_option
def command(node_name: str | None, lease_namespace: str, kubeconfig: Path | None) -> None:
    """Remove labels, annotations, capacity and conditions that gpushare wrote on Nodes, and the Leases of gpushare.

    Run the command after all programs of gpushare on these Nodes have ended.
    """

    async def cleaned() -> list[str]:
        async with Client(kubeconfig) as client:
            failed = await _told(clean_nodes(client, node_name), "cleaned")
            if node_name is None:
                failed += await _told(delete_leases(client, lease_namespace), "deleted")
        return failed

    configure_log("console", "error")
    if failed := asyncio.run(cleaned()):
        raise GpushareError(f"cannot clean {len(failed)} objects: {', '.join(failed)}; run this command again")


async def _told(cleaned: Cleaned, done: str) -> list[str]:
    """Print for every object `done`, or the error; return the names of the objects with errors."""
    failed = []
    async for name, error in cleaned:
        show([f"{name}: {error or done}"], error=error is not None)
        failed += [name] if error else []
    return failed
