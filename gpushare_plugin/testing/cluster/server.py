"""The API server itself: requests, watches, refusals and whatever else can go wrong with one."""

import asyncio
import json
import socket
import ssl
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from aiohttp import web

from gpushare_plugin.testing.cluster.dra.strategy import DraObjects
from gpushare_plugin.testing.cluster.people import People
from gpushare_plugin.testing.cluster.pod_proxy import proxied
from gpushare_plugin.testing.cluster.rbac import Permission
from gpushare_plugin.testing.cluster.store.errors import NotFoundError
from gpushare_plugin.testing.cluster.store.objects import Store
from gpushare_plugin.testing.cluster.store.place import Place
from gpushare_plugin.testing.cluster.store.selectors import Selector
from gpushare_plugin.testing.cluster.verbs import LARGEST_REQUEST, Verbs, status, verb_of
from gpushare_plugin.testing.cluster.watches import Watches, problem_of
from gpushare_plugin.testing.running import Running

_TOKEN = "the token of the service account"  # noqa: S105 - good for this double alone


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: what RBAC judges it by, and the status of the answer."""

    verb: str
    resource: str
    namespace: str | None
    name: str | None
    status: int
    group: str = ""


@dataclass(slots=True)
class Refusal:
    """What is answered instead of an answer, to the next `times` requests of one verb, resource and name, or of any.

    With `carried_out`, what was asked is done nevertheless. Status 0 is no answer: the connection breaks.
    """

    status: int
    verb: str | None = None
    times: float = float("inf")
    headers: dict[str, str] = field(default_factory=dict)
    resource: str | None = None
    carried_out: bool = False
    name: str | None = None

    def takes(self, asked: Asked) -> bool:
        """Return whether this is the answer to a request, which counts."""
        fits = self.verb in {None, asked.verb} and self.resource in {None, asked.resource}
        fits = fits and self.name in {None, asked.name} and self.times > 0
        self.times -= fits
        return fits


class ApiServer(Running):
    """An API server, with the rights of one service account.

    `permissions` are what is allowed, None for everything. `begun` are all requests so far, `asked` those that were
    answered; `used` the permissions they needed. `refusals`, `silent` (no answer), `late` (seconds by which requests
    for a resource such as `pods/binding` are answered late), `held` (resources for which nothing is done, and no answer
    given), `delayed` (events before which requests for a resource are not carried out, and not at all once the
    `timeout` that they name has passed) and what `watches` has make it misbehave. In namespaces that are `terminating`
    nothing is created. `tls` is what it proves who it is with, from the next start on, None for plain HTTP. With
    `anonymous`, requests without a token are answered, too. `dra` has the feature gates for `resource.k8s.io`,
    `people` the users whose tokens and rights can be reviewed.
    """

    def __init__(self, permissions: Collection[Permission] | None = None, store: Store | None = None) -> None:
        """Listen once the context is entered; several servers can have one `store`."""
        self.store = store or Store()
        self.watches = Watches(self.store)
        self.permissions = permissions
        self.begun: list[Asked] = []
        self.asked: list[Asked] = []
        self.used: set[Permission] = set()
        self.refusals: list[Refusal] = []
        self.silent = False
        self.anonymous = False
        self.late: dict[str, float] = {}
        self.held: set[str] = set()
        self.delayed: dict[str, asyncio.Event] = {}
        self.terminating: set[str] = set()
        self.tls: ssl.SSLContext | None = None
        self.port = 0
        self._port_held: socket.socket | None = None
        self._listener: socket.socket
        self._runner: web.AppRunner | None = None
        self.dra = DraObjects(self.store, self._permitted)
        self.people = People()
        self._verbs = Verbs(self.store, self.dra, self.people)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and give the port back."""
        await super().__aexit__(kind, error, trace)
        if self._port_held is not None:
            self._port_held.close()

    async def start(self) -> None:
        """Listen on the loopback interface, after a stop at the same port as before."""
        self.watches.stopped.clear()
        if self._port_held is None:
            self._port_held = _held_port()
            self.port = self._port_held.getsockname()[1]
        application = web.Application(client_max_size=LARGEST_REQUEST)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        await web.SockSite(self._runner, self._listener, ssl_context=self.tls).start()

    async def stop(self) -> None:
        """Cut every connection and take no more; objects stay."""
        self.watches.stopped.set()
        if self._runner is not None:
            # A connection that was just accepted begins two turns of the event loop later; asyncio and aiohttp would
            # leave it open if the server had been closed by then.
            asyncio.get_running_loop().remove_reader(self._listener)
            for _ in range(2):
                await asyncio.sleep(0)
            await self._runner.cleanup()
            self._runner = None

    def kubeconfig(self, file: Path, authorities: Path | None = None) -> Path:
        """Write a kubeconfig for this server, with the authority that signed its certificate."""
        cluster = {"server": f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"}
        if authorities is not None:
            cluster["certificate-authority"] = str(authorities)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": _TOKEN}}],
        }
        file.write_text(json.dumps(config))
        return file

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if not self._authenticated(request):
            return status(401, "Unauthorized", reason="Unauthorized")
        try:
            place = Place.parse(request.rel_url.raw_path)
            name = place.name or Selector.of(request.query).name
        except NotFoundError as error:
            return status(error.code, str(error), reason=error.reason)
        except ValueError as error:
            return status(400, str(error), reason="BadRequest")
        verb = verb_of(request, place)
        resource = place.collection.resource + (f"/{place.subresource}" if place.subresource else "")
        asked = Asked(verb, resource, place.collection.namespace, name, 0, place.collection.group)
        self.begun.append(asked)
        if resource in self.held:
            await self.watches.stopped.wait()
            return status(503, "stopped")
        if self.silent:
            await self.watches.stopped.wait()
        response = await self._answer_in_time(request, asked, place)
        self.asked.append(replace(asked, status=response.status))
        if verb == "watch" and response.status == 200:  # noqa: PLR2004 - a stream begins
            await self.watches.stream(request, response, place.collection)
        return response

    async def _answer_in_time(self, request: web.Request, asked: Asked, place: Place) -> web.StreamResponse:
        """Answer once the request may be carried out, unless it has taken longer than its `timeout` permits by then.

        A watch lasts whatever its `timeout` says, as at a real API server.
        """
        permitted = None if asked.verb == "watch" else request.query.get("timeout")
        try:
            async with asyncio.timeout(None if permitted is None else float(permitted.removesuffix("ms")) / 1000):
                if asked.resource in self.delayed:
                    await self.delayed[asked.resource].wait()
        except TimeoutError:
            return status(504, "the server was unable to return a response in the time allotted", reason="Timeout")
        return await self._answer(request, asked, place)

    async def _answer(self, request: web.Request, asked: Asked, place: Place) -> web.StreamResponse:
        refusal = next((each for each in self.refusals if each.takes(asked)), None)
        if refusal is not None and not refusal.carried_out:
            return _refused(request, refusal)
        if not self._allowed(asked):
            where = f'"{asked.resource}" of {asked.name} in the namespace "{asked.namespace}"'
            return status(403, f"cannot {asked.verb} resource {where}", reason="Forbidden")
        if asked.verb == "create" and asked.namespace in self.terminating:
            # As the admission plugin NamespaceLifecycle does.
            why = f"unable to create new content in namespace {asked.namespace} because it is being terminated"
            return status(403, f"{asked.resource} is forbidden: {why}", reason="Forbidden")
        if asked.verb == "watch":
            if problem := problem_of(request.query):
                return status(422, problem, reason="Invalid")
            stream = web.StreamResponse(headers={"Content-Type": "application/json"})
            await stream.prepare(request)
            return stream
        response: web.StreamResponse
        if asked.resource == "pods/proxy":
            response = await proxied(request, self.store, place)
        else:
            response = await self._verbs.answer(request, asked.verb, place)
        if delay := self.late.get(asked.resource):
            await asyncio.sleep(delay)
        return response if refusal is None else _refused(request, refusal)

    def _authenticated(self, request: web.Request) -> bool:
        # The case of the scheme does not matter, as to a real API server (k8s.io/apiserver, bearertoken.go).
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return (scheme.lower(), token) == ("bearer", _TOKEN) or (not scheme and self.anonymous)

    def _allowed(self, asked: Asked) -> bool:
        return self._permitted(asked.verb, asked.resource, asked.namespace, asked.name, asked.group)

    def _permitted(self, verb: str, resource: str, namespace: str | None, name: str | None, group: str) -> bool:
        if self.permissions is None:
            return True
        needed = {each for each in self.permissions if each.allows(verb, resource, namespace, name, group)}
        self.used |= needed
        return bool(needed)


def _held_port() -> socket.socket:
    """Return a socket that keeps a port for us while nobody listens: the kernel gives it to nobody else meanwhile."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def _refused(request: web.Request, refusal: Refusal) -> web.Response:
    if refusal.status:
        return status(refusal.status, f"refused with {refusal.status} as configured", refusal.headers)
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=499)  # reaches nobody
