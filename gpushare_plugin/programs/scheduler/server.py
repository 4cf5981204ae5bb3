"""The HTTP server for kube-scheduler: its verbs, at our paths and at Aliyun's, and what Aliyun's tools read."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog
from aiohttp import web

from gpushare_plugin import __version__
from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.text import in_words
from gpushare_plugin.model.resource import OF_THE_SCHEDULER, Calls
from gpushare_plugin.programs.scheduler import aliyun
from gpushare_plugin.programs.scheduler.answers import asks_for_nothing, every_node, filter_nodes, preempt, prioritize
from gpushare_plugin.programs.scheduler.protocol import (
    Arguments,
    BindingArguments,
    BindingResult,
    FilterResult,
    PreemptionArguments,
    ProtocolError,
    decode,
    encode,
)
from gpushare_plugin.programs.scheduler.term import NotLeadingError, Term
from gpushare_plugin.programs.scheduler.tls.certificates import Certificates, RenewedCertificates
from gpushare_plugin.telemetry.address import parse_address

_log = structlog.get_logger()

# aiohttp logs a stack for every malformed request, which any client can send.
_no_log = logging.getLogger(__name__)
_no_log.disabled = True

LARGEST_REQUEST = 128 * 1024 * 1024
"""Bytes of a request: without `nodeCacheCapable` it has every Node whole, some 20 KiB each, and so 5,000 of them."""

LONGEST_REQUEST = 30.0
"""Seconds until the whole of a request must have come; kube-scheduler itself waits 5 s for an answer."""

_REASONS = ("no_room", "unfit", "not_leading", "bind_failed")
"""Why pods are refused: other pods have what they need; no node could ever fit; nobody leads; a binding failed."""
_DEFECT = 500

_TOO_LARGE = (
    f"the request has more than {LARGEST_REQUEST // 2**20} MiB, the most that is taken; set nodeCacheCapable: true for "
    "this extender in the KubeSchedulerConfiguration, so that kube-scheduler sends names instead of whole Nodes"
)


class TooLargeError(GpushareError):
    """A request has more bytes than are taken."""


_Page = Callable[[web.Request], Awaitable[web.Response]]

ALIYUN = "/gpushare-scheduler"
"""The prefix of the paths of Aliyun's extender."""


class ExtenderServer:
    """Answers kube-scheduler from the term of leadership that is now; without one, it says so."""

    def __init__(self, term: Callable[[], Term]) -> None:
        """`term` raises NotLeadingError where there is none."""
        self._term = term
        # By verb and result, and by verb and status: since the start, for metrics.
        self.requests: Counter[tuple[str, str]] = Counter()
        self.calls = Calls(OF_THE_SCHEDULER)
        self.refusals = Counter(dict.fromkeys(_REASONS, 0))
        self._certificates: RenewedCertificates | None = None

    def certificate_end(self) -> float | None:
        """Return when the certificates in use end, in seconds since 1970; None over plain HTTP."""
        return self._certificates.end() if self._certificates else None

    @contextlib.asynccontextmanager
    async def listening(self, address: str, certificates: Certificates | None = None) -> AsyncIterator[int]:
        """Serve while the context lasts, and yield the port; raises GpushareError where that is not possible."""
        host, port = parse_address(address)
        renewed = self._certificates = RenewedCertificates(certificates) if certificates else None
        runner = web.AppRunner(self._application(), access_log=None, logger=_no_log, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port, ssl_context=renewed.context if renewed else None).start()
        except OSError as error:
            await runner.cleanup()
            raise GpushareError(
                f"cannot serve kube-scheduler at {address!r}: {error.strerror or error}; expected an address of this "
                "host with a free port, such as :32766"
            ) from error
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=LARGEST_REQUEST)
        verbs = {"filter": self._filter, "prioritize": self._prioritize, "bind": self._bind, "preempt": self._preempt}
        for prefix in ("", ALIYUN):
            for verb, answer in verbs.items():
                application.router.add_post(f"{prefix}/{verb}", self._counted(verb, _guarded(answer)))
            application.router.add_get(f"{prefix}/inspect", _guarded(self._inspect))
            application.router.add_get(f"{prefix}/inspect/{{node}}", _guarded(self._inspect))
        application.router.add_get("/version", _version)
        return application

    def _counted(self, verb: str, answer: _Page) -> _Page:
        """Count requests by what is answered, and their time."""

        async def counted(request: web.Request) -> web.Response:
            began = time.monotonic()
            response = await answer(request)
            self.requests[verb, _result(response)] += 1
            self.calls.count(verb, str(response.status), time.monotonic() - began)
            return response

        return counted

    async def _filter(self, request: web.Request) -> web.Response:
        asked = decode(await _body(request), Arguments)
        if asks_for_nothing(asked):
            # Other pods must not wait for a leader.
            return _json(every_node(asked))
        try:
            found = filter_nodes(self._term().account, asked)
            if (reason := _why_refused(found)) is not None:
                self.refusals[reason] += 1
            return _json(found)
        except NotLeadingError as error:
            self.refusals["not_leading"] += 1
            # kube-scheduler shows this text with the pod; of an answer that is an error it shows only the status.
            return _json(FilterResult(error=str(error)), _Refusal)

    async def _prioritize(self, request: web.Request) -> web.Response:
        asked = decode(await _body(request), Arguments)
        return _json(prioritize(self._term().account, asked))

    async def _preempt(self, request: web.Request) -> web.Response:
        asked = decode(await _body(request), PreemptionArguments)
        return _json(preempt(self._term().account, asked))

    async def _bind(self, request: web.Request) -> web.Response:
        asked = decode(await _body(request), BindingArguments)
        try:
            await self._term().binder.bind(asked.pod, asked.node)
        except GpushareError as error:
            self.refusals["not_leading" if isinstance(error, NotLeadingError) else "bind_failed"] += 1
            return _json(BindingResult(error=str(error)), _Refusal)
        return _json(BindingResult())

    async def _inspect(self, request: web.Request) -> web.Response:
        account, name = self._term().account, request.match_info.get("node")
        if name is not None and name not in account.nodes():
            return _text(404, f"node {name} not found")
        return _json(aliyun.inspect(account, name))


def _why_refused(found: FilterResult) -> str | None:
    """Return why a pod fits on none of the nodes; None where it fits on one, or there are none."""
    fits = found.node_names or (found.nodes is not None and found.nodes.items)
    if fits or not (found.failed_nodes or found.failed_and_unresolvable_nodes):
        return None
    return "no_room" if found.failed_nodes else "unfit"


async def _body(request: web.Request) -> bytes:
    """Return the body of a request; raises ProtocolError where it does not come, TooLargeError where it is too long."""
    if (request.content_length or 0) > LARGEST_REQUEST:
        raise TooLargeError(_TOO_LARGE)
    try:
        async with asyncio.timeout(LONGEST_REQUEST):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise TooLargeError(_TOO_LARGE) from error
    except TimeoutError as error:
        raise ProtocolError(f"the request was not complete after {LONGEST_REQUEST:g} s") from error


async def _version(request: web.Request) -> web.Response:  # noqa: ARG001 - as every page
    return _text(200, __version__)


def _guarded(answer: _Page) -> _Page:
    """Answer also where `answer` fails, with what kube-scheduler logs."""

    async def guarded(request: web.Request) -> web.Response:
        try:
            return await answer(request)
        except TooLargeError as error:
            answered = _text(413, str(error))
            # What is left of the request is not waited for.
            answered.force_close()
            return answered
        except ProtocolError as error:
            return _text(400, str(error))
        except GpushareError as error:
            return _text(503, str(error))
        except web.HTTPException:
            raise
        except Exception as error:  # noqa: BLE001 - one request that breaks must not take the others down
            _log.exception("extender_request_crashed", path=request.path, remedy="report this as a defect of gpushare")
            return _text(_DEFECT, f"the extender failed: {in_words(error)}")

    return guarded


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")


class _Refusal(web.Response):
    """An answer that is well-formed, and says no."""


def _json(value: object, kind: type[web.Response] = web.Response) -> web.Response:
    return kind(body=encode(value), content_type="application/json")


def _result(response: web.Response) -> str:
    """Return what a request came to, as metrics name it."""
    if response.status == _DEFECT:
        return "failed"
    return "refused" if response.status >= 400 or isinstance(response, _Refusal) else "done"  # noqa: PLR2004 - HTTP's errors
