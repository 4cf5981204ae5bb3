"""`gpushare web`: pages that show every GPU of a cluster; also `kubectl gpushare web`."""

import asyncio
import webbrowser
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from gpushare_plugin.base.log.form import configure_log
from gpushare_plugin.base.signals.ending import until_stopped
from gpushare_plugin.base.structs import replace
from gpushare_plugin.cli.daemons import daemon_log, run_daemon
from gpushare_plugin.cli.options import (
    A_PATH,
    an_address,
    context_option,
    extender_namespace_option,
    log_format_option,
    log_level_option,
    names_by_commas,
    option,
    partitioner_namespace_option,
    person_kubeconfig_option,
    probe_address_option,
)
from gpushare_plugin.cli.serving import (
    certificates_of,
    check_addresses,
    is_loopback,
    tls_certificate_option,
    tls_key_option,
)
from gpushare_plugin.web import in_cluster
from gpushare_plugin.web.credentials import TrustedProxy
from gpushare_plugin.web.service import WebSettings, serve
from gpushare_plugin.web.standing import ProgramNamespaces


@click.command("web", short_help="Show every GPU of a cluster in the browser.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the pages. Default: any free port.")
@click.option("--browser/--no-browser", default=True, help="Open the browser, or print the address only.")
@option(
    "--listen-address",
    "Show the pages at this address to users of the API server, until SIGTERM.",
    metavar="[HOST]:PORT",
    callback=an_address,
)
@probe_address_option
@tls_certificate_option
@tls_key_option
@option(
    "--proxy-client-authority",
    "Authority of a proxy's client certificate, in PEM: the proxy names users by X-Remote-User and X-Remote-Group. "
    "Needs HTTPS.",
    metavar="FILE",
    type=A_PATH,
)
@option(
    "--proxy-names",
    "Common names of the proxy's certificate, by commas. Default: any.",
    metavar="NAMES",
    callback=names_by_commas,
)
@option(
    "--insecure-http",
    "Accept tokens over plain HTTP beyond loopback, behind a proxy with HTTPS.",
    metavar="[true|false]",
    type=click.BOOL,
    default=False,
)
@extender_namespace_option
@partitioner_namespace_option
@option(
    "--daemon-metrics",
    "Namespace of the daemons, whose metrics show the use of GPUs and containers.",
    metavar="NAMESPACE",
)
@person_kubeconfig_option
@context_option
@log_format_option
@log_level_option
def command(*, listen_address: str | None, kubeconfig: Path | None, context: str | None, **options: Any) -> None:
    """Show the GPUs of a cluster on pages at 127.0.0.1, until interrupted.

    The printed address is good once, for one browser. With --listen-address, users show a token of the API server.
    """
    if listen_address is None:
        configure_log("console", "warning")
        opened = partial(_open, browser=options["browser"])
        settings = WebSettings(kubeconfig, context, options["port"], _namespaces(options), opened)
        asyncio.run(until_stopped(serve(settings), interactive=True))
        return
    in_a_cluster = _in_cluster(listen_address, kubeconfig, context, options)
    with daemon_log(options["log_format"], options["log_level"]) as log:
        run_daemon(until_stopped(in_cluster.serve(in_a_cluster)), log)


def _in_cluster(
    address: str, kubeconfig: Path | None, context: str | None, options: Mapping[str, Any]
) -> in_cluster.ClusterWebSettings:
    """Return the settings of the pages in a cluster; raise click.UsageError where tokens could be read by others."""
    if options["port"]:
        raise click.UsageError("--listen-address has the port of the pages: leave out --port")
    check_addresses(address, options["probe_address"])
    authority, names = options["proxy_client_authority"], options["proxy_names"]
    if names and authority is None:
        raise click.UsageError("--proxy-names needs --proxy-client-authority")
    certificates = certificates_of(options["tls_certificate"], options["tls_key"], authority)
    if certificates is not None:
        certificates = replace(certificates, clients_optional=True)
    proxy = None if authority is None else TrustedProxy(names)
    if certificates is None and not options["insecure_http"] and not is_loopback(address):
        raise click.UsageError(
            f"--listen-address {address} would take tokens over plain HTTP: give --tls-certificate and --tls-key, or "
            "--insecure-http=true behind a proxy that has HTTPS"
        )
    return in_cluster.ClusterWebSettings(
        address, options["probe_address"], certificates, proxy, kubeconfig, context, _namespaces(options)
    )


def _namespaces(options: Mapping[str, Any]) -> ProgramNamespaces:
    return ProgramNamespaces(
        options["extender_namespace"], options["partitioner_namespace"], options["daemon_metrics"] or ""
    )


def _open(address: str, *, browser: bool) -> None:
    click.echo(f"The pages are at {address} (good once; Ctrl-C ends them)")
    if browser:
        webbrowser.open(address)
