"""Requests that a plugin refuses, made by a kubelet that has not seen its newest device list."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc


async def refused_allocation(socket: Path, gpu_index: int = 0) -> str:
    """Return why `Allocate` is refused for two of the units of a GPU, counted in the order of the list."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        plugin = rpc.DevicePluginStub(channel)
        ids = await _listed(plugin)
        gpus = list(dict.fromkeys(id_.rpartition("-")[0] for id_ in ids))
        units = [id_ for id_ in ids if id_.startswith(gpus[gpu_index])]
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=units[:2])])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await plugin.Allocate(request)
    return refused.value.details() or ""


async def refused_preference(socket: Path, size: int) -> str:
    """Return why `GetPreferredAllocation` is refused for so many of all units."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        plugin = rpc.DevicePluginStub(channel)
        container = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=await _listed(plugin), allocation_size=size
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await plugin.GetPreferredAllocation(api.PreferredAllocationRequest(container_requests=[container]))
    return refused.value.details() or ""


async def _listed(plugin: rpc.DevicePluginStub) -> list[str]:
    stream: Any = plugin.ListAndWatch(api.Empty())
    devices = [device.ID for device in (await anext(aiter(stream))).devices]
    stream.cancel()
    return devices
