"""The life of one resource with the kubelet: serve, register, watch, again.

A session compares what is with what should be (our socket on disk, the kubelet's socket we registered at, an open
`ListAndWatch` stream) and mends the first difference. It keeps no history that could be wrong after a restart of
either side, and nothing that happens to one session touches another.
"""

import asyncio
import contextlib
import hashlib
import os
import socket
import struct
from collections.abc import Awaitable
from pathlib import Path

import grpc
import structlog

from gpushare_plugin.adapters.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.adapters.kubelet.device_plugin.directory import (
    KUBELET_SOCKET,
    SOCKET_PREFIX,
    Identity,
    PluginDirectory,
)
from gpushare_plugin.adapters.kubelet.device_plugin.service import DevicePluginService
from gpushare_plugin.foundation.backoff import Backoff
from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.socket_path import LONGEST_SOCKET_PATH
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.standing import Standing

_log = structlog.get_logger()

API_VERSION = "v1beta1"
SERVER_OPTIONS = (
    # The kubelet sends a whole device list back to us as `Available`, and it may be 4 MiB long.
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    ("grpc.so_reuseport", 0),
)
"""How each resource's gRPC server is set up."""
_CLIENT_OPTIONS = (
    # Without its own pool a new channel waits out the backoff of an earlier one to the same path.
    ("grpc.use_local_subchannel_pool", 1),
    # A proxy meant for the network must not swallow a local socket.
    ("grpc.enable_http_proxy", 0),
)
_REGISTER = f"/{api.DESCRIPTOR.services_by_name['Registration'].full_name}/Register"
"""Called with bytes: the answer has no fields, and gRPC would print a traceback of one that it cannot decode."""
_REGISTER_TIMEOUT = 15.0
"""Seconds; the kubelet dials us back for up to 10 before it answers."""
_STREAM_TIMEOUT = 5.0
"""Seconds the kubelet has after a registration to open its `ListAndWatch` stream."""
_LASTING_STREAM = 10.0
"""Seconds after which a stream counts as a success, so that the next failure is retried at once."""
GRACE = 3.0
"""Seconds that trouble must last to be warned of: when a kubelet restarts, all is well again within a second."""

_CREDENTIALS = struct.Struct("3i")
"""`struct ucred`: process, user and group."""

_Trouble = tuple[str, tuple[tuple[str, str], ...]]
"""An event of the log, and its facts."""


class Session:
    """Keeps one resource served on its own socket and registered with the kubelet."""

    def __init__(self, resource: Resource, directory: PluginDirectory, grace: float = GRACE) -> None:
        """Prepare to serve `resource` on a socket in `directory`; trouble that lasts `grace` seconds is warned of."""
        self.socket_name = socket_name(resource.name, directory)
        self._directory = directory
        self._wake = asyncio.Event()
        self._service = DevicePluginService(resource, self._streams_changed)
        self._server: grpc.aio.Server | None = None
        self._bound: Identity | None = None
        self._kubelet: Identity | None = None
        self._registered = False
        self._stream_since: float | None = None
        self._backoff = Backoff()
        self._not_before = 0.0
        self._grace = grace
        self._troubles: dict[_Trouble, None] = {}
        self._told: set[_Trouble] = set()
        self._judgement: asyncio.TimerHandle | None = None
        self._log = _log.bind(resource=resource.name)

    async def run(self) -> None:
        """Serve and stay registered until cancelled; then end at once and remove the socket."""
        with self._directory.telling(self._wake.set):
            try:
                while True:
                    self._wake.clear()
                    wait = await self._try()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(wait):
                            await self._wake.wait()
            finally:
                if self._judgement is not None:
                    self._judgement.cancel()
                await self._stop()

    async def _try(self) -> float | None:
        try:
            return await self._mend()
        except (GpushareError, OSError, RuntimeError, grpc.RpcError) as error:
            self._tell("attempt failed, trying again and again", reason=_text(error))
            return self._delay_next()

    @property
    def resource(self) -> Resource:
        """The resource as it is served now."""
        return self._service.resource

    def replace(self, resource: Resource) -> None:
        """Serve `resource`, of the same name, from now on, over the streams that are open."""
        self._service.replace(resource)

    def resend(self) -> None:
        """Send the device list once more, which makes the kubelet write its checkpoint anew."""
        self._service.resend()

    @property
    def streaming(self) -> bool:
        """Whether the kubelet is listening to our device list now."""
        return self._service.streams > 0

    @property
    def failures(self) -> int:
        """How many attempts in a row have failed."""
        return self._backoff.failures

    @property
    def registered(self) -> bool:
        """Whether our socket is there, and the kubelet that is there took our registration and listens."""
        return self._registered and self.streaming and self._served

    @property
    def standing(self) -> Standing:
        """How the resource stands with the kubelet now."""
        return Standing(self.registered, self._service.allocations, dict(self._service.refusals))

    @property
    def _served(self) -> bool:
        return self._bound is not None and self._directory.identity(self.socket_name) == self._bound

    async def _mend(self) -> float | None:
        """Do what is missing to be served and registered; return the seconds until the next look, None for idle."""
        kubelet = self._directory.identity(KUBELET_SOCKET)
        if kubelet != self._kubelet:
            self._kubelet, self._registered, self._not_before = kubelet, False, 0.0
            self._backoff.reset()
        if kubelet is None:
            self._tell("no kubelet here, waiting for one", socket=str(self._directory.path / KUBELET_SOCKET))
        if self.registered or (kubelet is None and self._served):
            return None
        if (wait := self._not_before - asyncio.get_running_loop().time()) > 0:
            return wait
        if not self._served:
            await self._serve()
        return None if kubelet is None else await self._register()

    def _delay_next(self) -> float:
        """Put off the next attempt, longer each time, until a stream has lasted or the kubelet's socket is another."""
        wait = self._backoff.next()
        self._not_before = asyncio.get_running_loop().time() + wait
        return wait

    def _tell(self, event: str, **facts: str) -> None:
        """Warn if it lasts, and but once until all is well: a night without a kubelet must not fill the disk."""
        trouble = (event, tuple(facts.items()))
        if trouble in self._told:
            return
        self._troubles[trouble] = None
        if self._judgement is None:
            self._judge_later()

    def _judge_later(self) -> None:
        self._judgement = asyncio.get_running_loop().call_later(self._grace, self._judge)

    def _judge(self) -> None:
        """Warn of what has not been mended meanwhile; look again until all is well."""
        self._judgement = None
        if self.registered:
            self._told.clear()
        else:
            for event, facts in self._troubles:
                self._log.warning(event, **dict(facts))
            self._told.update(self._troubles)
            self._judge_later()
        self._troubles.clear()

    async def _serve(self) -> None:
        again = self._bound is not None
        if again:
            there = self._directory.identity(self.socket_name) is not None
            self._tell("our socket is another's now" if there else "our socket is gone", socket=self.socket_name)
        path = self._directory.path / self.socket_name
        if not self._directory.path.is_dir():
            raise OSError(f"{self._directory.path} is no directory; is the kubelet's plugin directory mounted here?")
        self._directory.claim()
        # Stop fully first: a gRPC server removes its path when it stops, even if another has bound it since.
        await self._stop()
        server = grpc.aio.server(options=SERVER_OPTIONS)
        self._service.add_to(server)
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise OSError(f"{path} cannot be made: may this process write there, and is there room?") from error
        await server.start()
        self._server = server
        bound = self._directory.identity(self.socket_name)
        # A kubelet that starts wipes the directory, just when daemons start, too.
        if bound is None or not _listens_here(path) or self._directory.identity(self.socket_name) != bound:
            raise OSError(f"{path} was removed or replaced as soon as it was made")
        self._bound = bound
        self._registered = False
        tell = self._log.debug if again else self._log.info  # what matters is said when it is registered again
        tell("serving", socket=str(path), units=len(self.resource.units))

    async def _register(self) -> float:
        request = api.RegisterRequest(
            version=API_VERSION,
            endpoint=self.socket_name,
            resource_name=self.resource.name,
            options=api.DevicePluginOptions(get_preferred_allocation_available=True),
        )
        async with grpc.aio.insecure_channel(self._kubelet_address, options=_CLIENT_OPTIONS) as channel:
            register: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_REGISTER)
            call = register(request.SerializeToString(), timeout=_REGISTER_TIMEOUT)
            if not await self._answered(call):
                return 0.0
        self._registered = True
        # A stream that breaks again and again (a list the kubelet refuses, say) must not make a hot loop.
        self._delay_next()
        after = {"after": "; ".join(event for event, _ in self._troubles)} if self._troubles else {}
        self._log.info("registered", units=len(self.resource.units), **after)
        return _STREAM_TIMEOUT

    async def _answered(self, call: Awaitable[bytes]) -> bool:
        """Wait for the kubelet's answer; False when the kubelet that was asked is not there any more."""
        answer = asyncio.ensure_future(call)
        try:
            while not answer.done():
                woken = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait({answer, woken}, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                if answer.done():
                    break  # and whatever woke us besides is still to be looked at
                self._wake.clear()
                if self._directory.identity(KUBELET_SOCKET) != self._kubelet:
                    return False
            await answer
        finally:
            answer.cancel()
        return True

    @property
    def _kubelet_address(self) -> str:
        return f"unix:{self._directory.path / KUBELET_SOCKET}"

    def _streams_changed(self) -> None:
        now = asyncio.get_running_loop().time()
        if self.streaming:
            self._stream_since = self._stream_since or now
        elif self._stream_since is not None:
            if now - self._stream_since > _LASTING_STREAM:
                self._backoff.reset()
            self._stream_since = None
            if self._server is not None:  # while we stop, our own end is no news
                self._tell("the kubelet no longer listens to the device list; registering again")
        self._wake.set()

    async def _stop(self) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        bound, self._bound = self._bound, None
        await server.stop(grace=None)
        if bound is not None and self._directory.identity(self.socket_name) == bound:
            # In a directory that is read-only by now the socket has to stay; the next to serve replaces it.
            with contextlib.suppress(OSError):
                (self._directory.path / self.socket_name).unlink(missing_ok=True)


def socket_name(resource_name: str, directory: PluginDirectory) -> str:
    """Return the file name of a resource's socket: the resource's name, shortened where the path would be too long."""
    readable = f"{SOCKET_PREFIX}{resource_name.replace('/', '_')}"
    room = LONGEST_SOCKET_PATH - len(bytes(directory.path)) - len("/.sock")
    if len(readable) > room:
        digest = hashlib.blake2s(resource_name.encode(), digest_size=4).hexdigest()
        readable = f"{readable[: max(0, room - len(digest) - 1)]}-{digest}"
    return f"{readable}.sock"


def _listens_here(path: Path) -> bool:
    """Tell whether it is this process that listens on the socket at `path` (SO_PEERCRED, see unix(7))."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.0)
        try:
            connection.connect(str(path))
        except BlockingIOError:
            return True  # more wait there already than are taken at once, so somebody listens
        except OSError:
            return False
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[0] == os.getpid())


def _text(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
