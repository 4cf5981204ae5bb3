"""Who may see the pages in a cluster: users of the API server, by its reviews of tokens and of rights."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from http import HTTPStatus
from typing import TypeVar

import structlog
from aiohttp import web

from gpushare_plugin.base.recently_used import RecentlyUsed
from gpushare_plugin.base.reported import Repeats
from gpushare_plugin.base.text import visible
from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.kube.reviews import User, may_get, may_list_pods, user_of
from gpushare_plugin.observe.metrics.web import WebCounts
from gpushare_plugin.web.credentials import TrustedProxy, token_of
from gpushare_plugin.web.viewer import Viewer

_log = structlog.get_logger()

T = TypeVar("T")

PAGES = "/gpushare"
"""The path, in rights, of all pages: a non-resource URL that the API server itself does not have."""
LASTING = 60.0
"""Seconds for which the answers of the API server about a user count."""
MOST_VISITORS = 1024
"""The most users that are known at a time; for one more, the user seen longest ago is forgotten."""
MOST_NEWCOMERS = 32
"""The most requests of unknown users that are reviewed at a time."""
MOST_REVIEWS = 16
"""The most requests for reviews under way at a time."""
MOST_NAMESPACES = 256
"""The most namespaces that are asked about for one user; all others are other namespaces."""
_PAUSE = 60.0
"""Seconds between two lines of the log about failed reviews."""

_REVIEW_REMEDY = "grant create of tokenreviews and subjectaccessreviews (the chart does), or look at the API server"
_BUSY = "too many unknown viewers ask at the same time; try again\n"
_UNKNOWN = (
    "not logged in: send a bearer token of the cluster in the header Authorization, or as the password of HTTP Basic "
    "with any user name; the API server does not accept the token that came, if any\n"
)

_Key = bytes | tuple[str, ...]
"""The hash of a token, with a key that only this process has; or the name and the groups from a proxy."""


class _Visitor:
    """A user who may see the pages, and what was asked about the namespaces of the user."""

    def __init__(self, user: User, until: float, *, sees_all: bool) -> None:
        self.user = user
        self.until = until
        self.asked: dict[str, bool] = {}
        self.viewer = Viewer(user.username, None if sees_all else frozenset())


class ReviewedAccess:
    """Lets in users of the API server who may get PAGES; a user sees the pods of namespaces whose pods they may list.

    Nothing is let in while the API server does not answer. The answers count for LASTING seconds.
    """

    def __init__(
        self,
        client: Client,
        namespaces: Callable[[], AbstractSet[str]],
        counts: WebCounts,
        proxy: TrustedProxy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask by `client`; `namespaces` returns the namespaces of the pods that pages show."""
        self._client = client
        self._counts = counts.reviews
        self._proxy = proxy
        self._clock = clock
        self._namespaces = namespaces
        self._secret = secrets.token_bytes(32)
        self._visitors = RecentlyUsed[_Key, _Visitor](MOST_VISITORS)
        self._newcomers = 0
        self._under_way = asyncio.Semaphore(MOST_REVIEWS)
        self._repeats = Repeats(_PAUSE, 1)

    @property
    def visitors(self) -> int:
        """The number of users that are known."""
        return len(self._visitors)

    async def viewer(self, request: web.BaseRequest) -> Viewer | web.Response:
        """Return the user who asks, or a refusal."""
        if (found := self._credentials(request)) is None:
            return _refusal(HTTPStatus.UNAUTHORIZED, _UNKNOWN)
        key, who = found
        try:
            return await self._known(key) or await self._newcomer(key, who)
        except ClusterError as error:
            self._counts.labels("failed").inc()
            kept_back = self._repeats.untold("review", self._clock())
            if kept_back is not None:
                _log.warning("viewer_review_failed", reason=str(error), count=kept_back, remedy=_REVIEW_REMEDY)
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the API server cannot be asked who you are; try again\n")

    def _credentials(self, request: web.BaseRequest) -> tuple[_Key, "_Who"] | None:
        """Return by what the one who asks is known, and how to find out the user; None without credentials."""
        user = self._proxy.user_of(request) if self._proxy else None
        if user is not None:
            return (user.username, *user.groups), lambda: _named(user)
        if (token := token_of(request)) is not None:
            return blake2b(token.encode(), key=self._secret).digest(), lambda: user_of(self._client, token)
        return None

    async def _known(self, key: _Key) -> Viewer | None:
        """Return a user about whom the answers still count."""
        visitor = self._visitors.get(key)
        if visitor is None or visitor.until < self._clock():
            return None
        return await self._with_namespaces(visitor)

    async def _newcomer(self, key: _Key, who: "_Who") -> Viewer | web.Response:
        """Review a user; a user who was known has not to wait where many who were not ask."""
        unknown = key not in self._visitors
        if unknown and self._newcomers >= MOST_NEWCOMERS:
            self._counts.labels("busy").inc()
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, _BUSY)
        self._newcomers += unknown
        try:
            return await self._reviewed(key, who)
        finally:
            self._newcomers -= unknown

    async def _reviewed(self, key: _Key, who: "_Who") -> Viewer | web.Response:
        until = self._clock() + LASTING
        user = await self._review(who())
        if user is None or not await self._review(may_get(self._client, user, PAGES)):
            self._visitors.forget(key)
            self._counts.labels("unknown" if user is None else "forbidden").inc()
            return _refusal(HTTPStatus.UNAUTHORIZED, _UNKNOWN) if user is None else _forbidden(user)
        sees_all = await self._review(may_list_pods(self._client, user))
        self._counts.labels("allowed").inc()
        visitor = self._visitors.put(key, _Visitor(user, until, sees_all=sees_all))
        return await self._with_namespaces(visitor)

    async def _with_namespaces(self, visitor: _Visitor) -> Viewer:
        """Return the viewer, once every namespace that pages show was asked about, as far as there is room."""
        if visitor.viewer.namespaces is None:
            return visitor.viewer
        room = MOST_NAMESPACES - len(visitor.asked)
        new = sorted(self._namespaces() - visitor.asked.keys())[:room]
        if new:
            answers = await self._may_list(visitor.user, new)
            visitor.asked.update(answers)
            allowed = frozenset(name for name, allowed in visitor.asked.items() if allowed)
            visitor.viewer = Viewer(visitor.user.username, allowed)
        return visitor.viewer

    async def _may_list(self, user: User, namespaces: list[str]) -> dict[str, bool]:
        asked: dict[str, asyncio.Task[bool]] = {}
        try:
            async with asyncio.TaskGroup() as group:
                for name in namespaces:
                    asked[name] = group.create_task(self._review(may_list_pods(self._client, user, name)))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return {name: task.result() for name, task in asked.items()}

    async def _review(self, asking: Awaitable[T]) -> T:
        async with self._under_way:
            return await asking


_Who = Callable[[], Awaitable[User | None]]
"""Finds out who a user is; None for nobody."""


async def _named(user: User) -> User:
    return user


def _forbidden(user: User) -> web.Response:
    remedy = f"it takes the right to get the non-resource URL {PAGES}, which a ClusterRole of the chart has"
    return _refusal(HTTPStatus.FORBIDDEN, f"{visible(user.username)} may not see these pages: {remedy}\n")


def _refusal(status: HTTPStatus, text: str) -> web.Response:
    """Return an answer that ends the connection, so that strangers keep none."""
    answer = web.Response(status=status, text=text)
    if status == HTTPStatus.UNAUTHORIZED:
        # Browsers ask for a password because of the first, and programs read the second.
        answer.headers.add("WWW-Authenticate", 'Basic realm="gpushare", charset="UTF-8"')
        answer.headers.add("WWW-Authenticate", 'Bearer realm="gpushare"')
    elif status == HTTPStatus.SERVICE_UNAVAILABLE:
        answer.headers["Retry-After"] = "5"
    answer.force_close()
    return answer
