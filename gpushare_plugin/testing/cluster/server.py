"""The API server itself: requests, watches, refusals and whatever else can go wrong with one."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from gpushare_plugin.testing.cluster.objects import ConflictError, InvalidError, Store
from gpushare_plugin.testing.cluster.rbac import Permission

_TOKEN = "the token of the service account"  # noqa: S105 - good for this double alone
_LARGEST_REQUEST = 3 * 1024 * 1024
"""Bytes of a request's body (apiserver: MaxRequestBodyBytes)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: what RBAC judges it by, and the status of the answer."""

    verb: str
    resource: str
    namespace: str | None
    name: str | None
    status: int


@dataclass(slots=True)
class Refusal:
    """What is answered instead of an answer, to the next `times` requests of one verb, or of any."""

    status: int
    verb: str | None = None
    times: float = float("inf")
    headers: dict[str, str] = field(default_factory=dict)


class ApiServer:
    """An API server for core objects, with the rights of one service account.

    `permissions` are what is allowed, None for everything. `asked` are all requests so far; `used` the permissions they
    needed. `refusals`, `silent` and `endless` (watches never end) make it misbehave. `tls` is what it proves who it is
    with, from the next start on, None for plain HTTP.
    """

    def __init__(self, permissions: Collection[Permission] | None = None) -> None:
        """Listen once the context is entered."""
        self.store = Store()
        self.permissions = permissions
        self.asked: list[Asked] = []
        self.used: set[Permission] = set()
        self.refusals: list[Refusal] = []
        self.silent = False
        self.endless = False
        self.tls: ssl.SSLContext | None = None
        self.port = 0
        self._runner: web.AppRunner | None = None
        self._stopped = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await self.stop()

    async def start(self) -> None:
        """Listen on the loopback interface, after a stop at the same port as before."""
        self._stopped.clear()
        application = web.Application(client_max_size=_LARGEST_REQUEST)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True, ssl_context=self.tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Cut every connection and take no more; objects stay."""
        self._stopped.set()
        if self._runner is not None:
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
        parts = request.path.strip("/").split("/")[2:]
        namespace = parts[1] if parts[0] == "namespaces" else None
        resource, name, subresource = (*parts[2 if namespace else 0 :], "", "")[:3]
        selected = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        verb = _verb(request, name)
        target = f"{resource}/{subresource}" if subresource else resource
        response = await self._answer(request, verb, target, namespace, name or selected or None)
        self.asked.append(Asked(verb, target, namespace, name or selected or None, response.status))
        if verb == "watch" and response.status == 200:  # noqa: PLR2004 - a stream begins
            await self._stream(request, response, selected)
        return response

    async def _answer(
        self, request: web.Request, verb: str, resource: str, namespace: str | None, name: str | None
    ) -> web.StreamResponse:
        if self.silent:
            await self._stopped.wait()
        if (refused := self._refused(request, verb, resource, namespace, name)) is not None:
            return refused
        match verb:
            case "watch":
                stream = web.StreamResponse()
                await stream.prepare(request)
                return stream
            case "list":
                items = self.store.find(request.path, name)
                version = {"resourceVersion": str(self.store.version.value)}
                return web.json_response({"kind": "List", "metadata": version, "items": items})
            case "patch":
                return await self._apply(request, name or "")
            case _:
                return _status(405, f"{verb} is not served here")

    def _refused(
        self, request: web.Request, verb: str, resource: str, namespace: str | None, name: str | None
    ) -> web.Response | None:
        if request.headers.get("Authorization") != f"Bearer {_TOKEN}":
            return _status(401, "Unauthorized")
        for refusal in self.refusals:
            if refusal.times > 0 and refusal.verb in {None, verb}:
                refusal.times -= 1
                return _status(refusal.status, f"refused with {refusal.status} as configured", refusal.headers)
        if not self._allowed(verb, resource, namespace, name):
            return _status(403, f'cannot {verb} resource "{resource}" of {name} in the namespace "{namespace}"')
        return None

    def _allowed(self, verb: str, resource: str, namespace: str | None, name: str | None) -> bool:
        if self.permissions is None:
            return True
        needed = {each for each in self.permissions if each.allows(verb, resource, namespace, name)}
        self.used |= needed
        return bool(needed)

    async def _apply(self, request: web.Request, name: str) -> web.Response:
        if request.content_type != "application/apply-patch+yaml":
            return _status(415, f"only server-side apply is served here, found {request.content_type}")
        path, _, subresource = request.path.partition(f"/{name}")
        manager, force = request.query["fieldManager"], request.query.get("force") == "true"
        try:
            body = json.loads(await request.text())
        except web.HTTPRequestEntityTooLarge:
            return _status(413, f"Request entity too large: limit is {_LARGEST_REQUEST}")
        try:
            return web.json_response(self.store.apply(path, subresource.strip("/"), manager, body, force=force))
        except KeyError:
            return _status(403, "apply would create the object, which is not allowed")
        except ConflictError as error:
            return _status(409, str(error))
        except InvalidError as error:
            return _status(422, str(error))

    async def _stream(self, request: web.Request, stream: web.StreamResponse, name: str) -> None:
        """Send changes until the client asked to end, the client goes, or this server stops."""
        version = int(request.query["resourceVersion"])
        stopped = asyncio.create_task(self._stopped.wait())
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(None if self.endless else int(request.query["timeoutSeconds"])):
                while not stopped.done():
                    news = asyncio.create_task(self.store.version.replaced.wait())
                    if version < self.store.oldest:
                        await _send(stream, "ERROR", {"code": 410, "message": f"too old resource version: {version}"})
                        return
                    for change in self.store.since(version, request.path, name or None):
                        await _send(stream, change.kind, change.found)
                        version = change.version
                    await asyncio.wait([news, stopped], return_when=asyncio.FIRST_COMPLETED)
                    news.cancel()
        stopped.cancel()


def _verb(request: web.Request, name: str) -> str:
    if request.method != "GET":
        return request.method.lower()
    if name:
        return "get"
    return "watch" if request.query.get("watch") == "true" else "list"


def _status(code: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": code, "message": message}
    return web.json_response(body, status=code, headers=headers)


async def _send(stream: web.StreamResponse, kind: str, found: dict[str, Any]) -> None:
    await stream.write(json.dumps({"type": kind, "object": found}).encode() + b"\n")
