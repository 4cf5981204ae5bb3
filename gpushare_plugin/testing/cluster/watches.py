"""Watches: streams of what happens, which can be late, cut, or cut in the middle of a line."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field

from aiohttp import web

from gpushare_plugin.foundation.published import Published
from gpushare_plugin.testing.cluster.objects import Store
from gpushare_plugin.testing.cluster.place import Collection
from gpushare_plugin.testing.cluster.selectors import Selector


@dataclass(slots=True)
class Watches:
    """All watches of a server.

    They are `delay` seconds behind what happens, and with `endless` do not end when the client asked them to.
    """

    store: Store
    delay: float = 0.0
    endless: bool = False
    bookmarks: Published[int] = field(default_factory=lambda: Published(0))
    """How often bookmarks have been sent to all watches."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _open: dict[web.StreamResponse, web.Request] = field(default_factory=dict)

    def send_bookmarks(self) -> None:
        """Send a bookmark in every watch that takes them, as soon as it has sent everything else."""
        self.bookmarks.publish(self.bookmarks.value + 1)

    async def cut(self, *, last_words: bytes = b"") -> None:
        """Break the connection of every watch, after `last_words`, such as the beginning of a line."""
        for stream, request in list(self._open.items()):
            with contextlib.suppress(ConnectionError):
                await stream.write(last_words)
            if request.transport is not None:
                # What was written before is still sent; the end of the stream is missing.
                request.transport.close()

    async def stream(self, request: web.Request, stream: web.StreamResponse, where: Collection) -> None:
        """Send changes until the client asked to end, the client goes, or this server stops."""
        watch = _Watch(
            self,
            stream,
            where,
            Selector.parse(request.query.get("fieldSelector", "")),
            int(request.query["resourceVersion"]),
            takes_bookmarks=request.query.get("allowWatchBookmarks") == "true",
        )
        self._open[stream] = request
        try:
            async with asyncio.timeout(None if self.endless else int(request.query["timeoutSeconds"])):
                await watch.run()
        except TimeoutError:
            with contextlib.suppress(ConnectionError):
                await watch.bookmark()
        except ConnectionError:
            pass
        finally:
            del self._open[stream]


@dataclass(slots=True)
class _Watch:
    """One watch, and the version up to which everything has been sent in it."""

    all: Watches
    response: web.StreamResponse
    where: Collection
    selector: Selector
    version: int
    takes_bookmarks: bool

    async def run(self) -> None:
        """Send what happens until this server stops, or has forgotten what happened."""
        store, stopped = self.all.store, self.all.stopped
        bookmarks = self.all.bookmarks.value
        while not stopped.is_set():
            news = [store.version.replaced, self.all.bookmarks.replaced, stopped]
            if self.version < store.oldest:
                await self._send("ERROR", _too_old(self.version))
                return
            late = await self._catch_up()
            if late is None and bookmarks != self.all.bookmarks.value:
                bookmarks = self.all.bookmarks.value
                await self.bookmark()
            tasks = [asyncio.create_task(event.wait()) for event in news]
            try:
                await asyncio.wait(tasks, timeout=late, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()

    async def bookmark(self) -> None:
        """Send the version up to which everything was sent."""
        if self.takes_bookmarks and await self._catch_up() is None:
            self.version = self.all.store.version.value
            await self._send("BOOKMARK", json.dumps({"metadata": {"resourceVersion": str(self.version)}}).encode())

    async def _catch_up(self) -> float | None:
        """Send what is due; return the seconds until more is, None where everything has been sent."""
        now = asyncio.get_running_loop().time
        for kind, change in self.all.store.since(self.version, self.where, self.selector):
            if (early := change.at + self.all.delay - now()) > 0:
                return early
            await self._send(kind, change.body)
            self.version = change.version
        return None

    async def _send(self, kind: str, body: bytes) -> None:
        await self.response.write(b'{"type":"%s","object":%s}\n' % (kind.encode(), body))


def _too_old(version: int) -> bytes:
    message = f"too old resource version: {version}"
    return json.dumps({"kind": "Status", "code": 410, "reason": "Expired", "message": message}).encode()
