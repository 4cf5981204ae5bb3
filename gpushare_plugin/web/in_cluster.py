"""The composition root in a cluster: follows the cluster, and shows it to users of the API server."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.tasks import background
from gpushare_plugin.kube.client import Client, Timing
from gpushare_plugin.observe.event_loop import Pauses
from gpushare_plugin.observe.exposition import web_exposition
from gpushare_plugin.observe.http.certificates import Certificates, RenewedCertificates
from gpushare_plugin.observe.http.connections import listening
from gpushare_plugin.observe.http.probes import serve_http
from gpushare_plugin.observe.metrics.web import WebCounts, WebView
from gpushare_plugin.web.credentials import TrustedProxy
from gpushare_plugin.web.daemon_metrics import directly, follow_use, session_for_daemons
from gpushare_plugin.web.following import QUIET, FollowedPicture
from gpushare_plugin.web.reviewed_access import ReviewedAccess
from gpushare_plugin.web.server import LIMITS, WebServer
from gpushare_plugin.web.standing import ProgramNamespaces


class ClusterWebSettings(Struct, frozen=True):
    """The settings of the pages in a cluster."""

    address: str
    """The address of the pages."""
    probe_address: str | None = None
    """The address for probes of the kubelet and scrapes of Prometheus; None for neither."""
    certificates: Certificates | None = None
    """The certificates of the pages; None for plain HTTP."""
    proxy: TrustedProxy | None = None
    """The proxy that is trusted, whose authority `certificates` has; None for no proxy."""
    kubeconfig: Path | None = None
    """The kubeconfig for the API server; None in a pod of the cluster."""
    context: str | None = None
    """The context of the kubeconfig; None for the current one."""
    namespaces: ProgramNamespaces = ProgramNamespaces()
    """The namespaces of the programs that decide about pods."""
    started: Callable[[int], None] = lambda _port: None
    """Called with the port of the pages, when the pages can be asked for."""


async def serve(settings: ClusterWebSettings) -> None:
    """Show the cluster until cancelled.

    Raises GpushareError for an address, a certificate or a kubeconfig that cannot be used at the start.
    """
    async with (
        Client(settings.kubeconfig, Timing(quiet=QUIET), context=settings.context) as client,
        session_for_daemons() as session,
        background() as spawn,
    ):
        await client.configure()
        pauses, counts = Pauses(), WebCounts()
        spawn("pauses", pauses.watch)
        followed, served, tls = FollowedPicture(settings.namespaces), asyncio.Event(), None
        if settings.certificates is not None:
            tls = RenewedCertificates(settings.certificates).context
        access = ReviewedAccess(client, lambda: followed.picture.namespaces, counts, settings.proxy)
        server = WebServer(followed, access)
        spawn("following", lambda: followed.follow(client))
        spawn("use", lambda: follow_use(followed, settings.namespaces.daemons, directly(session)))
        if settings.probe_address is not None:
            address, ready = settings.probe_address, partial(_problems, followed, served)

            async def metrics(accept: str) -> tuple[str, bytes]:
                nodes = len(followed.picture.nodes)
                return web_exposition(WebView(nodes, access.visitors, client.errors, pauses.longest), counts, accept)

            spawn("probes", lambda: serve_http(address, live=list, ready=ready, metrics=metrics))
        await followed.shown.wait()
        async with listening(settings.address, server.answer, LIMITS, tls) as port:
            served.set()
            settings.started(port)
            await asyncio.Event().wait()


def _problems(followed: FollowedPicture, served: asyncio.Event) -> list[str]:
    """Return why no page can be asked for; empty without a problem."""
    return followed.problems() or ([] if served.is_set() else ["the pages are not served yet"])
