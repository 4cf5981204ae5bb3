"""What several commands work on: where configs come from, the source of the GPUs, and the cluster."""

import os
from pathlib import Path
from typing import Any

import click
import structlog

from gpushare_plugin.adapters.host.source import GpuSource
from gpushare_plugin.cli.setting_options import overrides
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.programs.node.daemon import Membership

SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""Where a pod that may talk to the API server finds its token."""


def chosen_configs(context: click.Context, options: dict[str, Any]) -> Configs:
    """Return where the options of `with_config_options` and `with_setting_options` say that the settings come from."""
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

    Where the config has mistakes, the driver is looked for in `driver_root`, as an option or the environment has it.
    """
    if simulate is not None:
        from gpushare_plugin.adapters.host.simulated import SimulatedSource  # noqa: PLC0415 - only where it is asked for

        return SimulatedSource(simulate)
    from gpushare_plugin.adapters.host.nvml.gpus import NvmlSource  # noqa: PLC0415 - a simulated node needs no pynvml

    root = loaded.config.flags.plugin.container_driver_root if loaded.config else driver_root
    return NvmlSource(Path(root or "/"))


def cluster_membership(node_name: str | None, kubeconfig: Path | None, *, node_labels: bool) -> Membership | None:
    """Return how to take part in a cluster, None where the Node's name or the API server is not known."""
    in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and SERVICE_ACCOUNT_TOKEN.exists()
    if not node_name or not (kubeconfig or in_pod):
        structlog.get_logger().info("no API server is talked to", node_name=node_name, kubeconfig=None, pod=in_pod)
        return None
    return Membership(node_name, kubeconfig, node_labels)
