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
    "Root directory of the kubelet, below which DRA drivers have their sockets. Default: the parent of the device "
    "plugin directory.",
    metavar="DIRECTORY",
    type=A_PATH,
)
@option(
    "--http-address",
    "Address for /healthz, /readyz and /metrics, such as :8080. Default: no HTTP server.",
    metavar="HOST:PORT",
)
@option("--pod-namespace", "Namespace of the pod that gpushare runs in; see --pod-name.", metavar="NAMESPACE")
@option(
    "--pod-name",
    "Name of the pod that gpushare runs in. With it, gpushare can confirm sooner that units are free.",
    metavar="NAME",
)
@node_name_option
@kubeconfig_option
@option(
    "--node-labels",
    "Publish the node labels of NVIDIA's GPU feature discovery. Set to false where that runs.",
    metavar="[true|false]",
    type=click.BOOL,
    default=True,
)
@option(
    "--cordon-configmap",
    "Read the ConfigMap kube-system/unhealthy-gpu-NODE, which cordons GPUs. Set to false where gpushare has no right "
    "to read it; the annotation gpushare/unhealthy-gpus does the same.",
    metavar="[true|false]",
    type=click.BOOL,
    default=True,
)
@option(
    "--follow-pods",
    "Follow the pods of this node: allocate the GPUs that a scheduler extender promised them, and annotate them with "
    "what they hold.",
    metavar="[true|false]",
    type=click.BOOL,
    default=False,
)
@option(
    "--partitioning",
    "Cut the GPUs into the slices that pods wait for, as gpushare partition decides, where the node has the label "
    "nos.nebuly.com/gpu-partitioning=mps and the config has no sharing.mps.sizes, or the label "
    "nos.nebuly.com/gpu-partitioning=mig.",
    metavar="[true|false]",
    type=click.BOOL,
    default=False,
)
@option(
    "--mig-root",
    "Directory of what is wanted of MIG instances and what is done, shared with `gpushare mig`.",
    metavar="DIRECTORY",
    type=A_PATH,
    default=DEFAULT_ROOT,
)
@option(
    "--events",
    "Create Kubernetes Events on this Node and its pods, such as for faults of GPUs and refused configs.",
    metavar="[true|false]",
    type=click.BOOL,
    default=False,
)
@option(
    "--container-metrics",
    "Also serve metrics of each container that holds a GPU: memory limit, memory in use, utilization.",
    metavar="[true|false]",
    type=click.BOOL,
    default=False,
)
@option(
    "--hami-metrics",
    "Also serve gauges under the names that dashboards of HAMi read; those of containers with --container-metrics.",
    metavar="[true|false]",
    type=click.BOOL,
    default=False,
)
@option(
    "--aliyun-metrics",
    "Also serve gauges under the names of Alibaba Cloud's exporter; those of containers with --container-metrics.",
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
    "Where another gpushare serves this node, get ready, wait until the other gpushare ends, and take over. Without "
    "this option, a second gpushare ends with an error.",
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
