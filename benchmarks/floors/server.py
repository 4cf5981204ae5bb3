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
from google.protobuf.message import Message

from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from gpushare_plugin.kubelet.device_plugin.plugin_socket import SERVER_OPTIONS
from gpushare_plugin.kubelet.device_plugin.session import API_VERSION

Context = grpc.aio.ServicerContext[Any, Any]


class DeviceList:
    """A device list that is serialised once for all streams, upon each change."""

    def __init__(self, content: bytes) -> None:
        """Begin with the list that `content` holds."""
        self._devices = api.ListAndWatchResponse.FromString(content)
        self._serialised = content
        self._changed = asyncio.Event()

    def change(self) -> None:
        """Serialise the list, and send it on every stream."""
        self._serialised = self._devices.SerializeToString()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def send(self, _request: bytes, _context: Context) -> AsyncIterator[bytes]:
        """Send the list now and after each change, until the stream ends."""
        while True:
            changed = self._changed
            yield self._serialised
            await changed.wait()


def constant(request: type[Message], answer: Message) -> "grpc.RpcMethodHandler[Any, Any]":
    """Return what reads requests of a kind and always answers the same."""

    async def answered(_request: Message, _context: Context) -> Message:
        return answer

    return grpc.unary_unary_rpc_method_handler(
        answered, request_deserializer=request.FromString, response_serializer=type(answer).SerializeToString
    )


async def serve(socket: Path, answers: Path, register: tuple[Path, str] | None, *, events: bool) -> None:
    """Serve until killed."""
    devices = DeviceList((answers / "devices").read_bytes())
    methods = {
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(devices.send),
        "GetDevicePluginOptions": constant(api.Empty, api.DevicePluginOptions(get_preferred_allocation_available=True)),
        "GetPreferredAllocation": constant(
            api.PreferredAllocationRequest,
            api.PreferredAllocationResponse.FromString((answers / "preferred").read_bytes()),
        ),
        "Allocate": constant(api.AllocateRequest, api.AllocateResponse.FromString((answers / "allocate").read_bytes())),
    }
    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    if events:
        loop = asyncio.get_running_loop()
        report = lambda: loop.call_soon_threadsafe(devices.change)  # noqa: E731 - it is only passed on
        threading.Thread(target=watch_events, args=(report,), daemon=True).start()
    if register is not None:
        kubelet, resource = register
        request = api.RegisterRequest(version=API_VERSION, endpoint=str(socket), resource_name=resource)
        async with grpc.aio.insecure_channel(f"unix:{kubelet}") as channel:
            await rpc.RegistrationStub(channel).Register(request)
    await server.wait_for_termination()


def watch_events(report: Callable[[], object]) -> None:
    """Call `report` upon every event of a GPU, until the process ends."""
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
        report()


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
