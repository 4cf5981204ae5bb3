"""The kubelet's end of one connection to a device plugin."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import grpc

from gpushare_plugin.kubelet.api.deviceplugin_pb2 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateRequest,
    ContainerPreferredAllocationRequest,
    DevicePluginOptions,
    Empty,
    ListAndWatchResponse,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
    PreStartContainerRequest,
)
from gpushare_plugin.kubelet.api.deviceplugin_pb2_grpc import DevicePluginStub
from gpushare_plugin.testing.kubelet.shared.calling import OWN_CONNECTION, answered
from gpushare_plugin.testing.kubelet.shared.errors import DeviceManagerError, PluginCallError

RECEIVE_LIMIT = 4 * 1024 * 1024
"""Bytes of the largest message the kubelet takes: what gRPC for Go allows when nothing else is said."""

PRE_START_SECONDS = 30.0
"""How long PreStartContainer may take; no other call to a plugin has a limit."""


class PluginClient:
    """One connection to the plugin of `resource` at `socket`; `count` is called with the name of each method."""

    def __init__(self, resource: str, socket: Path, count: Callable[[str], None]) -> None:
        """Prepare the connection; nothing is dialled yet."""
        self.resource = resource
        self.socket = socket
        self._count = count
        self._channel = grpc.aio.insecure_channel(
            f"unix:{socket}",
            options=[("grpc.max_receive_message_length", RECEIVE_LIMIT), OWN_CONNECTION],
        )
        self._plugin = DevicePluginStub(self._channel)

    async def connect(self, within: float) -> None:
        """Dial until the plugin answers; raises DeviceManagerError after `within` seconds."""
        try:
            async with asyncio.timeout(within):
                await self._channel.channel_ready()
        except TimeoutError as error:
            raise DeviceManagerError("failed to dial device plugin: context deadline exceeded") from error

    async def options(self) -> DevicePluginOptions:
        """Ask the plugin which of the optional calls it wants."""
        self._count("GetDevicePluginOptions")
        try:
            return await answered(self._plugin.GetDevicePluginOptions(Empty()))
        except PluginCallError as error:
            raise DeviceManagerError(f"failed to get device plugin options: {error}") from error

    async def lists(self) -> AsyncIterator[ListAndWatchResponse]:
        """Yield every device list; ends when the plugin ends the stream, otherwise raises PluginCallError."""
        self._count("ListAndWatch")
        lists = aiter(self._plugin.ListAndWatch(Empty()))
        while True:
            try:
                yield await answered(anext(lists))
            except StopAsyncIteration:
                return

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> PreferredAllocationResponse:
        """Ask the plugin which `size` of the `available` devices it would rather give."""
        self._count("GetPreferredAllocation")
        request = ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        return await answered(
            self._plugin.GetPreferredAllocation(PreferredAllocationRequest(container_requests=[request]))
        )

    async def allocate(self, ids: Sequence[str]) -> AllocateResponse:
        """Tell the plugin that one container gets `ids`, and hear what to start it with."""
        self._count("Allocate")
        request = ContainerAllocateRequest(devices_ids=ids)
        return await answered(self._plugin.Allocate(AllocateRequest(container_requests=[request])))

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Tell the plugin that a container with `ids` is about to start."""
        self._count("PreStartContainer")
        request = PreStartContainerRequest(devices_ids=ids)
        await answered(self._plugin.PreStartContainer(request, timeout=PRE_START_SECONDS))

    async def close(self) -> None:
        """Close the connection and with it every call under way; closing twice is fine."""
        await self._channel.close()
