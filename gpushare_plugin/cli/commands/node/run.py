"""`gpushare run`: the daemon of a node."""

import contextlib
import gc
from typing import Any

import click

from gpushare_plugin.cli.inputs import chosen_configs, driver_root, with_config_options
from gpushare_plugin.cli.options import (
    A_PATH,
    cdi_spec_dirs_option,
    cgroup_root_option,
    device_plugin_path_option,
    driver_limits_agent_option,
    driver_limits_root_option,
    kubeconfig_option,
    log_format_option,
    log_level_option,
    node_name_option,
    option,
    pod_resources_socket_option,
    simulate_option,
)
from gpushare_plugin.cli.setting_options import plugin_directory, with_nvidias_options, with_setting_options
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.mig.exchange import DEFAULT_ROOT


@click.command("run")
@with_config_options
@simulate_option
@with_setting_options
@device_plugin_path_option
@with_nvidias_options
@pod_resources_socket_option
@option(
    "--kubelet-root",
    "Root directory of the kubelet, for DRA drivers. Default: the parent of --device-plugin-path.",
    metavar="DIRECTORY",
    type=A_PATH,
)
@option(
    "--http-address",
    "Address for /healthz, /readyz and /metrics, such as :8080.",
    metavar="HOST:PORT",
)
@option("--pod-namespace", "Namespace of gpushare's pod.", metavar="NAMESPACE")
@option(
    "--pod-name",
    "Name of gpushare's pod, to confirm sooner that units are free.",
    metavar="NAME",
)
@node_name_option
@kubeconfig_option
@option(
    "--node-labels",
    "Publish the node labels of NVIDIA's GPU feature discovery; false where that runs.",
    metavar="[true|false]",
    type=click.BOOL,
    default=True,
)
@option(
    "--cordon-configmap",
    "Read the ConfigMap kube-system/unhealthy-gpu-NODE, which cordons GPUs; false without the right.",
    metavar="[true|false]",
    type=click.BOOL,
    default=True,
)
@option(
    "--follow-pods",
    "Give pods the GPUs that the scheduler extender promised, and annotate pods with their units.",
    metavar="[true|false]",
    type=click.BOOL,
    default=False,
)
@option(
    "--partitioning",
    "Make slices as gpushare partition decides, on nodes with the label nos.nebuly.com/gpu-partitioning=mps or =mig.",
    metavar="[true|false]",
    type=click.BOOL,
    default=False,
)
@option(
    "--mig-root",
    "Directory in which `gpushare run` and `gpushare mig` exchange files.",
    metavar="DIRECTORY",
    type=A_PATH,
    default=DEFAULT_ROOT,
)
@option(
    "--events",
    "Create Kubernetes Events on this Node and its pods.",
    metavar="[true|false]",
    type=click.BOOL,
    default=False,
)
@option(
    "--container-metrics",
    "Also serve metrics of each container with a GPU.",
    metavar="[true|false]",
    type=click.BOOL,
    default=False,
)
@option(
    "--hami-metrics",
    "Also serve gauges under HAMi's names.",
    metavar="[true|false]",
    type=click.BOOL,
    default=False,
)
@option(
    "--aliyun-metrics",
    "Also serve gauges under Alibaba Cloud's names.",
    metavar="[true|false]",
    type=click.BOOL,
    default=False,
)
@cdi_spec_dirs_option
@cgroup_root_option
@driver_limits_agent_option
@driver_limits_root_option
@option(
    "--stand-by",
    "Wait, ready, until another gpushare of this node ends, and take over; otherwise end with an error.",
    metavar="[true|false]",
    type=click.BOOL,
    default=False,
)
@log_format_option
@log_level_option
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:
    """Serve this node's GPUs to the kubelet until SIGTERM."""
    configs = chosen_configs(context, options)
    directory = plugin_directory(context)
    if options["simulate"] is None:
        _begin_nvml(configs, options["container_driver_root"])
    # As in `__main__`: imported modules are never garbage, so the collector need not look at modules now or later.
    gc.disable()
    from gpushare_plugin.cli.node_daemon import run_node_daemon  # noqa: PLC0415 - takes long, and NVML needs no import

    gc.freeze()
    gc.enable()
    run_node_daemon(configs, directory, options)


def _begin_nvml(configs: Configs, given_root: str | None) -> None:
    """Begin to initialise NVML in a thread, beside the imports.

    A driver of eight GPUs takes over a second, the imports take a third of a second. The config is chosen without
    labels; the daemon begins with the same config.
    """
    # A failure here repeats in the daemon, and the daemon logs the failure.
    with contextlib.suppress(Exception):
        from gpushare_plugin.gpus.nvml import initialisation  # noqa: PLC0415 - a simulated node needs no pynvml

        initialisation.begin(driver_root(given_root, configs.load()))
