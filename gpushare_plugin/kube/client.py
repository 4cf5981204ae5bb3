"""The only access to the API server: list, watch and apply, with timeouts, in plain JSON objects.

gpushare uses only the plumbing of the `kubernetes` package: server address, credentials and requests. The generated API
of the package has a class for every kind, takes seconds to import, and needs twice the memory.
"""

import asyncio
import contextlib
import ipaddress
import json
import os
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
import structlog
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import load_kube_config

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.text import in_words

_log = structlog.get_logger()

T = TypeVar("T")

Object = Mapping[str, Any]
"""An object of the API, decoded from JSON."""

NODES = "/api/v1/nodes"
"""The path of all Nodes."""
PODS = "/api/v1/pods"
"""The path of all Pods."""

LONGEST_WAIT = 300.0
"""Longest wait at the server's request, in seconds: a longer requested wait is shortened."""

LONGEST_LINE = 16 * 1024 * 1024
"""Largest size of a line, in bytes; the API server takes objects of up to 3 MiB (apiserver: MaxRequestBodyBytes)."""

_LONGEST_FAILURE = 256 * 1024
"""Bytes of an answer with an error status that are read: a pod behind the API server can send such an answer, too."""

_NO_LIMIT = aiohttp.ClientTimeout(total=None)
"""No time limit of aiohttp (3.14): its limit takes back a cancellation in the same turn of the event loop."""


def configmaps(namespace: str) -> str:
    """Return the path of the ConfigMaps of a namespace."""
    return f"/api/v1/namespaces/{namespace}/configmaps"


class ClusterError(GpushareError):
    """A request to the API server failed; the message names the request and the reason."""

    def __init__(
        self, message: str, status: int | None = None, retry_after: float | None = None, *, sent: bool = True
    ) -> None:
        """Keep the answer of the server."""
        super().__init__(message)
        self.status = status
        """The HTTP status, None without an answer."""
        self.retry_after = retry_after
        """The seconds to wait that the server requests, None if the server requests no wait."""
        self.sent = sent
        """Whether the request may have reached the server."""

    @property
    def is_outage(self) -> bool:
        """Whether the answer is missing or names a fault of the server, so the request itself may be right."""
        return self.status is None or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR

    @property
    def lacks_right(self) -> bool:
        """Whether RBAC forbids the request: "User … cannot create resource …" (k8s.io/apiserver, ForbiddenMessage).

        Any other 403 concerns the object or its namespace: a terminating namespace, a quota, or a webhook.
        """
        return self.status == HTTPStatus.FORBIDDEN and "cannot " in str(self)


ERROR_KINDS = ("unanswered", "forbidden", "conflict", "throttled", "rejected", "server")
"""The kinds of errors that a client counts: no answer; 401 and 403; 409; 429; the remaining 4xx; 5xx."""

_KINDS = {401: "forbidden", 403: "forbidden", 409: "conflict", 429: "throttled"}


@dataclass(frozen=True, slots=True)
class Timing:
    """The time limits and waits of a client, in seconds."""

    request: float = 15.0
    """The time limit for the answer to a request."""
    watch: float = 240.0
    """The length of a watch."""
    quiet: float = 70.0
    """The longest time without data of a watch; the next watch notices a dead connection.

    kube-apiserver sends a bookmark about every minute (kubernetes 1.34, apiserver/pkg/storage/cacher/cacher.go,
    defaultBookmarkFrequency), so that a watch without changes lasts.
    """
    first_wait: float = 1.0
    """The wait after the first failed attempt; the wait doubles with each further failure."""
    longest_wait: float = 60.0
    """The longest wait between two attempts, unless the server requests more."""
    longest_outage: float = 10.0
    """The longest wait while the server is silent or faulty, equal to the interval of the kubelet's Node reports."""

    def backoff(self) -> Backoff:
        """Return a new count of failures, with the waits of this timing."""
        return Backoff(first=self.first_wait, most=self.longest_wait)


class Client:
    """A client of the API server in a kubeconfig, or, without a kubeconfig, of the cluster of this pod."""

    def __init__(
        self,
        kubeconfig: Path | None = None,
        timing: Timing | None = None,
        *,
        context: str | None = None,
        redirected: bool = True,
    ) -> None:
        """Connect later, with the first request; `context` names a context of `kubeconfig`, None the current one.

        Without `redirected`, an answer that leads elsewhere is an error: a pod that the API server asks for an answer
        can lead a client anywhere.
        """
        self.timing = timing or Timing()
        """The time limits and waits."""
        self._kubeconfig = kubeconfig
        self._context = context
        self._redirected = redirected
        self._namespace = ""
        self._api: ApiClient | None = None
        self._connecting = asyncio.Lock()
        self.errors = Counter(dict.fromkeys(ERROR_KINDS, 0))
        """The number of failed requests, by kind."""

    async def __aenter__(self) -> Self:
        """Return the client, which closes at the end of the context."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        if self._api is not None:
            await self._api.close()  # type: ignore[no-untyped-call]

    @property
    def in_pod(self) -> bool:
        """Whether the credentials are those of the service account of this pod, not of a kubeconfig."""
        return self._kubeconfig is None

    async def configure(self) -> None:
        """Read the address of the API server and the credentials; raises ClusterError if they cannot be read.

        A client without this call reads them with its first request, and raises the same error.
        """
        await self._connected()

    async def namespace(self) -> str:
        """Return the namespace of the context, for people who name no namespace; raises ClusterError."""
        await self._connected()
        return self._namespace or "default"

    async def list(self, path: str, name: str | None = None) -> tuple[list[Object], str]:
        """Return the objects of `path`, or only the object with this name, and the version to start a watch from."""
        found = decoded(await self._answered("GET", path, named(name)), dict[str, Any], path)
        return found.get("items") or [], found.get("metadata", {}).get("resourceVersion", "")

    async def apply(self, path: str, manager: str, body: Object) -> None:
        """Apply `body` as the field manager `manager`, by server-side apply.

        Fields applied by this manager before and missing from `body` now are removed, unless another manager also owns
        them.
        """
        query = {"fieldManager": manager, "force": "true"}
        await self._answered("PATCH", path, query, body, "application/apply-patch+yaml")

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Return the body of the answer; raises ClusterError."""
        return await self._answered(method, path, query or {}, body, content_type if body else "")

    async def page(self, path: str, most: int) -> bytes:
        """Return the body of an answer, of `most` bytes at most; raises ClusterError, also for a longer one."""
        api = await self._connected()
        async with self._in_time("GET", path):
            response = await self._request(api, "GET", path, {})
            try:
                found = await read_within(response, most)
            except (aiohttp.ClientError, OSError) as error:
                raise ClusterError(f"the answer to GET {path} is not valid: {in_words(error)}") from error
        if found is None:
            raise ClusterError(f"the answer to GET {path} has more than {most} bytes", HTTPStatus.OK)
        return found

    async def lines(
        self, path: str, query: Mapping[str, str], lasting: float, accepted: Callable[[], None]
    ) -> AsyncGenerator[bytes, None]:
        """Yield each line of an answer for at most `lasting` seconds; a line may have up to `LONGEST_LINE` bytes.

        Also ends where no data comes for as long as the timing says.
        `accepted` is called when the server begins to answer. An unfinished last line is dropped. Raises ClusterError,
        also when the connection breaks or a line is too long.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + lasting
        api = await self._connected()
        async with self._in_time("GET", path, min(self.timing.request, self.timing.quiet)):
            response = await self._request(api, "GET", path, query)
        accepted()
        try:
            # The line reader of aiohttp takes lines of up to 128 KiB; an object with its annotations can be larger.
            begun = bytearray()
            while chunk := await _before(min(deadline, clock() + self.timing.quiet), response.content.readany()):
                *finished, rest = chunk.split(b"\n")
                for end in finished:
                    yield bytes(begun) + end
                    begun.clear()
                begun += rest
                if len(begun) > LONGEST_LINE:
                    raise ClusterError(f"GET {path}: a line has more than {LONGEST_LINE} bytes", HTTPStatus.OK)
        except TimeoutError:
            return  # the server did not end the answer in time, or is silent
        except (aiohttp.ClientError, OSError) as error:
            raise ClusterError(f"GET {path}: the connection broke: {in_words(error)}") from error
        finally:
            response.close()

    async def wait_out(self, error: ClusterError, backoff: Backoff, path: str, consequence: str) -> None:
        """Log a failure and wait before the next attempt: longer each time, and at least as the server requests.

        Failures during an outage do not lengthen the waits after the outage: a server that has just started forbids
        everything until it knows the RBAC rights.
        """
        longer = min(backoff.next("outage"), self.timing.longest_outage) if error.is_outage else backoff.next()
        # Many nodes lose the server at the same moment; random waits spread their return.
        requested = min(error.retry_after or 0.0, LONGEST_WAIT)
        wait = max(longer * random.uniform(0.5, 1.0), requested)  # noqa: S311 - no secret
        _log.warning(
            "api_request_failed",
            path=path,
            reason=str(error),
            consequence=consequence,
            retry_seconds=round(wait, 1),
        )
        await asyncio.sleep(wait)

    async def _answered(
        self, method: str, path: str, query: Mapping[str, str], body: Object | None = None, content_type: str = ""
    ) -> bytes:
        api = await self._connected()
        async with self._in_time(method, path):
            response = await self._request(api, method, path, query, body, content_type)
            try:
                return await response.read()
            except (aiohttp.ClientError, OSError) as error:
                self.errors["unanswered"] += 1
                raise ClusterError(f"the answer to {method} {path} is not valid: {in_words(error)}") from error

    async def _request(  # noqa: PLR0913, PLR0917 - the parts of a request
        self,
        api: ApiClient,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Object | None = None,
        content_type: str = "",
    ) -> aiohttp.ClientResponse:
        """Return the response if its status is no error; raises ClusterError for an error status or a failure."""
        headers = {"Accept": "application/json", **({"Content-Type": content_type} if content_type else {})}
        try:
            request = await api.param_serialize(
                method, path, None, list(query.items()), headers, body, auth_settings=["BearerToken"]
            )
            answer = await api.call_api(*request, _request_timeout=_NO_LIMIT)
        except (aiohttp.ClientError, OSError, ConfigException) as error:
            if isinstance(error, aiohttp.ClientConnectorCertificateError):
                _reload_authorities(api)
            self.errors["unanswered"] += 1
            sent = not isinstance(error, (aiohttp.ClientConnectorError, ConfigException))
            raise ClusterError(f"{method} {path}: the API server cannot be reached: {error}", sent=sent) from error
        response: aiohttp.ClientResponse = answer.response
        if response.status >= 400:  # noqa: PLR2004 - HTTP's errors
            self.errors[_kind(response.status)] += 1
            raise await _failure(method, path, response)
        return response

    @contextlib.asynccontextmanager
    async def _in_time(self, method: str, path: str, most: float | None = None) -> AsyncGenerator[None, None]:
        """Limit the time of a request to `most` seconds, or to those of the timing; raises ClusterError."""
        limit = self.timing.request if most is None else most
        try:
            async with asyncio.timeout(limit):
                yield
        except TimeoutError as error:
            self.errors["unanswered"] += 1
            raise ClusterError(f"{method} {path}: no answer within {limit:g} s") from error

    async def _connected(self) -> ApiClient:
        # Two requests at the same time must not make two clients: nobody would close one of the clients.
        async with self._connecting:
            if self._api is None:
                self._api = await self._made()
        return self._api

    async def _made(self) -> ApiClient:
        configuration = Configuration()
        # Python 3.13 and newer reject certificate authorities without key identifiers, as many EKS clusters have.
        configuration.disable_strict_ssl_verification = True
        if (problem := _problem(self._kubeconfig)) is not None:
            raise ClusterError(f"cannot find an API server: {self._kubeconfig} is not usable: {problem}", sent=False)
        try:
            if self._kubeconfig is None:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                loader = await load_kube_config(  # type: ignore[no-untyped-call]
                    str(self._kubeconfig), self._context, client_configuration=configuration, persist_config=False
                )
                self._namespace = loader.current_context["context"].get("namespace") or ""
            if not self._redirected:
                configuration.trace_configs = [_without_redirects()]
            if asked_directly(configuration.host, os.environ):
                configuration.client_session_kwargs = {"trust_env": False}
            return ApiClient(configuration)
        except Exception as error:
            # Several libraries raise many kinds of errors for an invalid kubeconfig.
            where = self._kubeconfig or "the pod's service account"
            raise ClusterError(
                f"cannot find an API server: {where} is not usable: {in_words(error)}", sent=False
            ) from error


async def read_within(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """Return the body of a response; None for more than `most` bytes, of which the rest is not read."""
    found = bytearray()
    async for chunk in response.content.iter_any():
        found += chunk
        if len(found) > most:
            response.close()
            return None
    return bytes(found)


def _without_redirects() -> aiohttp.TraceConfig:
    """Return a configuration of aiohttp with which an answer that leads elsewhere is an error."""

    async def refuse(*_: object) -> None:
        raise aiohttp.ClientPayloadError("the answer leads elsewhere")

    found = aiohttp.TraceConfig()
    found.on_request_redirect.append(refuse)
    return found


def asked_directly(server: str, environment: Mapping[str, str]) -> bool:
    """Return whether requests to the API server at this address bypass the proxy of the environment.

    The rules are the rules of kubectl and client-go (golang.org/x/net/http/httpproxy): a loopback address never uses a
    proxy, and an entry of NO_PROXY can be a network, for example `10.96.0.0/12`. aiohttp itself handles host names in
    NO_PROXY.
    """
    host = urlsplit(server).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or any(address in network for network in _networks(environment))


def _networks(environment: Mapping[str, str]) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Return the entries of NO_PROXY that are networks."""
    found = []
    for entry in (environment.get("NO_PROXY") or environment.get("no_proxy") or "").split(","):
        with contextlib.suppress(ValueError):
            found += [ipaddress.ip_network(entry.strip(), strict=False)] if "/" in entry else []
    return found


def _problem(kubeconfig: Path | None) -> str | None:
    """Return the problem if all files of `kubeconfig`, separated as in KUBECONFIG, are missing or empty, else None.

    The error of the library would name missing keys instead.
    """
    if kubeconfig is None:
        return None
    there = [file for name in str(kubeconfig).split(os.pathsep) if (file := Path(name)).exists()]
    if not there:
        return "there is no such file"
    return None if any(file.is_dir() or file.stat().st_size for file in there) else "the file is empty"


async def _before(deadline: float, coming: Awaitable[T]) -> T:
    """Await a result until a deadline, a time of the event loop, and return the result; raises TimeoutError."""
    async with asyncio.timeout_at(deadline):
        return await coming


def _reload_authorities(api: ApiClient) -> None:
    """Load the file of certificate authorities again: a cluster can get new authorities while this process runs."""
    file = api.configuration.ssl_ca_cert
    with contextlib.suppress(OSError):  # the next failure reads the file again
        if file:
            api.rest_client.ssl_context.load_verify_locations(cafile=file)


UNREADABLE = (ValueError, RecursionError)
"""The errors of decoding: text is no JSON or no Unicode, a value has another type, or values are nested too deep.

Everybody with the right to write an object can nest unused fields in the object, for example in `managedFields`.
"""


def decoded(answer: bytes, kind: type[T], path: str, method: str = "GET") -> T:
    """Return the object in the answer to a request at `path`; raises ClusterError unless it is of this kind."""
    try:
        return msgspec.json.decode(answer, type=kind)
    except UNREADABLE as error:
        raise ClusterError(f"the answer to {method} {path} is not valid: {in_words(error)}") from error


def named(name: str | None) -> dict[str, str]:
    """Return the query for one object by its name: RBAC can permit a list or a watch of a single named object."""
    return {} if name is None else {"fieldSelector": f"metadata.name={name}"}


def _kind(status: int) -> str:
    """Return the kind of an error status, an element of `ERROR_KINDS`."""
    return _KINDS.get(status, "server" if status >= 500 else "rejected")  # noqa: PLR2004 - HTTP's errors of servers


async def _failure(method: str, path: str, response: aiohttp.ClientResponse) -> ClusterError:
    """Return the error in a response with an error status."""
    try:
        text = (await read_within(response, _LONGEST_FAILURE) or b"").decode(errors="replace")
    except (aiohttp.ClientError, OSError):
        text = ""
    try:
        message = json.loads(text)["message"]
    except (*UNREADABLE, KeyError, TypeError):
        message = text.strip()[:200] or response.reason
    delay = response.headers.get("Retry-After", "")
    # RFC 9110 writes a delay in digits only; `float` also takes -1 and nan, which are no times to wait.
    retry_after = float(delay) if delay.isascii() and delay.isdecimal() else None
    return ClusterError(f"{method} {path}: {response.status}: {message}", response.status, retry_after)
