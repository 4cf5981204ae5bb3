"""A server of HTTP with limits on connections: clients cannot take resources that the process needs for other work."""

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

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.observe.http.address import parse_address

# aiohttp logs a stack for every malformed request, which any client can send.
_no_log = logging.getLogger(__name__)
_no_log.disabled = True

MOST_CONNECTIONS = 128
"""The most connections of a server at a time; fewer if the process may have few file descriptors."""
SHARE_OF_DESCRIPTORS = 4
"""A server may use one in four of the process's file descriptors; a program has two servers at most."""
_WAITING_CONNECTIONS = 64
"""Connections completed by the kernel before the server accepts."""
_DESCRIPTOR_PAUSE = 1.0
"""Seconds until the server accepts again after the process had no file descriptor left for a connection."""
_LAST_ANSWERS = 1.0
"""Seconds that answers to open requests may take when the server ends."""
_LINGERING = 1.0
"""Seconds in which the rest of a refused request is received and dropped."""
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""The errors of accept(2) when the process or the host lacks file descriptors or memory."""

Page = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
"""Answers a request."""


class ConnectionLimits(NamedTuple):
    """Seconds that a connection may stay in a state; later the connection is aborted."""

    head: float
    """Until the first request has arrived with its line and all headers."""
    answer: float
    """Until the whole request has arrived and the answer is made."""
    idle: float
    """Until the client has read an answer, and the line and all headers of the next request have arrived."""


def most_connections() -> int:
    """Return the most connections that a server of this process may have at a time."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, descriptors // SHARE_OF_DESCRIPTORS))


@contextlib.asynccontextmanager
async def listening(
    address: str, answer: Page, limits: ConnectionLimits, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Answer requests at `address`, in the form of `parse_address`, while the context lasts; yield the port.

    A request is cancelled when the client hangs up. A connection beyond the limit aborts the connection that has waited
    longest for a request. Raises GpushareError when the address is invalid or in use.
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
    """Listen at all socket addresses of `address`, one after another; raises GpushareError."""
    host, port = parse_address(address)
    try:
        if host is not None:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, name in dict.fromkeys((each[0], each[4]) for each in found):
                yield _listener(name, family)
        else:
            # One socket for IPv4 and IPv6 means one port, even where any free port will do; a kernel may lack IPv6.
            both = socket.has_dualstack_ipv6()
            yield _listener(("", port), socket.AF_INET6 if both else socket.AF_INET, both=both)
    except (OSError, UnicodeError) as error:
        # Host names that DNS cannot express raise UnicodeError.
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
    """A client, from acceptance until the file descriptor is closed."""

    opening: asyncio.Task[tuple[asyncio.Transport, asyncio.BaseProtocol]]
    """The task that opens the connection, with the TLS handshake, if any."""
    limit: asyncio.TimerHandle
    """Ends the connection when the time for the state of the connection is over."""
    asks: bool = False
    """Whether a request is being received or answered."""

    def end(self) -> None:
        """Close the connection at once; closing a transport would wait until the client has read the whole answer."""
        self.limit.cancel()
        if self.opening.done() and not self.opening.cancelled() and self.opening.exception() is None:
            self.opening.result()[0].abort()
        else:
            self.opening.cancel()


class _UnsignedRequest(web.BaseRequest):
    """A request whose answer does not name software and versions."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        # The only place that also sees the answers made by aiohttp itself.
        response.headers.pop("Server", None)


class _Server(web.Server):
    """Ends every connection in time, and limits the number of connections."""

    def __init__(self, answer: Page, limits: ConnectionLimits) -> None:
        super().__init__(
            self._answered,
            request_factory=functools.partial(_UnsignedRequest, loop=asyncio.get_running_loop()),
            access_log=None,
            # The sender decides on the size of decompressed content.
            auto_decompress=False,
            logger=_no_log,
            # No answer is made for a client that has closed the connection.
            handler_cancellation=True,
            # A client that is still sending could not read the answer from a connection closed at once.
            lingering_time=_LINGERING,
        )
        self._answer = answer
        self._limits = limits
        self._most = most_connections()
        # Connections that have waited longest for a request come first.
        self._open: dict[web.RequestHandler, _Connection] = {}

    async def accept(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Accept connections until cancelled."""
        while True:
            try:
                client, _ = await self._loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR:
                    # The kernel keeps reporting the waiting connection: attempts without a pause would never end.
                    self._loop.call_exception_handler({"message": "no connection is accepted", "exception": error})
                    self._end_one()
                    await asyncio.sleep(_DESCRIPTOR_PAUSE)
                continue  # the client is gone, see accept(2)
            if len(self._open) >= self._most:
                self._end_one()
            self._open_for(client, tls)
            # While connections wait, accepting a connection does not pause: give further tasks their turn.
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
        """Give open requests a moment for their answers, then end every connection."""
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
        """Put a connection into its next state, for at most `seconds`."""
        if (connection := self._open.pop(handler, None)) is not None:
            connection.limit.cancel()
            connection.limit = self._loop.call_later(seconds, self._end, handler)
            connection.asks = asks
            self._open[handler] = connection

    def _end_one(self) -> None:
        """End the connection longest without a request, or else the connection with the oldest request, if any."""
        waiting = (handler for handler, connection in self._open.items() if not connection.asks)
        if (handler := next(waiting, next(iter(self._open), None))) is not None:
            self._end(handler)

    def _end(self, handler: web.RequestHandler) -> None:
        self._open.pop(handler).end()
