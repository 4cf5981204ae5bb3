"""The kubelet's registration service and nothing else of it, so that nothing else is measured."""

import asyncio
import time
from pathlib import Path
from typing import NamedTuple

import grpc

from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from gpushare_plugin.kubelet.device_plugin.directory import KUBELET_SOCKET
from gpushare_plugin.testing.kubelet.socket_server import SocketServer
from gpushare_plugin.testing.running import Running


class Registered(NamedTuple):
    """A registration as it came, and when (seconds of `time.perf_counter`)."""

    at: float
    request: api.RegisterRequest


class RegistrationServer(rpc.RegistrationServicer, Running):
    """Takes every registration; a context manager that serves in the plugin directory `directory`."""

    def __init__(self, directory: Path) -> None:
        """Prepare to serve."""
        self.directory = directory
        self._requests: asyncio.Queue[Registered] = asyncio.Queue()
        self._server: SocketServer | None = None

    async def start(self) -> None:
        """Remove all sockets in the directory, as the kubelet does, and serve: `kubelet.sock` appears last."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for socket in self.directory.glob("*.sock"):
            socket.unlink()
        self._server = SocketServer(self.directory / KUBELET_SOCKET)
        rpc.add_RegistrationServicer_to_server(self, self._server.grpc)
        await self._server.start()

    async def stop(self) -> None:
        """End, and take the socket away."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(leave_socket=False)

    async def next(self) -> Registered:
        """Wait for the next registration."""
        return await self._requests.get()

    async def Register(  # noqa: N802 - fixed by gRPC
        self,
        request: api.RegisterRequest,
        context: grpc.aio.ServicerContext[api.RegisterRequest, api.Empty],  # noqa: ARG002 - fixed by gRPC
    ) -> api.Empty:
        """Note that it was called."""
        self._requests.put_nowait(Registered(time.perf_counter(), request))
        return api.Empty()
