"""A bare `grpc.aio` device plugin that answers constants: `python -m benchmarks.floors.server SOCKET ANSWERS`.

With `--events` it sends its list again upon every event of a GPU; with `--register KUBELET_SOCKET RESOURCE` it
registers once.
"""

import argparse
import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc

from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from gpushare_plugin.kubelet.session import API_VERSION, SERVER_OPTIONS

Context = grpc.aio.ServicerContext[Any, Any]


class BarePlugin(rpc.DevicePluginServicer):
    """Answers what the files `allocate`, `preferred` and `devices` in a folder hold."""

    def __init__(self, answers: Path) -> None:
        """Read the answers."""
        self._allocate = api.AllocateResponse.FromString((answers / "allocate").read_bytes())
        self._preferred = api.PreferredAllocationResponse.FromString((answers / "preferred").read_bytes())
        self._devices = api.ListAndWatchResponse.FromString((answers / "devices").read_bytes())
        self._serialised = self._devices.SerializeToString()
        self._changed = asyncio.Event()

    def change(self) -> None:
        """Serialise the list once, and send it on every stream."""
        self._serialised = self._devices.SerializeToString()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def send_lists(self, _request: bytes, _context: Context) -> AsyncIterator[bytes]:
        """Send the list, and again after each change, without serialising it for each stream."""
        while True:
            changed = self._changed
            yield self._serialised
            await changed.wait()

    async def GetDevicePluginOptions(self, request: api.Empty, context: Context) -> api.DevicePluginOptions:  # noqa: ARG002, N802 - fixed by gRPC
        """Ask for preferred-allocation calls."""
        return api.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: api.Empty, context: Context) -> AsyncIterator[api.ListAndWatchResponse]:  # noqa: ARG002, N802 - fixed by gRPC
        """Send the list once; `send_lists` stands before this."""
        yield self._devices

    async def GetPreferredAllocation(  # noqa: N802 - fixed by gRPC
        self,
        request: api.PreferredAllocationRequest,  # noqa: ARG002 - fixed by gRPC
        context: Context,  # noqa: ARG002 - fixed by gRPC
    ) -> api.PreferredAllocationResponse:
        """Answer the constant."""
        return self._preferred

    async def Allocate(self, request: api.AllocateRequest, context: Context) -> api.AllocateResponse:  # noqa: ARG002, N802 - fixed by gRPC
        """Answer the constant."""
        return self._allocate

    async def PreStartContainer(  # noqa: N802 - fixed by gRPC
        self,
        request: api.PreStartContainerRequest,  # noqa: ARG002 - fixed by gRPC
        context: Context,  # noqa: ARG002 - fixed by gRPC
    ) -> api.PreStartContainerResponse:
        """Do nothing."""
        return api.PreStartContainerResponse()


async def serve(socket: Path, answers: Path, register: tuple[Path, str] | None, *, events: bool) -> None:
    """Serve until killed."""
    plugin = BarePlugin(answers)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    as_bytes = grpc.unary_stream_rpc_method_handler(plugin.send_lists)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", {"ListAndWatch": as_bytes}),)
    )
    rpc.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    if events:
        loop = asyncio.get_running_loop()
        tell = lambda: loop.call_soon_threadsafe(plugin.change)  # noqa: E731 - it is only handed on
        threading.Thread(target=watch_events, args=(tell,), daemon=True).start()
    if register is not None:
        kubelet, resource = register
        request = api.RegisterRequest(version=API_VERSION, endpoint=str(socket), resource_name=resource)
        async with grpc.aio.insecure_channel(f"unix:{kubelet}") as channel:
            await rpc.RegistrationStub(channel).Register(request)
    await server.wait_for_termination()


def watch_events(tell: Callable[[], object]) -> None:
    """Call `tell` upon every event of a GPU, for ever."""
    import pynvml  # noqa: PLC0415 - only where it is asked for

    pynvml.nvmlInit()
    events = pynvml.nvmlEventSetCreate()
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    while True:
        try:
            pynvml.nvmlEventSetWait_v2(events, 60_000)
        except pynvml.NVMLError_Timeout:
            continue
        tell()


def main() -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("socket", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--events", action="store_true")
    parser.add_argument("--register", nargs=2)
    given = parser.parse_args()
    register = (Path(given.register[0]), str(given.register[1])) if given.register else None
    asyncio.run(serve(given.socket, given.answers, register, events=given.events))


if __name__ == "__main__":
    main()
