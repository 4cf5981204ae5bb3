"""The paths of the pages, and the headers of every answer."""

from collections.abc import Mapping
from importlib.resources import files

import structlog
from aiohttp import web

from gpushare_plugin.base.text import in_words
from gpushare_plugin.kube.manifest import LARGEST
from gpushare_plugin.observe.http.connections import ConnectionLimits
from gpushare_plugin.web.access import Access
from gpushare_plugin.web.fits_page import FitsPage
from gpushare_plugin.web.forms import RefusedFormError, form_of
from gpushare_plugin.web.pages import Pages
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.query import Query
from gpushare_plugin.web.updates import LONGEST, stream
from gpushare_plugin.web.viewer import Viewer

_log = structlog.get_logger()

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

_STATIC = {"style.css": "text/css", "updates.js": "text/javascript", "icon.svg": "image/svg+xml"}


class WebServer:
    """Answers browsers."""

    def __init__(self, picture: Picture, access: Access) -> None:
        """Show `picture` to those whom `access` lets in."""
        self._picture = picture
        self._pages = Pages(picture)
        self._fits = FitsPage(picture)
        self._access = access
        self._static = {
            name: (kind, (files(__package__) / "static" / name).read_bytes()) for name, kind in _STATIC.items()
        }

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
                return await stream(request, self._picture, self._pages, viewer, HEADERS)
            page = await self._page(request, viewer) or web.Response(status=404, text="not found\n")
            return _with_headers(page)
        except RefusedFormError as error:
            return _with_headers(web.Response(status=error.status, text=f"{error}\n"))
        except Exception as error:  # noqa: BLE001 - a defect in a page must not end the server
            _log.exception("page_failed", path=request.path, remedy="report this as a defect of gpushare")
            return _with_headers(web.Response(status=500, text=f"the page failed: {in_words(error)}\n"))

    async def _page(self, request: web.BaseRequest, viewer: Viewer) -> web.Response | None:
        """Return the answer at a path; None where there is nothing."""
        first, _, rest = request.path.removeprefix("/").partition("/")
        match first:
            case "":
                return _html(await self._pages.map(Query.of(request.query), viewer))
            case "nodes":
                page = self._pages.node(rest, viewer)
                return None if page is None else _html(page)
            case "fits" if not rest and request.method == "POST":
                form = await form_of(request, LARGEST)
                return _html(await self._fits.manifest(form.get("manifest", "")))
            case "fits" if not rest:
                return _html(await self._fits.short(request.query.get("request", "")))
            case "static" if rest in self._static:
                kind, body = self._static[rest]
                return web.Response(body=body, content_type=kind)
        return None


def _html(text: str) -> web.Response:
    found = web.Response(text=text, content_type="text/html")
    found.enable_compression()
    return found


def _with_headers(answer: web.Response) -> web.Response:
    answer.headers.update(HEADERS)
    return answer
