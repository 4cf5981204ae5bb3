"""The paths of the pages, and the headers of every answer."""

import asyncio
from collections.abc import Mapping

from aiohttp import web

from gpushare_plugin.base.text import in_words
from gpushare_plugin.kube.manifest import LARGEST
from gpushare_plugin.observe.http.connections import ConnectionLimits
from gpushare_plugin.web.access import Access
from gpushare_plugin.web.fits_page import FitsPage
from gpushare_plugin.web.following import FollowedPicture
from gpushare_plugin.web.forms import RefusedFormError, form_of
from gpushare_plugin.web.interest import Interest
from gpushare_plugin.web.markup import rendered
from gpushare_plugin.web.node_page import NodePage
from gpushare_plugin.web.nodes_page import NodesPage
from gpushare_plugin.web.pages import Pages
from gpushare_plugin.web.paging import text_in, updates
from gpushare_plugin.web.pods import PodsPage, interest_of_pods
from gpushare_plugin.web.query import Query
from gpushare_plugin.web.sending import failed, in_parts
from gpushare_plugin.web.static_files import STATIC
from gpushare_plugin.web.teams_page import TeamsCsv, TeamsPage
from gpushare_plugin.web.updates import LONGEST, stream
from gpushare_plugin.web.viewer import Viewer
from gpushare_plugin.web.waiting_page import WaitingPages

LIMITS = ConnectionLimits(head=10.0, answer=LONGEST + 30.0, idle=30.0)
"""Seconds of a connection; a stream of updates is an answer."""

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
"""The headers of every answer: a page runs and loads nothing from elsewhere, and is shown in no other page."""

_READ = ("GET", "HEAD")
_METHODS = {"/fits": (*_READ, "POST")}
"""The methods of paths that take more than those that read: a manifest is too long for an address."""

_GONE = {
    "nodes": ("The cluster has no node {} that shares GPUs.", "All nodes"),
    "waiting": (
        "No pod {} that you may see waits for GPUs: a pod that is placed or deleted does not wait.",
        "All pods that wait",
    ),
}
"""What is said of an object without a page, and of the link to all others, by the first part of the path."""

_KEPT = {"Cache-Control": "private, max-age=31536000, immutable"}
"""The header of files whose address changes with the content; a year is as good as for ever (RFC 9111, 1.2.2)."""


class WebServer:
    """Answers browsers."""

    def __init__(self, followed: FollowedPicture, access: Access) -> None:
        """Show what is followed to those whom `access` lets in."""
        self._followed, picture = followed, followed.picture
        self._pages = Pages(picture)
        self._nodes = NodesPage(picture)
        self._node = NodePage(picture, followed.faults)
        self._fits = FitsPage(picture, lambda: followed.judged)
        self._pods = PodsPage(picture)
        self._teams = TeamsPage(picture, followed.teams)
        self._waiting = WaitingPages(picture, lambda: followed.judged)
        self._access = access

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request, also where a page has a defect."""
        methods = _METHODS.get(request.path, _READ)
        if request.method not in methods:
            allowed = {"Allow": ", ".join(methods)}
            return _with_headers(web.Response(status=405, headers=allowed, text="pages are only read\n"))
        try:
            viewer = await self._access.viewer(request)
            if isinstance(viewer, web.Response):
                return _with_headers(viewer)
            if request.path == "/updates":
                return await stream(request, self._followed, self._pages, viewer, HEADERS)
            return _with_headers(await self._found(request, viewer) or self._gone(request))
        except RefusedFormError as error:
            return _with_headers(web.Response(status=error.status, text=f"{error}\n"))
        except Exception as error:  # noqa: BLE001 - a defect in a page must not end the server
            failed(request)
            return _with_headers(web.Response(status=500, text=f"the page failed: {in_words(error)}\n"))

    async def _found(self, request: web.BaseRequest, viewer: Viewer) -> web.Response | None:
        """Return the answer at a path; None where there is nothing."""
        if static := STATIC.get(request.path):
            return web.Response(body=static.body, content_type=static.kind, headers=_KEPT)
        if request.path == "/teams.csv":
            return _file(self._teams.csv(viewer))
        if request.path == "/":
            return in_parts(request, await self._pages.map(Query.of(request.query), viewer))
        page = await self._page(request, viewer)
        return None if page is None else _html(page)

    def _gone(self, request: web.BaseRequest) -> web.Response:
        """Return the page of what is not there; the page follows the cluster, because the object can come again."""
        kind, _, name = request.path.removeprefix("/").partition("/")
        picture = self._followed.picture
        words, others = _GONE.get(kind if name else "", ("There is no page at this address.", ""))
        text = rendered(
            "gone.html",
            here="",
            as_of=picture.as_of,
            updates=updates(picture.revision.value) if others else "",
            gone=words.format(name),
            all_of=(f"/{kind}", others) if others else None,
        )
        found = _html(text)
        found.set_status(404)
        return found

    async def _page(self, request: web.BaseRequest, viewer: Viewer) -> str | None:
        """Return the page at a path; None where there is none."""
        found: str | None = None
        self._followed.interests.show(_interest(request), asyncio.get_running_loop().time())
        match request.path.removeprefix("/").partition("/"):
            case "nodes", "", "":
                found = await self._nodes.all(request.query.get("page", ""))
            case "nodes", _, node:
                found = self._node.one(node, viewer)
            case "fits", "", "" if request.method == "POST":
                form = await form_of(request, LARGEST)
                found = await self._fits.manifest(form.get("manifest", ""), form.get("placement", ""))
            case "fits", "", "":
                found = await self._fits.short(request.query.get("request", ""), request.query.get("placement", ""))
            case "pods", "", "":
                found = await self._pods.all(request.query, viewer)
            case "teams", "", "":
                found = self._teams.all(request.query.get("page", ""), viewer, request.query.get("order", ""))
            case "waiting", "", "":
                found = await self._waiting.all(
                    request.query.get("page", ""), viewer, text_in(request.query, "namespace")
                )
            case "waiting", _, pod:
                found = await self._waiting.one(pod, viewer)
        return found


def _interest(request: web.BaseRequest) -> Interest | None:
    """Return the nodes whose use a page shows, also in a browser without scripts; None for a page that shows none."""
    match request.path.removeprefix("/").partition("/"):
        case "", "", "":
            return Query.of(request.query).interest
        case "nodes", _, node if node:
            return Interest(node, whole_name=True)
        case "pods", "", "":
            return interest_of_pods(request.query)
        case "teams", "", "":
            return Interest()
    return None


def _html(text: str) -> web.Response:
    found = web.Response(text=text, content_type="text/html")
    found.enable_compression()
    return found


def _file(found: TeamsCsv) -> web.Response:
    disposition = {"Content-Disposition": f'attachment; filename="{found.name}"'}
    return web.Response(text=found.text, content_type="text/csv", headers=disposition)


def _with_headers(answer: web.Response) -> web.Response:
    answer.headers.update({**HEADERS, **answer.headers})
    return answer
