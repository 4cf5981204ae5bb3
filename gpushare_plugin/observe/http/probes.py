"""Probes and metrics over HTTP, safe from any client with access to the port."""

import asyncio
import functools
from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web

from gpushare_plugin.base.text import in_words
from gpushare_plugin.observe.http.connections import ConnectionLimits, Page, listening

_log = structlog.get_logger()

LONGEST_STATE = 5.0
"""Seconds for a request to arrive, and seconds for its answer: an answer takes milliseconds."""
_LIMITS = ConnectionLimits(head=LONGEST_STATE, answer=LONGEST_STATE, idle=LONGEST_STATE)

Check = Callable[[], list[str]]
"""Returns problems, one line per problem; an empty list means success."""

Metrics = Callable[[str], Awaitable[tuple[str, bytes]]]
"""Returns content type and body for the `Accept` header of a client."""

_METHODS = ("GET", "HEAD")
_REPORT = "report this as a defect of gpushare"


async def serve_http(
    address: str,
    live: Check,
    ready: Check,
    metrics: Metrics | None = None,
    started: Callable[[int], None] = lambda _port: None,
) -> None:
    """Serve `/healthz` from `live`, `/readyz` from `ready` and `/metrics` from `metrics`, if any, until cancelled.

    `address` has the form of `parse_address`. `started` is called with the port once the server accepts connections. A
    probe answers 200 `ok`, or 503 and the problems, one per line. `metrics` is called once at a time, however many
    clients scrape, because every call takes time from the kubelet's calls. Raises GpushareError when the address is
    invalid or in use.
    """
    pages: dict[str, Page] = {
        "/healthz": functools.partial(_probe, live),
        "/readyz": functools.partial(_probe, ready),
    }
    if metrics is not None:
        pages["/metrics"] = functools.partial(_scrape, metrics, asyncio.Lock())

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = await _answer(pages, request)
        # One request per connection: no client can queue requests without reading the answers.
        response.force_close()
        return response

    async with listening(address, answer, _LIMITS) as port:
        started(port)
        await asyncio.Event().wait()


async def _answer(pages: dict[str, Page], request: web.BaseRequest) -> web.StreamResponse:
    page = pages.get(request.path)
    if page is None:
        *others, last = pages
        return _text(404, f"not found; available: {', '.join(others)} and {last}")
    if request.method not in _METHODS:
        allowed = ", ".join(_METHODS)
        return _text(405, f"allowed methods: {allowed}", Allow=allowed)
    return await page(request)


def _text(status: int, text: str, **headers: str) -> web.Response:
    """Return an answer for people; the text ends with a line break, as a terminal expects."""
    return web.Response(status=status, headers=headers, text=f"{text}\n")


async def _probe(check: Check, request: web.BaseRequest) -> web.Response:
    try:
        problems = check()
    except Exception as error:  # noqa: BLE001 - a check with a defect must not pass
        _log.exception("probe_failed", path=request.path, remedy=_REPORT)
        problems = [f"the check itself failed: {in_words(error)}"]
    return _text(503 if problems else 200, "\n".join(problems) or "ok")


async def _scrape(metrics: Metrics, turn: asyncio.Lock, request: web.BaseRequest) -> web.Response:
    try:
        async with turn:
            content_type, body = await metrics(", ".join(request.headers.getall("Accept", ())))
    except Exception as error:  # noqa: BLE001 - the client must see the failure, and the daemon continues
        _log.exception("metrics_failed", remedy=_REPORT)
        return _text(500, f"the metrics failed: {in_words(error)}")
    return web.Response(body=body, headers={"Content-Type": content_type})
