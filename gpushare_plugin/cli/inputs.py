"""Inputs of several commands: the configs, the source of the GPUs, and the cluster."""

import os
from pathlib import Path
from typing import Any

import click
import structlog

from gpushare_plugin.adapters.host.source import GpuSource
from gpushare_plugin.cli.setting_options import overrides
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.config.schema.names import CONTAINER_DRIVER_ROOT
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.programs.node.daemon import Membership

SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""The token of a pod's service account."""


def chosen_configs(context: click.Context, options: dict[str, Any]) -> Configs:
    """Return the configs that the options of `with_config_options` and `with_setting_options` choose."""
    if options["config_file"] is not None and options["config_directory"] is not None:
        raise click.UsageError("found both --config-file and --config-directory; expected one of them")
    return Configs(
        overrides=overrides(context),
        file=options["config_file"],
        directory=options["config_directory"],
        default=options["default_config"] or None,
        fallbacks=options["fallback_strategies"],
    )


def gpu_source(simulate: Path | None, driver_root: str | None, loaded: Loaded) -> GpuSource:
    """Return the GPUs of the file `simulate` or, where it is None, those that NVML finds with this config.

    Where the config has mistakes, `driver_root` is used: the value of the option or the environment.
    """
    if simulate is not None:
        from gpushare_plugin.adapters.host.simulated import SimulatedSource  # noqa: PLC0415 - only for simulated GPUs

        return SimulatedSource(simulate)
    from gpushare_plugin.adapters.host.nvml.gpus import NvmlSource  # noqa: PLC0415 - a simulated node needs no pynvml

    root = loaded.config.flags.plugin.container_driver_root if loaded.config else driver_root
    return NvmlSource(Path(root or CONTAINER_DRIVER_ROOT))


def cluster_membership(  # noqa: PLR0913 - what taking part means
    node_name: str | None,
    kubeconfig: Path | None,
    *,
    node_labels: bool,
    cordon_configmap: bool = True,
    follow_pods: bool = False,
    events: bool = False,
) -> Membership | None:
    """Return how to join the cluster, None where the Node's name or the API server is not known."""
    in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and SERVICE_ACCOUNT_TOKEN.exists()
    if not node_name or not (kubeconfig or in_pod):
        reason = "no kubeconfig and no service account" if node_name else "no --node-name"
        structlog.get_logger().info("api_server_not_used", reason=reason, node=node_name)
        return None
    return Membership(node_name, kubeconfig, node_labels, cordon_configmap, follow_pods, events)
