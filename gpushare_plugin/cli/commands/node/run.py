"""`gpushare run`: the daemon of a node."""

from functools import partial
from typing import Any

import click

from gpushare_plugin.adapters.host.mig.exchange import DEFAULT_ROOT
from gpushare_plugin.adapters.kubelet.allocations.trust import PodName
from gpushare_plugin.cli.inputs import chosen_configs, cluster_membership, gpu_source, with_config_options
from gpushare_plugin.cli.logs import daemon_log, run_daemon
from gpushare_plugin.cli.options import (
    A_PATH,
    device_plugin_path_option,
    kubeconfig_option,
    log_format_option,
    log_level_option,
    node_name_option,
    option,
    pod_resources_socket_option,
    simulate_option,
)
from gpushare_plugin.cli.setting_options import plugin_directory, with_nvidias_options, with_setting_options
from gpushare_plugin.programs.node.daemon import Daemon, run
from gpushare_plugin.telemetry.http.address import parse_address


@click.command("run")
@with_config_options
@simulate_option
@with_setting_options
@device_plugin_path_option
@with_nvidias_options
@pod_resources_socket_option
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
@log_format_option
@log_level_option
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:
    """Serve this node's GPUs to the kubelet until SIGTERM."""
    configs = chosen_configs(context, options)
    with daemon_log(options["log_format"], options["log_level"]) as log:
        daemon = Daemon(
            configs=configs,
            source=partial(gpu_source, options["simulate"], options["container_driver_root"]),
            directory=plugin_directory(context),
            pod_resources=options["pod_resources_socket"],
            http_address=_checked(options["http_address"]),
            own_pod=_own_pod(options["pod_namespace"], options["pod_name"]),
            membership=cluster_membership(
                options["node_name"],
                options["kubeconfig"],
                node_labels=options["node_labels"],
                cordon_configmap=options["cordon_configmap"],
                follow_pods=options["follow_pods"],
                events=options["events"],
            ),
            container_metrics=options["container_metrics"],
            hami_metrics=options["hami_metrics"],
            aliyun_metrics=options["aliyun_metrics"],
            log_lines_dropped=lambda: log.dropped,
            partitioning=options["partitioning"],
            mig_root=options["mig_root"],
        )
        run_daemon(run(daemon))


def _checked(address: str | None) -> str | None:
    if address is not None:
        parse_address(address)
    return address


def _own_pod(namespace: str | None, name: str | None) -> PodName | None:
    return (namespace, name) if namespace and name else None
