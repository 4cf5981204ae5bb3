"""One resource and the kubelet: serve, register, watch, and start over after each change.

A session compares the actual state with the wanted state, and mends the first difference. The state has three parts:
our socket on disk, the kubelet's socket at the time of our registration, and an open `ListAndWatch` stream. A session
keeps no history that a restart of either side could make wrong. The trouble of one session never touches another
session; trouble that lasts is a warning (`Troubles`).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping

import grpc
import structlog

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.core.pairing import Pairing
from gpushare_plugin.core.recent import RecentAllocations
from gpushare_plugin.core.resource import Resource, Standing
from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.kubelet.device_plugin.directory import KUBELET_SOCKET, PluginDirectory
from gpushare_plugin.kubelet.device_plugin.plugin_socket import PluginSocket
from gpushare_plugin.kubelet.device_plugin.service import Allocated, BeforeStart, DevicePluginService, Refused
from gpushare_plugin.kubelet.device_plugin.steering import Steering
from gpushare_plugin.kubelet.serving.troubles import GRACE, Troubles
from gpushare_plugin.kubelet.serving.watched_directory import Identity

API_VERSION = "v1beta1"
"""Version of the device-plugin API."""
_CLIENT_OPTIONS = (
    # With a shared pool, a new channel waits out the backoff of an earlier channel to the same path.
    ("grpc.use_local_subchannel_pool", 1),
    # A proxy meant for the network must not swallow a local socket.
    ("grpc.enable_http_proxy", 0),
)
_REGISTER = f"/{api.DESCRIPTOR.services_by_name['Registration'].full_name}/Register"
"""Called with bytes: the answer has no fields, and gRPC would print a traceback of an answer it cannot decode."""
_REGISTER_TIMEOUT = 15.0
"""Seconds; before the answer, the kubelet dials the plugin's socket for up to 10 seconds."""


class Registrar:
    """Asks the kubelet of a plugin directory to take a resource."""

    def __init__(self, directory: PluginDirectory, wake: asyncio.Event) -> None:
        """Ask the kubelet in `directory`; `wake` is set when a socket there may have changed."""
        self._directory = directory
        self._wake = wake

    async def register(self, resource_name: str, endpoint: str, kubelet: Identity) -> bool:
        """Register a resource, served on the socket named `endpoint`; return False if `kubelet` is gone meanwhile.

        Raises grpc.RpcError with the kubelet's reason for a rejection.
        """
        request = api.RegisterRequest(
            version=API_VERSION,
            endpoint=endpoint,
            resource_name=resource_name,
            options=api.DevicePluginOptions(get_preferred_allocation_available=True),
        )
        address = f"unix:{self._directory.path / KUBELET_SOCKET}"
        async with grpc.aio.insecure_channel(address, options=_CLIENT_OPTIONS) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_REGISTER)
            return await self._answered(call(request.SerializeToString(), timeout=_REGISTER_TIMEOUT), kubelet)

    async def _answered(self, call: Awaitable[bytes], kubelet: Identity) -> bool:
        """Wait for the answer of `kubelet`; return False if this kubelet is gone meanwhile."""
        answer = asyncio.ensure_future(call)
        try:
            while not answer.done():
                woken = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait({answer, woken}, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                if answer.done():
                    break  # `wake` stays set: the session still has to look at the change
                self._wake.clear()
                if self._directory.identity(KUBELET_SOCKET) != kubelet:
                    return False
            await answer
        finally:
            answer.cancel()
        return True


_log = structlog.get_logger()

_STREAM_TIMEOUT = 5.0
"""Seconds for the kubelet to open its `ListAndWatch` stream after a registration."""
_LASTING_STREAM = 10.0
"""Seconds after which a stream counts as a success: the session retries at once after the next failure."""


class Session:
    """Keeps one resource served on its own socket and registered with the kubelet."""

    def __init__(  # noqa: PLR0913 - everything that a session depends on
        self,
        resource: Resource,
        directory: PluginDirectory,
        grace: float = GRACE,
        steering: Steering | None = None,
        pairing: Pairing | None = None,
        *,
        refused: Refused = lambda _call, _resource, _reason: None,
        recent: RecentAllocations | None = None,
        allocated: Allocated = lambda _resource, _ids: None,
        before_start: BeforeStart | None = None,
    ) -> None:
        """Prepare to serve `resource` on a socket in `directory`, and to warn of trouble after `grace` seconds.

        `steering` knows the promises to pods; without `steering`, none are known. All resources of a node share one
        `pairing` and one `recent`. `refused` is called for each refused call of the kubelet, `allocated` after each
        granted `Allocate` call, and `before_start` before each start of a container.
        """
        self._log = _log.bind(resource=resource.name)
        self._directory = directory
        self._wake = asyncio.Event()
        self._service = DevicePluginService(
            resource,
            self._streams_changed,
            steering,
            pairing,
            refused,
            recent=recent,
            allocated=allocated,
            before_start=before_start,
        )
        self._socket = PluginSocket(self._service, directory)
        self._registrar = Registrar(directory, self._wake)
        self._troubles = Troubles(self._warn, lambda: self.registered, grace)
        self._kubelet: Identity | None = None
        self._registered = False
        self._registrations = 0
        self._registration_failures = 0
        self._stream_since: float | None = None
        self._stream_due = 0.0
        self._backoff = Backoff()
        self._not_before = 0.0
        self.tried = asyncio.Event()
        """Set once the session has tried to register, with or without success, or has ended."""

    @property
    def resource(self) -> Resource:
        """The resource served now."""
        return self._service.resource

    @property
    def socket_name(self) -> str:
        """The file name of the resource's socket."""
        return self._socket.name

    @property
    def streaming(self) -> bool:
        """Whether the kubelet has a `ListAndWatch` stream open now."""
        return self._service.streams > 0

    @property
    def attempts(self) -> int:
        """The number of attempts, failed or not, since a new kubelet appeared or a lasting stream ended."""
        return self._backoff.failures

    @property
    def registered(self) -> bool:
        """Whether our socket exists, and the present kubelet took our registration and has a stream open."""
        return self._registered and self.streaming and self._socket.served

    @property
    def standing(self) -> Standing:
        """The state of the resource's registration now, and the counters of the kubelet's calls."""
        service = self._service
        return Standing(
            self.registered,
            service.allocations,
            dict(service.refusals),
            service.calls.durations,
            self._registrations,
            self._registration_failures,
        )

    def replace(self, resource: Resource) -> None:
        """Serve `resource`, of the same name, from now on, also over the open streams."""
        self._service.replace(resource)

    def resend(self) -> None:
        """Send the device list once more: the kubelet then writes its checkpoint again."""
        self._service.resend()

    async def run(self) -> None:
        """Serve and stay registered until cancelled; then end at once and remove the socket."""
        with self._directory.notifying(self._wake.set):
            try:
                while True:
                    self._wake.clear()
                    wait = await self._try()
                    self.tried.set()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(wait):
                            await self._wake.wait()
            finally:
                self._troubles.close()
                await self._socket.stop()

    async def _try(self) -> float | None:
        try:
            return await self._mend()
        except (GpushareError, OSError, RuntimeError, grpc.RpcError) as error:
            self._registration_failures += 1
            self._note("registration_failed", reason=_text(error))
            return self._delay_next()

    async def _mend(self) -> float | None:
        """Serve and register if not done yet; return the seconds until the next look, None to wait for a change."""
        kubelet = self._directory.identity(KUBELET_SOCKET)
        if kubelet != self._kubelet:
            self._kubelet, self._registered, self._not_before = kubelet, False, 0.0
            self._backoff.reset()
        if kubelet is None:
            self._note("kubelet_missing", path=str(self._directory.path / KUBELET_SOCKET))
        if self.registered or (kubelet is None and self._socket.served):
            return None
        # A kubelet that took our registration gets time to open its stream, whatever happens in the directory: of two
        # overlapping registrations, the end of one stream can leave the units of the other healthy for ever.
        due = self._stream_due if self._registered and self._socket.served else 0.0
        if (wait := max(self._not_before, due) - asyncio.get_running_loop().time()) > 0:
            return wait
        if not self._socket.served:
            await self._serve()
        return None if kubelet is None else await self._register(kubelet)

    def _delay_next(self) -> float:
        """Put off the next attempt, longer each time, until a stream has lasted or the kubelet's socket is new."""
        wait = self._backoff.next()
        self._not_before = asyncio.get_running_loop().time() + wait
        return wait

    async def _serve(self) -> None:
        again = self._socket.bound
        if again:
            self._note("socket_replaced" if self._socket.exists else "socket_removed", path=str(self._socket.path))
        await self._socket.serve()
        self._registered = False
        log = self._log.debug if again else self._log.info  # the next registration is logged in any case
        log("resource_serving", path=str(self._socket.path), count=len(self.resource.units))

    async def _register(self, kubelet: Identity) -> float:
        if not await self._registrar.register(self.resource.name, self.socket_name, kubelet):
            return 0.0
        self._registered = True
        self._registrations += 1
        if not self.streaming:
            self._stream_due = asyncio.get_running_loop().time() + _STREAM_TIMEOUT
        # A stream that always breaks, for example because the kubelet rejects the list, must not make a hot loop.
        self._delay_next()
        reason = {"reason": ", ".join(self._troubles.events)} if self._troubles.events else {}
        self._log.info("resource_registered", count=len(self.resource.units), **reason)
        return _STREAM_TIMEOUT

    def _note(self, event: str, **facts: str) -> None:
        """Warn of a trouble if it lasts."""
        self._troubles.note(event, facts)

    def _warn(self, event: str, facts: Mapping[str, str]) -> None:
        self._log.warning(event, **facts)

    def _streams_changed(self) -> None:
        now = asyncio.get_running_loop().time()
        if self.streaming:
            self._stream_due = 0.0
            self._stream_since = self._stream_since or now
        elif self._stream_since is not None:
            if now - self._stream_since > _LASTING_STREAM:
                self._backoff.reset()
            self._stream_since = None
            if self._socket.serving:  # a socket being stopped ends its streams
                self._note("device_list_stream_ended")
        self._wake.set()


def _text(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
