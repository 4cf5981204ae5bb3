"""The HTTP server: kube-scheduler's verbs at the paths of gpushare and of Aliyun, and pages for Aliyun's tools."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

import structlog
from aiohttp import web

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.text import in_words, visible
from gpushare_plugin.base.version import __version__
from gpushare_plugin.extender.aliyun.inspection import inspect
from gpushare_plugin.extender.answers import (
    asks_for_nothing,
    every_node,
    filter_nodes,
    preempt,
    prioritize,
    prioritize_others,
)
from gpushare_plugin.extender.bodies import Bodies, RefusedRequestError
from gpushare_plugin.extender.protocol import (
    Arguments,
    BindingArguments,
    BindingResult,
    FilterResult,
    PreemptionArguments,
    ProtocolError,
    decode,
    encode,
)
from gpushare_plugin.extender.term import LeaderTerm, NotLeadingError
from gpushare_plugin.observe.http.certificates import Certificates, RenewedCertificates
from gpushare_plugin.observe.http.connections import ConnectionLimits, Page, listening
from gpushare_plugin.observe.metrics.extender import ExtenderCounts

_log = structlog.get_logger()

_LIMITS = ConnectionLimits(head=10.0, answer=60.0, idle=120.0)
"""Seconds of a connection.

Idle connections stay longer than the 90 s for which kube-scheduler keeps its connections: kube-scheduler would not
repeat a request sent while the server closes the connection.
"""


_JSON = "application/json"

ALIYUN = "/gpushare-scheduler"
"""The prefix of the paths of Aliyun's extender."""


class ExtenderServer:
    """Answers kube-scheduler from the current term of leadership, or with the reason why no term exists."""

    def __init__(self, term: Callable[[], LeaderTerm], *, exact: bool = False) -> None:
        """Take the current term from `term`, which raises NotLeadingError without a term.

        With `exact`, `filter` leaves only the nodes where a pod loses least by the policy `packing`.
        """
        self._term = term
        self._exact = exact
        self._bodies = Bodies()
        self._preempting = asyncio.Lock()
        self.counts = ExtenderCounts()
        """The counted requests, refusals and durations for metrics."""
        self._certificates: RenewedCertificates | None = None
        verbs = {
            "filter": self._filter,
            "prioritize": self._prioritize,
            "prioritize-others": self._prioritize_others,
            "bind": self._bind,
            "preempt": self._preempt,
        }
        self._verbs = {verb: self._counted(verb, _guarded(answer)) for verb, answer in verbs.items()}

    def certificate_end(self) -> float | None:
        """Return the end of the certificates in use, in seconds since 1970; None over plain HTTP, or if not known."""
        return self._certificates.end() if self._certificates else None

    @contextlib.asynccontextmanager
    async def listening(self, address: str, certificates: Certificates | None = None) -> AsyncIterator[int]:
        """Serve while the context lasts, and yield the port; raises GpushareError for a bad address or certificate."""
        renewed = self._certificates = RenewedCertificates(certificates) if certificates else None
        tls = renewed.context if renewed else None
        async with listening(address, self._answer, _LIMITS, tls) as port:
            yield port

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        method, page = self._page(request.path)
        if page is None:
            return _text(HTTPStatus.NOT_FOUND, "not found")
        if request.method != method and (method, request.method) != ("GET", "HEAD"):
            refused = _text(HTTPStatus.METHOD_NOT_ALLOWED, f"allowed method: {method}")
            refused.headers["Allow"] = method
            return refused
        return await page(request)

    def _page(self, path: str) -> tuple[str, Page | None]:
        """Return the method of a page and the function that answers, or None without a page at the path."""
        name = path.removeprefix(ALIYUN).removeprefix("/")
        if name in self._verbs:
            return "POST", self._verbs[name]
        if name == "inspect" or name.startswith("inspect/"):
            return "GET", _uncounted(_guarded(partial(self._inspect, name.partition("/")[2])))
        return "GET", _version if name == "version" else None

    def _counted(self, verb: str, answer: "_Verb") -> Page:
        """Return a page that counts requests by result, and measures the time of each request."""

        async def counted(request: web.BaseRequest) -> web.StreamResponse:
            began = time.monotonic()
            response, result = await answer(request)
            self.counts.requests.labels(verb, result).inc()
            self.counts.durations.labels(verb, str(response.status)).observe(time.monotonic() - began)
            return response

        return counted

    async def _filter(self, request: web.BaseRequest) -> "_Answer":
        async with self._bodies.of(request) as body:
            asked = decode(body, Arguments)
            if asks_for_nothing(asked):
                # Pods without extended resources must not wait for a leader.
                return _Answer(_json(every_node(asked)))
            try:
                term = self._term()
                found = filter_nodes(term.account, asked, term.learning, exact=self._exact)
                if (reason := _why_refused(found)) is not None:
                    self.counts.refusals.labels(reason).inc()
                return _Answer(_json(found))
            except NotLeadingError as error:
                self.counts.refusals.labels("not_leading").inc()
                # kube-scheduler shows this text with the pod; for an HTTP error kube-scheduler shows the status only.
                return _Answer(_json(FilterResult(error=visible(str(error)))), "refused")

    async def _prioritize(self, request: web.BaseRequest) -> "_Answer":
        async with self._bodies.of(request) as body:
            term = self._term()
            return _Answer(_json(prioritize(term.account, decode(body, Arguments), term.packed)))

    async def _prioritize_others(self, request: web.BaseRequest) -> "_Answer":
        async with self._bodies.of(request) as body:
            term = self._term()
            return _Answer(_json(prioritize_others(term.account, decode(body, Arguments), term.packed)))

    async def _preempt(self, request: web.BaseRequest) -> "_Answer":
        # A single preemption at a time, to bound decoded requests; `preempt` pauses between nodes for waiting requests.
        async with self._bodies.held(request) as body, self._preempting:
            async with self._bodies.turn():
                asked = decode(body, PreemptionArguments)
            term = self._term()
            return _Answer(_json(await preempt(term.account, term.disruptions, asked)))

    async def _bind(self, request: web.BaseRequest) -> "_Answer":
        async with self._bodies.of(request) as body:
            asked = decode(body, BindingArguments)
        try:
            await self._term().binder.bind(asked.pod, asked.node)
        except GpushareError as error:
            self.counts.refusals.labels("not_leading" if isinstance(error, NotLeadingError) else "bind_failed").inc()
            return _Answer(_json(BindingResult(error=visible(str(error)))), "refused")
        return _Answer(_json(BindingResult()))

    async def _inspect(self, node: str, request: web.BaseRequest) -> "_Answer":
        async with self._bodies.of(request):
            account = self._term().account
            if node and node not in account.nodes:
                return _Answer(_text(HTTPStatus.NOT_FOUND, f"node {node} not found"), "refused")
            body = encode(inspect(account, node or None))
        return _Answer(await self._bodies.send(request, body, _JSON))


def _why_refused(found: FilterResult) -> str | None:
    """Return why a pod fits on no node, as a metric's label; None if a node fits, or the request has no nodes."""
    fits = found.node_names or (found.nodes is not None and found.nodes.items)
    if fits or not (found.failed_nodes or found.failed_and_unresolvable_nodes):
        return None
    return "no_room" if found.failed_nodes else "unfit"


async def _version(request: web.BaseRequest) -> web.Response:  # noqa: ARG001 - the parameter of every page
    return _text(200, __version__)


class _Answer(NamedTuple):
    """An answer to a request."""

    response: web.StreamResponse
    """The response to the client."""
    result: str = "done"
    """The result in metrics: done, refused (with a reason) or failed (a defect)."""


_Verb = Callable[[web.BaseRequest], Awaitable[_Answer]]


def _guarded(answer: _Verb) -> _Verb:
    """Return a function that also answers when `answer` raises, with an HTTP error for kube-scheduler's log."""

    async def guarded(request: web.BaseRequest) -> _Answer:
        try:
            return await answer(request)
        except RefusedRequestError as error:
            response = _text(error.status, str(error))
            # The rest of the request is not read.
            response.force_close()
            return _Answer(response, "refused")
        except ProtocolError as error:
            return _Answer(_text(400, str(error)), "refused")
        except GpushareError as error:
            return _Answer(_text(503, str(error)), "refused")
        except Exception as error:  # noqa: BLE001 - a defect in a request must not end the server
            _log.exception("extender_request_crashed", path=request.path, remedy="report this as a defect of gpushare")
            return _Answer(_text(500, f"the extender failed: {in_words(error)}"), "failed")

    return guarded


def _uncounted(answer: _Verb) -> Page:
    async def uncounted(request: web.BaseRequest) -> web.StreamResponse:
        return (await answer(request)).response

    return uncounted


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{visible(text)}\n")


def _json(value: object) -> web.Response:
    return web.Response(body=encode(value), content_type=_JSON)
