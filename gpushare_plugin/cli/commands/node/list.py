"""`gpushare list`: the GPUs of a node, their sharing by the daemon, and the pods with units."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from gpushare_plugin.base.log.form import configure_log
from gpushare_plugin.base.structs import replace
from gpushare_plugin.cli.inputs import HostLook, chosen_configs, gpu_source, with_config_options
from gpushare_plugin.cli.membership import cluster_membership
from gpushare_plugin.cli.options import (
    cdi_spec_dirs_option,
    cgroup_root_option,
    device_plugin_path_option,
    driver_limits_agent_option,
    kubeconfig_option,
    node_name_option,
    pod_resources_socket_option,
    simulate_option,
)
from gpushare_plugin.cli.output import show_json, warn
from gpushare_plugin.cli.setting_options import with_setting_options
from gpushare_plugin.config.directives import Labels
from gpushare_plugin.config.sources.labelled import load_effective_config
from gpushare_plugin.core.holding import Holdings, Unknown
from gpushare_plugin.kubelet.allocations.pod_resources import PodResourcesError, list_pods
from gpushare_plugin.node.configuration import accept
from gpushare_plugin.node.daemon import Membership, look
from gpushare_plugin.observe.daemon_socket import DaemonSocketError, ask, socket_path
from gpushare_plugin.observe.node.report import NodeReport, ReportError, decode, report
from gpushare_plugin.observe.node.tables import show
from gpushare_plugin.observe.parts import encode
from gpushare_plugin.sharing.snapshot import planned_snapshot

NEEDS_ATTENTION = 3
"""Exit status without an answer of the daemon, for a daemon that is not ready, or for a GPU that needs attention:
unhealthy, unresponsive, cordoned, or not shared as configured."""

_PIPE_WIDTH = 1 << 16
"""The width of a table for a pipe, in columns of text: more than any row needs."""

_NOT_PLANNING = {"device_plugin_path", "pod_resources_socket", "node_name", "kubeconfig", "output"}
"""Options that choose neither a config nor GPUs."""


@click.command("list", short_help="List this node's GPUs and the pods that use them.")
@with_config_options
@node_name_option
@kubeconfig_option
@simulate_option
@with_setting_options
@cdi_spec_dirs_option
@cgroup_root_option
@driver_limits_agent_option
@device_plugin_path_option
@pod_resources_socket_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json"]),
    default="table",
    help="Output format; wide also shows modes and UUIDs.",
)
@click.pass_context
def command(context: click.Context, /, device_plugin_path: Path, output: str, **options: Any) -> None:
    """List this node's GPUs, what they are offered as, their health, and the pods that use them.

    The table shows the state of the daemon; without an answer, or with an option for config or GPUs, the plan of the
    config. Standard error and the field "source" of JSON ("daemon" or "config") say which.

    Exit status 3: no daemon answers, or a GPU is unhealthy, unresponsive, cordoned, unregistered or waiting. With an
    option for config or GPUs, the state of GPUs does not count.
    """
    configure_log("console", "error")
    node: NodeReport | None = None
    failure: str | None = None
    if not _plan_is_chosen(context):
        node, failure = _asked(device_plugin_path)
    if failure:
        # Before the plan is made: if the plan fails, too, both reasons have been printed.
        warn(f"Source: the config; {failure}")
    if node is None:
        node = _planned(context, options)
    if not failure and output != "json":
        warn(f"Source: {_origin(node)}")
    if node.uses_unknown and not _without_kubelet(options):
        warn(f"gpushare: cannot list the pods that hold units: {node.uses_unknown}")
    if output == "json":
        show_json(encode(node, indent=2))
    else:
        _print(node, wide=output == "wide")
    if failure or not node.as_configured:
        context.exit(NEEDS_ATTENTION)


def _plan_is_chosen(context: click.Context) -> bool:
    """Return whether the command line chooses a config or GPUs; environment variables are the daemon's own."""
    on_command_line = {
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return bool(on_command_line - _NOT_PLANNING)


def _asked(device_plugin_path: Path) -> tuple[NodeReport | None, str | None]:
    """Return the daemon's report, or the reason why no report could be read."""
    try:
        return decode(ask(socket_path(device_plugin_path))), None
    except DaemonSocketError as error:
        return None, str(error)
    except ReportError as error:
        remedy = "run `gpushare list` in the daemon's pod"
        return None, f"the daemon's answer cannot be read: {error}; {remedy}"


def _origin(node: NodeReport) -> str:
    if node.source == "daemon":
        return f"the running daemon, gpushare {node.gpushare}"
    return "the config; the daemon was not asked, because an option chooses a config or GPUs"


def _without_kubelet(options: dict[str, Any]) -> bool:
    """Return whether the GPUs are simulated on a machine without a kubelet, where nobody expects pods."""
    return options["simulate"] is not None and not options["pod_resources_socket"].exists()


def _planned(context: click.Context, options: dict[str, Any]) -> NodeReport:
    """Return the config's plan for the GPUs, with the holdings of pods; raise GpushareError without config or GPUs."""
    labels = asyncio.run(_labels(cluster_membership(options["node_name"], options["kubeconfig"], node_labels=False)))
    loaded = load_effective_config(labels, chosen_configs(context, options), starting=True)
    inventory = asyncio.run(look(gpu_source(options["simulate"], options["container_driver_root"], loaded)))
    accepted = accept(loaded, inventory, facts=HostLook(options, inventory).facts(loaded))
    snapshot = planned_snapshot(accepted.config, inventory, accepted.plan)
    try:
        holdings: Holdings | Unknown = asyncio.run(list_pods(options["pod_resources_socket"])).holdings
    except PodResourcesError as error:
        holdings = Unknown(str(error))
    return report(replace(snapshot, holdings=holdings))


def _print(node: NodeReport, *, wide: bool) -> None:
    show(Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH), node, wide=wide)


async def _labels(membership: Membership | None) -> Labels:
    """Return the labels of the Node; no labels outside a cluster, or where the labels cannot be read."""
    if membership is None:
        return {}
    from gpushare_plugin.kube.client import NODES, Client, ClusterError  # noqa: PLC0415 - only in a cluster

    try:
        async with Client(membership.kubeconfig) as client:
            nodes, _ = await client.list(NODES, membership.node_name)
    except ClusterError as error:
        warn(f"gpushare: cannot read the labels of the Node, using the default config: {error}")
        return {}
    return {key: value for node in nodes for key, value in node["metadata"].get("labels", {}).items()}
