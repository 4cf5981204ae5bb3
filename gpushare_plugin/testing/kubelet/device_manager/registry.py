"""The door plugins register at, and the connections the kubelet opens to those it lets in."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import grpc

from gpushare_plugin.kubelet.api import deviceplugin_pb2_grpc
from gpushare_plugin.kubelet.api.deviceplugin_pb2 import Empty, RegisterRequest
from gpushare_plugin.testing.kubelet.device_manager.client import PluginClient
from gpushare_plugin.testing.kubelet.device_manager.manager import DeviceManager
from gpushare_plugin.testing.kubelet.shared.errors import DeviceManagerError
from gpushare_plugin.testing.kubelet.shared.journal import Disconnection, Journal, Registration

VERSION = "v1beta1"

_QUOTA_PREFIX = "requests."
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DOMAIN_LENGTH, _NAME_LENGTH = 253, 63


def is_extended_resource(name: str) -> bool:
    """Whether `name` may be a device plugin's resource: `domain/name`, not Kubernetes' own, fit for a quota."""
    domain, slash, short = (_QUOTA_PREFIX + name).partition("/")
    return (
        bool(slash)
        and "kubernetes.io/" not in name
        and not name.startswith(_QUOTA_PREFIX)
        and len(domain) <= _DOMAIN_LENGTH
        and len(short) <= _NAME_LENGTH
        and bool(_DOMAIN.fullmatch(domain))
        and bool(_NAME.fullmatch(short))
    )


class Registry(deviceplugin_pb2_grpc.RegistrationServicer):
    """The Registration service and the streams behind it; `refusal` says why plugins are turned away, None when not."""

    def __init__(  # noqa: PLR0913 - everything that a registration depends on
        self,
        manager: DeviceManager,
        directory: Path,
        journal: Journal,
        *,
        dial_seconds: float,
        refusal: Callable[[], str | None],
        knows_sockets: bool,
    ) -> None:
        """Start without plugins; their sockets are looked for in `directory`.

        `knows_sockets` is whether the end of a stream disconnects only the plugin of that socket, as from 1.37 on.
        """
        self._manager = manager
        self._directory = directory
        self._journal = journal
        self._dial_seconds = dial_seconds
        self._refusal = refusal
        self._knows_sockets = knows_sockets
        self._current: dict[str, PluginClient] = {}
        self._open: set[PluginClient] = set()
        self._watches: list[asyncio.Task[None]] = []

    async def Register(  # noqa: N802 -- the name on the wire
        self, request: RegisterRequest, context: grpc.aio.ServicerContext[RegisterRequest, Empty]
    ) -> Empty:
        """Check the request, dial the plugin, read its options, and only then answer."""
        self._journal.count("Register")
        error: str | None = "the plugin gave up waiting"
        try:
            self._check(request)
            await self._connect(request.resource_name, self._directory / request.endpoint)
            error = None
        except DeviceManagerError as refusal:
            error = str(refusal)
        finally:
            self._journal.registered(Registration(request.resource_name, request.endpoint, request.version, error))
        if error is not None:
            await context.abort(grpc.StatusCode.UNKNOWN, error)
        return Empty()

    async def close(self) -> None:
        """Leave every plugin: their devices turn unhealthy, all connections and tasks end."""
        for watch in self._watches:
            watch.cancel()
        for resource in self._current:
            self._manager.disconnect(resource)
        self._current.clear()
        while self._open:
            await self._open.pop().close()
        for outcome in await asyncio.gather(*self._watches, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    def _check(self, request: RegisterRequest) -> None:
        if (refusal := self._refusal()) is not None:
            raise DeviceManagerError(refusal)
        if request.version != VERSION:
            raise DeviceManagerError(
                f'requested API version "{request.version}" is not supported by kubelet. '
                f'Supported version is ["{VERSION}"]'
            )
        if not is_extended_resource(request.resource_name):
            raise DeviceManagerError(f'the ResourceName "{request.resource_name}" is invalid')

    async def _connect(self, resource: str, socket: Path) -> None:
        client = PluginClient(resource, socket, self._journal.count)
        self._open.add(client)
        self._current[resource] = client
        try:
            await client.connect(self._dial_seconds)
            options = await client.options()
        except BaseException:
            # By name: when another plugin registered meanwhile, it is that one which is forgotten, as in reality.
            self._current.pop(resource, None)
            await self._close(client)
            raise
        self._manager.connect(resource, client, options)
        self._watches.append(asyncio.create_task(self._watch(client), name=f"device list of {resource}"))

    async def _watch(self, client: PluginClient) -> None:
        """Follow the device lists of `client` to their end, then disconnect the plugin of that resource.

        Until 1.36 not the plugin whose stream ended, but whichever is registered for the resource by then. Kubernetes
        does the same (kubernetes#121994), and a plugin has to live with it. From 1.37 on, one of another socket stays
        (kubernetes#135437).
        """
        error = "EOF"
        try:
            async for update in client.lists():
                self._manager.replace(client.resource, update.devices)
        except DeviceManagerError as failure:
            error = str(failure)
        current = self._current.get(client.resource)
        if current and not (self._knows_sockets and current.socket != client.socket):
            del self._current[client.resource]
            await self._close(current)
            self._manager.disconnect(client.resource)
            self._journal.disconnected(Disconnection(client.resource, error))
        if not self._manager.uses(client):
            await self._close(client)

    async def _close(self, client: PluginClient) -> None:
        self._open.discard(client)
        await client.close()
