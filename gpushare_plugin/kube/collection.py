"""Follows a collection of objects: lists the objects in pages, watches them, and lists them again if necessary.

A broken watch is resumed from the last version seen, so a restarted server does not get a full list request from every
client. Lists are consistent reads: a list contains everything written before the list began.
"""

import asyncio
import random
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from gpushare_plugin.base.text import in_words
from gpushare_plugin.kube.client import UNREADABLE, Client, ClusterError, Object, decoded
from gpushare_plugin.kube.objects import Identified, Metadata, Page, Status, WatchEvent

_log = structlog.get_logger()

T = TypeVar("T")

PAGE = 500
"""Number of objects in a page, the same as with kubectl and client-go."""


@dataclass(frozen=True, slots=True)
class Put(Generic[T]):
    """An object was created, or has changed."""

    object: T
    """The object in its newest version."""


@dataclass(frozen=True, slots=True)
class Gone:
    """An object was deleted, or does not match the selector any more."""

    uid: str
    """The UID of the object."""
    namespace: str
    """The namespace of the object, empty for an object without a namespace."""
    name: str
    """The name of the object."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A list is complete: all of its differences from the known objects have been yielded."""


class CollectionForbiddenError(Exception):
    """The API server forbids reading a collection."""


def raise_forbidden() -> None:
    """Raise CollectionForbiddenError, in a follower that ends its collection when the server forbids reading it."""
    raise CollectionForbiddenError


class Collection(Generic[T]):
    """A collection for one consumer; keeps the identities and versions of objects, not the objects."""

    def __init__(  # noqa: PLR0913 - the settings of a followed collection
        self,
        client: Client,
        path: str,
        kind: type[T],
        *,
        consequence: str,
        selector: str = "",
        labels: str = "",
        page: int = PAGE,
        forbidden: Callable[[], None] = lambda: None,
    ) -> None:
        """Follow the objects of `path`, decoded as `kind`, in lists of `page` objects.

        With a field `selector` or a label selector `labels`, follow the matching objects only. `consequence` is a
        clause for the log of failures: it names the work that stops during a failure. `forbidden` is called when the
        server forbids reading the collection. An object that cannot be decoded as `kind` is logged, and its former
        version stays.
        """
        self._client = client
        self._path = path
        selectors = {"fieldSelector": selector, "labelSelector": labels}
        self._query = {name: value for name, value in selectors.items() if value}
        self._shown = "?".join(filter(None, (path, "&".join(f"{name}={value}" for name, value in self._query.items()))))
        self._consequence = consequence
        self._page_size = page
        self._forbidden = forbidden
        self._object = msgspec.json.Decoder(kind)
        # From namespace and name to UID and version.
        self._known: dict[tuple[str, str], tuple[str, str]] = {}
        # The version to watch from; None before a list.
        self._version: str | None = None
        self._listed_at: float | None = None
        self.heard_at: float | None = None
        """The time of the last list or watch data, by the clock of the event loop; None before the first list."""
        self._failing = False
        self._failures = client.timing.backoff()
        self._relists = client.timing.backoff()

    @property
    def live(self) -> bool:
        """Whether the list is complete and no failure of the watch is known."""
        return self._version is not None and not self._failing

    @property
    def failing(self) -> bool:
        """Whether the last request for the collection failed."""
        return self._failing

    async def changes(self) -> AsyncGenerator[Put[T] | Gone | Listed, None]:
        """Yield all objects, and then all changes; never ends.

        A later list yields only the differences from the objects yielded before.
        """
        while True:
            try:
                if self._version is None:
                    async with aclosing(self._list()) as listing:
                        async for put_or_gone in listing:
                            yield put_or_gone
                    yield Listed()
                async with aclosing(self._watch(self._version or "")) as watch:
                    async for put_or_gone in watch:
                        yield put_or_gone
            except ClusterError as error:
                await self._wait_out(error)

    async def _list(self) -> AsyncGenerator[Put[T] | Gone, None]:
        """List the collection and yield the differences from the known objects."""
        missing, version = set(self._known), ""
        async with aclosing(pages(self._client, self._path, self._query, self._page_size)) as listing:
            async for page in listing:
                for item in page.items or ():
                    if (metadata := self._identified(item)) is None:
                        continue
                    missing.discard((metadata.namespace, metadata.name))
                    for change in self._put(item, metadata):
                        yield change
                version = page.metadata.resource_version
        for key in missing:
            yield self._gone(key)
        self._version = version
        self._listed_at = self.heard_at = asyncio.get_running_loop().time()

    async def _watch(self, version: str) -> AsyncGenerator[Put[T] | Gone, None]:
        """Yield changes until the server ends the watch."""
        timing = self._client.timing
        query = {
            **self._query,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(timing.watch)),
        }
        started = asyncio.get_running_loop().time()
        lasting = timing.watch + timing.request
        async with aclosing(self._client.lines(self._path, query, lasting, self._accepted)) as lines:
            async for line in lines:
                try:
                    changes = list(self._changes(msgspec.json.decode(line, type=WatchEvent)))
                except UNREADABLE as error:
                    self._version = None
                    message = f"the watch of {self._path} sent what is not valid: {in_words(error)}"
                    raise ClusterError(message, HTTPStatus.OK) from error
                for change in changes:
                    yield change
        # If the server ends every watch at once, there must be a pause between requests.
        if asyncio.get_running_loop().time() - started < timing.first_wait:
            await asyncio.sleep(timing.first_wait)

    def _changes(self, event: WatchEvent) -> Iterator[Put[T] | Gone]:
        """Yield the changes of an event; raises decoding errors, and ClusterError if the watch cannot go on."""
        if event.type == "ERROR":
            self._version = None
            status = msgspec.json.decode(event.object, type=Status)
            raise ClusterError(f"the watch of {self._path} failed: {status.message}", status.code)
        metadata = msgspec.json.decode(event.object, type=Identified).metadata
        key = (metadata.namespace, metadata.name)
        if event.type in {"ADDED", "MODIFIED"}:
            yield from self._put(event.object, metadata)
        elif event.type == "DELETED" and key in self._known:
            yield self._gone(key)
        self._version = metadata.resource_version
        self.heard_at = asyncio.get_running_loop().time()

    def _put(self, item: msgspec.Raw, metadata: Metadata) -> Iterator[Put[T] | Gone]:
        """Yield an object in a new version; after an unreadable version, the former version stays."""
        key = (metadata.namespace, metadata.name)
        known = self._known.get(key)
        if known == (metadata.uid, metadata.resource_version):
            return
        try:
            found = self._object.decode(item)
        except UNREADABLE as error:
            self._ignore("/".join(filter(None, key)), error)
            return
        if known is not None and known[0] != metadata.uid:
            yield self._gone(key)
        self._known[sys.intern(metadata.namespace), metadata.name] = metadata.uid, metadata.resource_version
        yield Put(found)

    def _identified(self, item: msgspec.Raw) -> Metadata | None:
        """Return the metadata of an object, None for unreadable metadata."""
        try:
            return msgspec.json.decode(item, type=Identified).metadata
        except UNREADABLE as error:
            self._ignore("without a name", error)
            return None

    def _ignore(self, label: str, error: Exception) -> None:
        """Log an unreadable object; the other objects must not suffer from the error."""
        _log.error(
            "object_ignored",
            path=self._shown,
            found=label,
            reason=in_words(error),
            consequence="its former version counts",
        )

    def _gone(self, key: tuple[str, str]) -> Gone:
        uid, _ = self._known.pop(key)
        return Gone(uid, *key)

    def _accepted(self) -> None:
        if self._failing:
            _log.info("api_server_recovered", path=self._shown)
        self._failing = False
        self.heard_at = asyncio.get_running_loop().time()
        self._failures.reset()

    async def _wait_out(self, error: ClusterError) -> None:
        """Wait before the next attempt, longer after each failure of the same step.

        The steps are resuming the watch and listing again. The waits before a list are short again if the last list is
        at least `longest_wait` seconds old.
        """
        timing = self._client.timing
        if error.status is not None and 400 <= error.status < 500 and error.status != HTTPStatus.TOO_MANY_REQUESTS:  # noqa: PLR2004 - HTTP's errors of clients
            self._version = None
        if error.status == HTTPStatus.FORBIDDEN:
            self._forbidden()
        if self._version is not None:
            self._failing = True
            await self._client.wait_out(error, self._failures, self._shown, self._consequence)
            return
        if self._listed_at is not None and asyncio.get_running_loop().time() - self._listed_at >= timing.longest_wait:
            self._relists.reset()
        self._listed_at = None
        if error.status == HTTPStatus.GONE and not self._relists.failures:
            # The version has become too old for a watch, which is no failure.
            await asyncio.sleep(self._relists.next() * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            return
        self._failing = True
        await self._client.wait_out(error, self._relists, self._shown, self._consequence)


async def pages(client: Client, path: str, query: Mapping[str, str], size: int = PAGE) -> AsyncGenerator[Page, None]:
    """Yield the objects of a path and a query in pages of `size` objects; raises ClusterError.

    Only one page is in memory at a time: all Nodes of a large cluster would take some hundred MiB.
    """
    token = ""
    while True:
        asked = {**query, "limit": str(size), **({"continue": token} if token else {})}
        page = decoded(await client.request("GET", path, asked), Page, path)
        yield page
        if not (token := page.metadata.continue_):
            return


async def follow_object(
    client: Client, path: str, name: str, consequence: str, forbidden: Callable[[], None] = lambda: None
) -> AsyncGenerator[Object | None, None]:
    """Yield one whole object, None for a missing object, now and again after each change; never ends.

    `consequence` and `forbidden` have the same meaning as in Collection.
    """
    kind: type[dict[str, Any]] = dict
    selector = f"metadata.name={name}"
    following = Collection(client, path, kind, consequence=consequence, selector=selector, forbidden=forbidden)
    started, there = False, False
    async with aclosing(following.changes()) as changes:
        async for change in changes:
            match change:
                case Put(found):
                    there = True
                    yield found
                case Gone():
                    there = False
                    yield None
                case Listed() if not started and not there:
                    yield None
            started = started or isinstance(change, Listed)
