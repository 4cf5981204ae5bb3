"""Registers whenever `kubelet.sock` appears in a directory: `python -m benchmarks.floors.registrar DIRECTORY`."""

import asyncio
import contextlib
import sys
from pathlib import Path

import grpc
from asyncinotify import Inotify, Mask

from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from gpushare_plugin.kubelet.device_plugin.directory import KUBELET_SOCKET
from gpushare_plugin.kubelet.device_plugin.session import API_VERSION


async def watch(directory: Path) -> None:
    """Register now and whenever the socket is created again, until the process ends."""
    with Inotify() as inotify:
        inotify.add_watch(directory, Mask.CREATE)
        await register(directory)
        async for event in inotify:
            if event.name == Path(KUBELET_SOCKET):
                await register(directory)


async def register(directory: Path) -> None:
    """Register with the kubelet that is there."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    request = api.RegisterRequest(version=API_VERSION, endpoint="floor.sock", resource_name="example.com/floor")
    async with grpc.aio.insecure_channel(f"unix:{directory / KUBELET_SOCKET}", options=options) as channel:
        # The kubelet may end as soon as it was asked; the next one is asked again.
        with contextlib.suppress(grpc.aio.AioRpcError):
            await rpc.RegistrationStub(channel).Register(request)


if __name__ == "__main__":
    asyncio.run(watch(Path(sys.argv[1])))
