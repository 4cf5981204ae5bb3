"""`gpushare extender`: the scheduler extender, which places pods by GPU for kube-scheduler."""

import gc
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click

from gpushare_plugin.cli.daemons import daemon_log, run_daemon
from gpushare_plugin.cli.options import (
    A_PATH,
    an_address,
    kubeconfig_option,
    log_format_option,
    log_level_option,
    names_by_commas,
    option,
    probe_address_option,
)
from gpushare_plugin.cli.serving import certificates_of, check_addresses, tls_certificate_option, tls_key_option
from gpushare_plugin.core.policies import DEFAULT_POLICY, POLICIES
from gpushare_plugin.extender.aliyun.cordons import EVERY_NODE
from gpushare_plugin.extender.service import ExtenderSettings, run
from gpushare_plugin.extender.tls.own import OwnCertificateSettings
from gpushare_plugin.kube.identity import ObjectIdentity


def _nodes(context: click.Context, given: click.Parameter, text: str | None) -> tuple[str, ...]:
    nodes = names_by_commas(context, given, text)
    if EVERY_NODE in nodes and len(nodes) > 1:
        raise click.BadParameter(f"found {text!r}; expected names of nodes, or {EVERY_NODE} alone for all")
    return nodes


def _ip_address(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        try:
            ip_address(text)
        except ValueError as error:
            raise click.BadParameter(f"found {text!r}; expected an IP address") from error
    return text


@click.command("extender", short_help="Place pods by GPU for kube-scheduler until SIGTERM.")
@option(
    "--listen-address",
    "Address for kube-scheduler.",
    metavar="[HOST]:PORT",
    callback=an_address,
    default=":32766",
)
@probe_address_option
@option(
    "--placement",
    "Policy, unless the pod or its node names another.",
    type=click.Choice(tuple(POLICIES)),
    default=DEFAULT_POLICY,
)
@option(
    "--packing-exact",
    "With --placement packing, leave kube-scheduler only the nodes where a pod wastes least.",
    type=bool,
    default=False,
)
@option(
    "--cordon-nodes",
    "Nodes with Aliyun's device plugin, by commas or *, whose ConfigMap kube-system/unhealthy-gpu-<node> cordons GPUs.",
    metavar="NODES",
    callback=_nodes,
)
@option(
    "--scheduler-names",
    "Bind only pods with these spec.schedulerName, by commas.",
    metavar="NAMES",
    callback=names_by_commas,
)
@option(
    "--lease-namespace",
    "Namespace of the Lease gpushare-extender.",
    metavar="NAMESPACE",
    default="kube-system",
)
@option(
    "--service-name",
    "Service without a selector in that namespace, which the leader points at its own pod.",
    metavar="NAME",
)
@option("--pod-name", "Name of the extender's pod.", metavar="NAME")
@option("--pod-uid", "UID of the pod.", metavar="UID")
@option("--pod-ip", "Address of the pod.", metavar="ADDRESS", callback=_ip_address)
@tls_certificate_option
@tls_key_option
@option(
    "--tls-client-authority",
    "Authority of client certificates, in PEM; others are rejected.",
    metavar="FILE",
    type=A_PATH,
)
@option(
    "--tls-secret",
    "Make and renew all certificates, in the Secrets NAME and, for kube-scheduler, NAME-client. Needs --service-name.",
    metavar="NAME",
)
@kubeconfig_option
@log_format_option
@log_level_option
def command(
    listen_address: str,
    probe_address: str | None,
    placement: str,
    lease_namespace: str,
    kubeconfig: Path | None,
    **options: Any,
) -> None:
    """Answer kube-scheduler's extender requests: filter, prioritize, bind and preempt, by GPU."""
    check_addresses(listen_address, probe_address)
    if options["packing_exact"] and placement != "packing":
        raise click.UsageError(f"--packing-exact needs --placement packing, found {placement}")
    certificates = _own_certificates(lease_namespace, options) or certificates_of(
        options["tls_certificate"], options["tls_key"], options["tls_client_authority"]
    )
    pod = _own_pod(lease_namespace, options)
    with daemon_log(options["log_format"], options["log_level"]) as log:
        settings = ExtenderSettings(
            address=listen_address,
            namespace=lease_namespace,
            probe_address=probe_address,
            certificates=certificates,
            policy=placement,
            exact=options["packing_exact"],
            kubeconfig=kubeconfig,
            cordon_nodes=options["cordon_nodes"],
            scheduler_names=options["scheduler_names"],
            service=options["service_name"],
            pod=pod,
            pod_address=options["pod_ip"] or "",
            # The objects of the cluster stay, so the collector need not look at them: a look took 0.15 s.
            listed=gc.freeze,
        )
        run_daemon(run(settings), log)


def _own_pod(namespace: str, options: Mapping[str, Any]) -> ObjectIdentity | None:
    """Return the pod of the process, None where options do not name the pod; raise click.UsageError."""
    if None not in {options["pod_name"], options["pod_uid"], options["pod_ip"]}:
        return ObjectIdentity(namespace, options["pod_name"], options["pod_uid"])
    if options["service_name"] is not None:
        raise click.UsageError("--service-name needs --pod-name, --pod-uid and --pod-ip")
    return None


def _own_certificates(namespace: str, options: Mapping[str, Any]) -> OwnCertificateSettings | None:
    """Return the certificates that the extender makes itself, None without --tls-secret; raise click.UsageError."""
    name, service = options["tls_secret"], options["service_name"]
    if not name:
        return None
    if any(options[each] for each in ("tls_certificate", "tls_key", "tls_client_authority")):
        raise click.UsageError(
            "--tls-secret makes the certificates: leave out either it or the other options that begin with --tls-"
        )
    if service is None:
        raise click.UsageError("--tls-secret needs --service-name, whose name the certificate has")
    return OwnCertificateSettings(name, host=f"{service}.{namespace}.svc")
