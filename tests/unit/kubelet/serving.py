"""Sessions and channels for tests that play the kubelet or one of its plugins."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from gpushare_plugin.core.recent import RecentAllocations
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.kubelet.allocations.checkpoint import read_recorded
from gpushare_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from gpushare_plugin.kubelet.device_plugin.directory import PluginDirectory
from gpushare_plugin.kubelet.device_plugin.plugin_socket import SERVER_OPTIONS
from gpushare_plugin.kubelet.device_plugin.service import BeforeStart, DevicePluginService
from gpushare_plugin.kubelet.device_plugin.session import Session
from gpushare_plugin.kubelet.device_plugin.steering import Steering, Unsteered
from gpushare_plugin.kubelet.serving.troubles import GRACE
from tests.nodes import a_node
from tests.unit.sharing.settings import memory, only, planned


def shared_memory(*memory_gib: int, name: str = "aliyun.com/gpu-mem") -> Resource:
    """Return a memory resource of GPUs with so many GiB each."""
    return only(planned(a_node(*(size * 1024 for size in memory_gib)), sharing=memory(name=name)))


@asynccontextmanager
async def running(
    directory: Path,
    *resources: Resource,
    grace: float = GRACE,
    recent: RecentAllocations | None = None,
    steering: Steering | None = None,
) -> AsyncIterator[list[Session]]:
    """Run a session for each resource in a plugin directory, as the daemon does."""
    plugin_directory = PluginDirectory(directory)
    steering = steering or Unsteered()
    sessions = [Session(resource, plugin_directory, grace, recent=recent, steering=steering) for resource in resources]
    tasks = [asyncio.create_task(work) for work in (plugin_directory.watch(), *(each.run() for each in sessions))]
    try:
        yield sessions
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        plugin_directory.close()


@asynccontextmanager
async def served(
    what: Resource | DevicePluginService, folder: Path, before_start: BeforeStart | None = None
) -> AsyncIterator["rpc.DevicePluginAsyncStub"]:
    """Serve a resource alone, or what answers for one, and yield a client of it."""
    service = what if isinstance(what, DevicePluginService) else DevicePluginService(what, before_start=before_start)
    address = f"unix:{folder / 'plugin.sock'}"
    server = grpc.aio.server(options=SERVER_OPTIONS)
    service.add_to(server)
    server.add_insecure_port(address)
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        yield rpc.DevicePluginStub(channel)
    await server.stop(grace=None)


def read_held(directory: Path) -> frozenset[tuple[str, str]]:
    """Return what containers may hold by the checkpoint in a kubelet's plugin directory, as resource and ID."""
    return frozenset((each.resource, id_) for each in read_recorded(directory) for id_ in each.ids)


@asynccontextmanager
async def answering_bytes(folder: Path, answer: bytes, method: str = "List") -> AsyncIterator[Path]:
    """Serve a fixed answer of pod-resources, whatever it is, and yield the socket."""

    async def fixed(_request: bytes, _context: object) -> bytes:
        return answer

    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(fixed)
    server.add_registered_method_handlers("v1.PodResourcesLister", {method: handler})
    server.add_insecure_port(f"unix:{folder / 'kubelet.sock'}")
    await server.start()
    yield folder / "kubelet.sock"
    await server.stop(grace=None)
