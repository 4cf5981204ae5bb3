"""The bodies of requests and of long answers, with limits for a single body and for all bodies together."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus

import structlog
from aiohttp import web

from gpushare_plugin.base.errors import GpushareError

_log = structlog.get_logger()

MIB = 2**20
"""The bytes of a MiB."""

LARGEST_REQUEST = 16 * MIB
"""The most bytes of a request.

A kube-scheduler without `nodeCacheCapable` sends whole Nodes of its sample, some 20 KiB per Node: by default at most
781 Nodes, in a cluster of 3,125. With `nodeCacheCapable` kube-scheduler sends names: 1.3 MiB for 5,000 nodes with names
of the greatest length. The largest pod accepted by an API server has less than 3 MiB.
"""

MOST_TOGETHER = 4 * LARGEST_REQUEST
"""The most bytes of all requests being received or answered; the same limit holds for all long answers being sent."""

_PART = 2**16
"""The bytes of a long answer handed to the connection at a time."""

MOST_VALUES = 2**20
"""The most JSON values in a request, counted as commas: one per 16 bytes of the largest request.

A Node has a value per 30 bytes or so.
"""

LONGEST_REQUEST = 10.0
"""The most seconds to receive a whole request; kube-scheduler itself waits 5 s for an answer."""

_NAMES_INSTEAD = (
    "set nodeCacheCapable: true for this extender in the KubeSchedulerConfiguration, so that kube-scheduler sends "
    "names instead of whole Nodes"
)


class RefusedRequestError(GpushareError):
    """A request is refused for its head, size or content; `status` is the HTTP status of the answer."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        """Refuse with an HTTP status and a reason."""
        super().__init__(message)
        self.status = status


class Bodies:
    """Receives bodies, and gives the turn to a single request at a time."""

    def __init__(self) -> None:
        """Hold no body yet."""
        self._held = 0
        self._sent = 0
        self._receiving: dict[asyncio.Task[object], bytearray] = {}
        self._given_up: set[asyncio.Task[object]] = set()
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def of(self, request: web.BaseRequest) -> AsyncIterator[bytearray]:
        """Receive the body of a request, hold it, and have a turn; raises RefusedRequestError.

        The code in the context has the event loop for itself. Waiting tasks, such as the renewal of the Lease, run
        before the next request.
        """
        async with self.held(request) as body, self.turn():
            yield body

    @contextlib.asynccontextmanager
    async def held(self, request: web.BaseRequest) -> AsyncIterator[bytearray]:
        """Receive the body of a request, and hold the body while the context lasts; raises RefusedRequestError."""
        _check_head(request)
        body = bytearray()
        try:
            await self._receive(request, body)
            _check_values(body)
            yield body
        finally:
            self._held -= len(body)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Have the turn while the context lasts: no other request gets the turn."""
        async with self._turn:
            try:
                yield
            finally:
                await asyncio.sleep(0)

    async def send(self, request: web.BaseRequest, body: bytes, content_type: str) -> web.StreamResponse:
        """Send a long answer as its client reads; raises RefusedRequestError if all answers together are too large."""
        if self._sent + len(body) > MOST_TOGETHER:
            raise _busy("sending answers")
        response = web.StreamResponse(headers={"Content-Type": content_type})
        response.content_length = len(body)
        self._sent += len(body)
        try:
            await response.prepare(request)
            if request.method != "HEAD":
                for start in range(0, len(body), _PART):
                    await response.write(body[start : start + _PART])
            await response.write_eof()
        finally:
            self._sent -= len(body)
        return response

    async def _receive(self, request: web.BaseRequest, body: bytearray) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        self._receiving[task] = body
        try:
            async with asyncio.timeout(LONGEST_REQUEST):
                # `request.read` would let the client fill a buffer of the largest size before any byte is counted.
                while chunk := await request.content.readany():
                    body += chunk
                    self._held += len(chunk)
                    if len(body) > LARGEST_REQUEST:
                        raise _too_large()
                    if self._held > MOST_TOGETHER:
                        self._give_up_largest(task)
        except asyncio.CancelledError:
            if task in self._given_up:
                task.uncancel()
                raise _busy("receiving requests") from None
            # The client has hung up, or the extender ends.
            _log.debug("extender_request_incomplete", path=request.path, count=len(body))
            raise
        except TimeoutError as error:
            missing = f"the request was not complete after {LONGEST_REQUEST:g} s"
            raise RefusedRequestError(HTTPStatus.BAD_REQUEST, missing) from error
        finally:
            del self._receiving[task]
            self._given_up.discard(task)

    def _give_up_largest(self, task: asyncio.Task[object]) -> None:
        """Refuse the largest request: a few slow large requests must not block kube-scheduler's small requests."""
        largest = max(self._receiving, key=lambda each: len(self._receiving[each]))
        if largest is task:
            raise _busy("receiving requests")
        if largest not in self._given_up:
            self._given_up.add(largest)
            largest.cancel()


def _busy(doing: str) -> RefusedRequestError:
    return RefusedRequestError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"the extender is {doing} of {MOST_TOGETHER // MIB} MiB already, the most at a time; retry",
    )


def _check_head(request: web.BaseRequest) -> None:
    """Raise RefusedRequestError for a head that announces an encoded or too large body."""
    if (encoding := request.headers.get("Content-Encoding", "identity").lower()) != "identity":
        # A compressed body can grow to any size when decompressed.
        compressed = f"the request has Content-Encoding {encoding[:20]!r}; expected none, as kube-scheduler sends it"
        raise RefusedRequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, compressed)
    if (request.content_length or 0) > LARGEST_REQUEST:
        raise _too_large()


def _check_values(body: bytearray) -> None:
    if (values := body.count(b",")) > MOST_VALUES:
        raise RefusedRequestError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the request has some {values:,} values; at most {MOST_VALUES:,} are taken; {_NAMES_INSTEAD}",
        )


def _too_large() -> RefusedRequestError:
    return RefusedRequestError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the request has more than {LARGEST_REQUEST // MIB} MiB, the most that is taken; {_NAMES_INSTEAD}",
    )
