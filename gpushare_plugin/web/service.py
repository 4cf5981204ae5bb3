"""The composition root at a terminal: follows the cluster, and shows it to the person who started the program."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.tasks import beside
from gpushare_plugin.kube.client import Client
from gpushare_plugin.kube.whole_cluster.reading import PATIENT
from gpushare_plugin.observe.http.connections import listening
from gpushare_plugin.web.access import TerminalAccess
from gpushare_plugin.web.daemon_metrics import by_api_server, follow_use
from gpushare_plugin.web.following import QUIET, FollowedPicture
from gpushare_plugin.web.server import LIMITS, WebServer
from gpushare_plugin.web.standing import ProgramNamespaces


class WebSettings(Struct, frozen=True):
    """The settings of the pages at a terminal."""

    kubeconfig: Path | None = None
    """The kubeconfig for the API server; None in a pod of the cluster."""
    context: str | None = None
    """The context of the kubeconfig; None for the current one."""
    port: int = 0
    """The port of the loopback address; 0 for any free port."""
    namespaces: ProgramNamespaces = ProgramNamespaces()
    """The namespaces of the programs that decide about pods."""
    started: Callable[[str], None] = lambda _address: None
    """Called with the address to open once, when the pages can be asked for."""


async def serve(settings: WebSettings) -> None:
    """Show the cluster until cancelled; raises ClusterError where the cluster cannot be read."""
    followed, access = FollowedPicture(settings.namespaces), TerminalAccess()
    server = WebServer(followed, access)
    async with (
        Client(settings.kubeconfig, replace(PATIENT, quiet=QUIET), context=settings.context) as client,
        Client(settings.kubeconfig, context=settings.context, redirected=False) as for_daemons,
        beside(followed.follow(client)) as following,
        beside(follow_use(followed, settings.namespaces.daemons, by_api_server(for_daemons))) as using,
    ):
        await followed.shown.wait()
        async with listening(f"127.0.0.1:{settings.port}", server.answer, LIMITS) as port:
            settings.started(access.address(port))
            try:
                await following
            finally:
                using.cancel()
