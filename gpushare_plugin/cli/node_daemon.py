"""The daemon of a node, built from the options of `gpushare run`; the imports take most of the start."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gpushare_plugin.cli.daemons import daemon_log, run_daemon
from gpushare_plugin.cli.inputs import gpu_source
from gpushare_plugin.cli.membership import cluster_membership
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.kubelet.allocations.trust import PodName
from gpushare_plugin.node.daemon import Daemon, run
from gpushare_plugin.observe.http.address import parse_address


def run_node_daemon(configs: Configs, directory: Path, options: Mapping[str, Any]) -> None:
    """Run the daemon until a signal; `directory` has the kubelet's plugin sockets, `options` are the command's options.

    Exits with status 1 for options that cannot be used, and for any other error, which is logged.
    """
    with daemon_log(options["log_format"], options["log_level"]) as log:
        daemon = Daemon(
            configs=configs,
            source=partial(gpu_source, options["simulate"], options["container_driver_root"]),
            directory=directory,
            pod_resources=options["pod_resources_socket"],
            kubelet_root=options["kubelet_root"],
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
            log_lines_dropped=lambda: log.lines.dropped,
            partitioning=options["partitioning"],
            mig_root=options["mig_root"],
            cdi_spec_dirs=() if options["simulate"] else options["cdi_spec_dirs"],
            claim_specs=options["cdi_spec_dirs"][-1],
            cgroup_root=options["cgroup_root"],
            driver_limits_root=options["driver_limits_root"] if options["driver_limits_agent"] else None,
            stand_by=options["stand_by"],
        )
        run_daemon(run(daemon), log)


def _checked(address: str | None) -> str | None:
    if address is not None:
        parse_address(address)
    return address


def _own_pod(namespace: str | None, name: str | None) -> PodName | None:
    return (namespace, name) if namespace and name else None
