"""Watches: streams of what is there and what happens, which can be late, cut, or cut in the middle of a line."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web

from gpushare_plugin.testing.cluster.store.errors import STATUS
from gpushare_plugin.testing.cluster.store.objects import Store
from gpushare_plugin.testing.cluster.store.place import Collection
from gpushare_plugin.testing.cluster.store.selectors import Selector


@dataclass(slots=True)
class Watches:
    """All watches of a server.

    They are `delay` seconds behind what happens, and with `endless` do not end when the client asked them to. Each
    ends with a bookmark. `open` are those that have begun.
    """

    store: Store
    delay: float = 0.0
    endless: bool = False
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    open: list["Watch"] = field(default_factory=list)

    async def say(self, line: bytes) -> None:
        """Send bytes in every watch, whatever they are."""
        for watch in list(self.open):
            with contextlib.suppress(ConnectionError):
                await watch.response.write(line)

    async def cut(self, *, last_words: bytes = b"") -> None:
        """Break the connection of every watch, after `last_words`, such as the beginning of a line."""
        await self.say(last_words)
        for watch in list(self.open):
            if watch.request.transport is not None:
                # What was written before is still sent; the end of the stream is missing.
                watch.request.transport.close()

    async def stream(self, request: web.Request, stream: web.StreamResponse, where: Collection) -> None:
        """Send changes until the client asked to end, the client goes, or this server stops."""
        watch = Watch(
            self,
            request,
            stream,
            where,
            Selector.of(request.query),
            int(request.query.get("resourceVersion") or 0),
            takes_bookmarks=request.query.get("allowWatchBookmarks") == "true",
        )
        self.open.append(watch)
        try:
            seconds = int(request.query.get("timeoutSeconds") or 0) or None
            async with asyncio.timeout(None if self.endless else seconds):
                await watch.run()
        except TimeoutError:
            with contextlib.suppress(ConnectionError):
                await watch.bookmark()
        except ConnectionError:
            pass
        finally:
            self.open.remove(watch)


@dataclass(eq=False, slots=True)
class Watch:
    """One watch, and the version up to which everything has been sent in it."""

    all: Watches
    request: web.Request
    response: web.StreamResponse
    where: Collection
    selector: Selector
    version: int
    takes_bookmarks: bool

    async def run(self) -> None:
        """Send what happens until this server stops, or has forgotten what happened."""
        store, stopped = self.all.store, self.all.stopped
        streamed = self.request.query.get("sendInitialEvents") == "true"
        if streamed or not self.version:
            await self._begin(ends=streamed)
        while not stopped.is_set():
            news = [store.version.replaced, stopped]
            if self.version < store.oldest:
                await self._send("ERROR", _too_old(self.version))
                return
            late = await self._catch_up()
            tasks = [asyncio.create_task(event.wait()) for event in news]
            try:
                await asyncio.wait(tasks, timeout=late, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()

    async def bookmark(self) -> None:
        """Send the version up to which everything was sent."""
        if self.takes_bookmarks and await self._catch_up() is None:
            await self._send_bookmark()

    async def _begin(self, *, ends: bool) -> None:
        """Send what is there, for a client that names no version; where it `ends` is said only if that was asked."""
        self.version = self.all.store.version.value
        for body in [stored.body for _, stored in self.all.store.selected(self.where, self.selector)]:
            await self._send("ADDED", body)
        if ends:
            await self._send_bookmark(annotations={"k8s.io/initial-events-end": "true"})

    async def _send_bookmark(self, **metadata: dict[str, str]) -> None:
        found = {**self.where.type_meta, "metadata": {"resourceVersion": str(self.version), **metadata}}
        await self._send("BOOKMARK", json.dumps(found).encode())

    async def _catch_up(self) -> float | None:
        """Send what is due; return the seconds until more is, None where everything has been sent."""
        now = asyncio.get_running_loop().time
        newest = self.all.store.version.value
        for kind, change in self.all.store.since(self.version, self.where, self.selector):
            if (early := change.at + self.all.delay - now()) > 0:
                return early
            await self._send(kind, change.body)
            self.version = change.version
        self.version = max(self.version, newest)
        return None

    async def _send(self, kind: str, body: bytes) -> None:
        await self.response.write(b'{"type":"%s","object":%s}\n' % (kind.encode(), body))


def _too_old(version: int) -> bytes:
    message = f"too old resource version: {version}"
    return json.dumps({**STATUS, "status": "Failure", "code": 410, "reason": "Expired", "message": message}).encode()


def problem_of(query: Mapping[str, str]) -> str | None:
    """Return why a watch cannot be (apimachinery: ValidateListOptions), None where it can."""
    if "sendInitialEvents" in query and query.get("resourceVersionMatch") != "NotOlderThan":
        return (
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        )
    return None
