"""A server of HTTP with bounds on its connections, so that clients cannot take what other work of the process needs."""

import asyncio
import contextlib
import errno
import functools
import logging
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiohttp import web

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.telemetry.http.address import parse_address

# aiohttp logs a stack for every malformed request, which any client can send.
_no_log = logging.getLogger(__name__)
_no_log.disabled = True

MOST_CONNECTIONS = 128
"""Connections of a server at a time; fewer where the process may have few descriptors."""
SHARE_OF_DESCRIPTORS = 4
"""One in so many of the descriptors that the process may have is for a server; a program has two servers at most."""
_WAITING_CONNECTIONS = 64
"""Connections that the kernel completes before they are accepted."""
_DESCRIPTOR_PAUSE = 1.0
"""Seconds until a connection is accepted after no descriptor was left for one."""
_LAST_ANSWERS = 1.0
"""Seconds that requests may take to be answered when the server ends."""
_LINGERING = 1.0
"""Seconds in which the rest of a request that was refused is received and dropped."""
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

Page = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class ConnectionLimits(NamedTuple):
    """Seconds that a connection lasts in each of its states; then it is aborted."""

    head: float
    """Until the first request, its line and all its headers, has come."""
    answer: float
    """Until the request has come as a whole and its answer is made."""
    idle: float
    """Until an answer has been read, and the next request begun and its head complete."""


def most_connections() -> int:
    """Return how many connections a server of this process may have at a time."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, descriptors // SHARE_OF_DESCRIPTORS))


@contextlib.asynccontextmanager
async def listening(
    address: str, answer: Page, limits: ConnectionLimits, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Answer requests at `address`, as for `parse_address`, while the context lasts; yield the port.

    A request whose client hangs up is cancelled. One connection too many aborts the one that waits longest for a
    request. Raises GpushareError when the address is invalid or in use.
    """
    with contextlib.ExitStack() as sockets:
        listeners = [sockets.enter_context(each) async for each in _listeners(address)]
        server = _Server(answer, limits)
        accepting = [asyncio.create_task(server.accept(each, tls)) for each in listeners]
        try:
            yield listeners[0].getsockname()[1]
        finally:
            for task in accepting:
                task.cancel()
            await asyncio.wait(accepting)
            await server.stop()


async def _listeners(address: str) -> AsyncIterator[socket.socket]:
    """Listen at all that an address stands for, one after the other; raises GpushareError."""
    host, port = parse_address(address)
    try:
        if host is not None:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, name in dict.fromkeys((each[0], each[4]) for each in found):
                yield _listener(name, family)
        else:
            # One socket for IPv4 and IPv6, and so one port where any will do; a kernel may have no IPv6.
            both = socket.has_dualstack_ipv6()
            yield _listener(("", port), socket.AF_INET6 if both else socket.AF_INET, both=both)
    except (OSError, UnicodeError) as error:
        # Host names that cannot be written in the DNS are a UnicodeError.
        reason = getattr(error, "strerror", None) or error
        raise GpushareError(
            f"cannot serve HTTP at {address!r}: {reason}; expected an address of this host with a free port that this "
            "process may use, such as 127.0.0.1:9400 or :9400"
        ) from error


def _listener(name: tuple[Any, ...], family: int, *, both: bool = False) -> socket.socket:
    listener = socket.create_server(name, family=family, dualstack_ipv6=both, backlog=_WAITING_CONNECTIONS)
    listener.setblocking(False)  # noqa: FBT003 - the socket's own signature
    return listener


@dataclass(eq=False, slots=True)
class _Connection:
    """A client, from when it is accepted until its descriptor is closed."""

    opening: asyncio.Task[tuple[asyncio.Transport, asyncio.BaseProtocol]]
    """Its TLS handshake, if there is one."""
    limit: asyncio.TimerHandle
    asks: bool = False
    """Whether a request of it is being received or answered."""

    def end(self) -> None:
        """Close it, whatever its state; closing a transport would wait until the client has read what was sent."""
        self.limit.cancel()
        if self.opening.done() and not self.opening.cancelled() and self.opening.exception() is None:
            self.opening.result()[0].abort()
        else:
            self.opening.cancel()


class _UnsignedRequest(web.BaseRequest):
    """A request whose answer does not name the software and versions that made it."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        # The one place that also sees the answers aiohttp makes by itself.
        response.headers.pop("Server", None)


class _Server(web.Server):
    """Makes sure that each connection ends in time, and that there are not too many."""

    def __init__(self, answer: Page, limits: ConnectionLimits) -> None:
        super().__init__(
            self._answered,
            request_factory=functools.partial(_UnsignedRequest, loop=asyncio.get_running_loop()),
            access_log=None,
            # What is compressed has the size that its sender likes.
            auto_decompress=False,
            logger=_no_log,
            # No answer is made for a client that has closed the connection.
            handler_cancellation=True,
            # Who still sends when the answer is there would not read it from a connection that is closed at once.
            lingering_time=_LINGERING,
        )
        self._answer = answer
        self._limits = limits
        self._most = most_connections()
        # Those that have waited longest for a request come first.
        self._open: dict[web.RequestHandler, _Connection] = {}

    async def accept(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Accept connections until cancelled."""
        while True:
            try:
                client, _ = await self._loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR:
                    # The kernel goes on to report the connection that waits, so to try again at once would never end.
                    self._loop.call_exception_handler({"message": "no connection is accepted", "exception": error})
                    self._end_one()
                    await asyncio.sleep(_DESCRIPTOR_PAUSE)
                continue  # the client has gone, see accept(2)
            if len(self._open) >= self._most:
                self._end_one()
            self._open_for(client, tls)
            # Where connections wait, accepting one does not.
            await asyncio.sleep(0)

    def _open_for(self, client: socket.socket, tls: ssl.SSLContext | None) -> None:
        handler = self()
        opening = self._loop.create_task(
            self._loop.connect_accepted_socket(
                lambda: handler, client, ssl=tls, ssl_handshake_timeout=self._limits.head if tls else None
            )
        )
        limit = self._loop.call_later(self._limits.head, self._end, handler)
        self._open[handler] = _Connection(opening, limit)

        def opened(_: object) -> None:
            if opening.cancelled() or opening.exception() is not None:
                client.close()
                if handler in self._open:
                    self._end(handler)

        opening.add_done_callback(opened)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Forget a connection."""
        super().connection_lost(handler, exc)
        if handler in self._open:
            self._open.pop(handler).limit.cancel()

    async def stop(self) -> None:
        """Let requests be answered for a moment; end every connection."""
        self.pre_shutdown()
        for handler, connection in tuple(self._open.items()):
            if not connection.asks:
                self._end(handler)
        await self.shutdown(_LAST_ANSWERS)
        for handler in tuple(self._open):
            self._end(handler)

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        handler = request.protocol
        self._enter(handler, self._limits.answer, asks=True)
        try:
            return await self._answer(request)
        finally:
            self._enter(handler, self._limits.idle, asks=False)

    def _enter(self, handler: web.RequestHandler, seconds: float, *, asks: bool) -> None:
        """Begin another state of a connection, which may last some seconds."""
        if (connection := self._open.pop(handler, None)) is not None:
            connection.limit.cancel()
            connection.limit = self._loop.call_later(seconds, self._end, handler)
            connection.asks = asks
            self._open[handler] = connection

    def _end_one(self) -> None:
        """End the connection that can best be spared, if there is any."""
        waiting = (handler for handler, connection in self._open.items() if not connection.asks)
        if (handler := next(waiting, next(iter(self._open), None))) is not None:
            self._end(handler)

    def _end(self, handler: web.RequestHandler) -> None:
        self._open.pop(handler).end()
