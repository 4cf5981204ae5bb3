"""Probes and metrics over HTTP, safe from any client that can reach the port."""

import asyncio
import functools
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from aiohttp import web

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.text import in_words
from gpushare_plugin.telemetry.address import parse_address

_log = structlog.get_logger()

# aiohttp logs a stack for every malformed request, which any client can send.
_no_log = logging.getLogger(__name__)
_no_log.disabled = True

LONGEST_CONNECTION = 5.0
"""Seconds after which a connection is aborted in any case; an answer takes milliseconds."""
MOST_CONNECTIONS = 128
"""Connections at a time; one more aborts the oldest."""
_WAITING_CONNECTIONS = 64
"""Connections that are accepted at once; fewer than the most, so that new ones do not abort each other."""

Check = Callable[[], list[str]]
"""Returns problems, each one line; none means that the check passes."""

Metrics = Callable[[str], Awaitable[tuple[str, bytes]]]
"""Returns content type and body for the `Accept` header of a client."""

_Page = Callable[[web.BaseRequest], Awaitable[web.Response]]

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

    `address` is as for `parse_address`. `started` is called with the port once connections are accepted. A probe
    answers 200 `ok`, or 503 and the problems, one a line. `metrics` is called once at a time, however many clients
    scrape: it takes time that the kubelet's calls need. Raises GpushareError when the address is invalid or in use.
    """
    pages: dict[str, _Page] = {
        "/healthz": functools.partial(_probe, live),
        "/readyz": functools.partial(_probe, ready),
    }
    if metrics is not None:
        pages["/metrics"] = functools.partial(_scrape, metrics, asyncio.Lock())

    async def answer(request: web.BaseRequest) -> web.Response:
        response = await _answer(pages, request)
        # One request a connection, so that no client can queue requests whose answers it never reads.
        response.force_close()
        return response

    server = _Server(answer)
    listening = await _listen(server, address)
    try:
        started(listening.sockets[0].getsockname()[1])
        await asyncio.Event().wait()
    finally:
        listening.close()
        await server.stop()


async def _listen(server: "_Server", address: str) -> asyncio.Server:
    host, port = parse_address(address)
    loop = asyncio.get_running_loop()
    try:
        if host is not None:
            return await loop.create_server(server, host, port, backlog=_WAITING_CONNECTIONS)
        # One socket for IPv4 and IPv6, and so one port where any will do; a kernel may have no IPv6.
        both = socket.has_dualstack_ipv6()
        listener = socket.create_server(
            ("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both
        )
        return await loop.create_server(server, sock=listener, backlog=_WAITING_CONNECTIONS)
    except (OSError, UnicodeError) as error:
        # Host names that cannot be written in the DNS are a UnicodeError.
        reason = getattr(error, "strerror", None) or error
        raise GpushareError(
            f"cannot serve HTTP at {address!r}: {reason}; expected an address of this node with a free port that this "
            "process may use, such as 127.0.0.1:9400 or :9400"
        ) from error


async def _answer(pages: dict[str, _Page], request: web.BaseRequest) -> web.Response:
    page = pages.get(request.path)
    if page is None:
        *others, last = pages
        return _text(404, f"not found; available: {', '.join(others)} and {last}")
    if request.method not in _METHODS:
        allowed = ", ".join(_METHODS)
        return _text(405, f"allowed methods: {allowed}", Allow=allowed)
    return await page(request)


def _text(status: int, text: str, **headers: str) -> web.Response:
    """Return an answer for people; it ends with its line, as a terminal expects."""
    return web.Response(status=status, headers=headers, text=f"{text}\n")


async def _probe(check: Check, request: web.BaseRequest) -> web.Response:
    try:
        problems = check()
    except Exception as error:  # noqa: BLE001 - a check that fails must not pass
        _log.exception("probe_failed", path=request.path, remedy=_REPORT)
        problems = [f"the check itself failed: {in_words(error)}"]
    return _text(503 if problems else 200, "\n".join(problems) or "ok")


async def _scrape(metrics: Metrics, turn: asyncio.Lock, request: web.BaseRequest) -> web.Response:
    try:
        async with turn:
            content_type, body = await metrics(", ".join(request.headers.getall("Accept", ())))
    except Exception as error:  # noqa: BLE001 - the client must see that it failed, and the daemon goes on
        _log.exception("metrics_failed", remedy=_REPORT)
        return _text(500, f"the metrics failed: {in_words(error)}")
    return web.Response(body=body, headers={"Content-Type": content_type})


class _Request(web.BaseRequest):
    """A request whose answer does not name the software and versions that made it."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        # The one place that also sees the answers aiohttp makes by itself.
        response.headers.pop("Server", None)


class _Server(web.Server):
    """Bounds what clients can do: each connection ends in time, and their number is limited."""

    def __init__(self, handler: Callable[[web.BaseRequest], Any]) -> None:
        super().__init__(
            handler,
            request_factory=functools.partial(_Request, loop=asyncio.get_running_loop()),
            access_log=None,
            logger=_no_log,
            # No answer is made for a client that has closed the connection.
            handler_cancellation=True,
            # Waiting for the rest of a request goes on after the connection has ended.
            lingering_time=0,
        )
        self._open: dict[web.RequestHandler, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Register a new connection; abort the oldest one where there are too many."""
        super().connection_made(handler, transport)
        timer = self._loop.call_later(LONGEST_CONNECTION, self._abort, handler)
        self._open[handler] = transport, timer
        # Not the newest: a new probe is answered even if other clients hold all connections.
        if len(self._open) > MOST_CONNECTIONS:
            self._abort(next(iter(self._open)))

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Forget a connection."""
        super().connection_lost(handler, exc)
        if handler in self._open:
            _, timer = self._open.pop(handler)
            timer.cancel()

    async def stop(self) -> None:
        """Abort every connection."""
        for handler in tuple(self._open):
            self._abort(handler)
        await self.shutdown(LONGEST_CONNECTION)

    def _abort(self, handler: web.RequestHandler) -> None:
        transport, timer = self._open.pop(handler)
        timer.cancel()
        # Closing would wait until the client has read what was sent.
        transport.abort()
