"""`gpushare list`: the GPUs of a node, what they are advertised as, and the pods that use them."""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gpushare_plugin.adapters.kubelet.allocations.pod_resources import PodResourcesError, list_pods
from gpushare_plugin.cli.inputs import chosen_configs, cluster_membership, gpu_source
from gpushare_plugin.cli.logs import configure_log
from gpushare_plugin.cli.options import (
    kubeconfig_option,
    node_name_option,
    pod_resources_socket_option,
    simulate_option,
    with_config_options,
)
from gpushare_plugin.cli.output import warn
from gpushare_plugin.cli.setting_options import with_setting_options
from gpushare_plugin.config.directives import Labels
from gpushare_plugin.config.sources.labelled import load_effective_config
from gpushare_plugin.inspect.report import as_data, report
from gpushare_plugin.model.snapshot import Snapshot
from gpushare_plugin.programs.node.configuration import decide
from gpushare_plugin.programs.node.daemon import Membership, look

_PIPE_WIDTH = 200
"""Columns of a table that goes to a pipe: wide enough for each row to stay on one line."""


@click.command("list", short_help="List this node's GPUs and the pods that use them.")
@with_config_options
@node_name_option
@kubeconfig_option
@simulate_option
@with_setting_options
@pod_resources_socket_option
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Output format.")
@click.pass_context
def command(context: click.Context, /, pod_resources_socket: Path, output: str, **options: Any) -> None:
    """List this node's GPUs, what they are advertised as and, where the kubelet answers, the pods that use them."""
    from rich.console import Console  # noqa: PLC0415 - only once signals are handled, see `__main__`

    from gpushare_plugin.inspect.tables import gpu_table, use_table  # noqa: PLC0415 - as above

    configure_log("console", "error")
    labels = asyncio.run(_labels(cluster_membership(options["node_name"], options["kubeconfig"], node_labels=False)))
    loaded = load_effective_config(labels, chosen_configs(context, options), starting=True)
    inventory = asyncio.run(look(gpu_source(options["simulate"], options["container_driver_root"], loaded)))
    decided = decide(loaded, inventory)
    snapshot = Snapshot(inventory, decided.resources)
    try:
        snapshot = replace(snapshot, holdings=asyncio.run(list_pods(pod_resources_socket)).holdings)
    except PodResourcesError as error:
        warn(f"gpushare: cannot list the pods that hold units: {error}")
    node = report(snapshot)
    if output == "json":
        click.echo(json.dumps(as_data(node), indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(gpu_table(node))
    if any(gpu.uses for gpu in node.gpus):
        console.print()
        console.print(use_table(node))


async def _labels(membership: Membership | None) -> Labels:
    """Return the labels of this Node, none where they cannot be read."""
    if membership is None:
        return {}
    from gpushare_plugin.adapters.cluster.client import NODES, Client, ClusterError  # noqa: PLC0415 - only in a cluster

    try:
        async with Client(membership.kubeconfig) as client:
            nodes, _ = await client.list(NODES, membership.node_name)
    except ClusterError as error:
        warn(f"gpushare: cannot read the labels of the Node, using the default config: {error}")
        return {}
    return {key: value for node in nodes for key, value in node["metadata"].get("labels", {}).items()}
