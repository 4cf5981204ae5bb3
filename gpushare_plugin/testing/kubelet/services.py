"""What a kubelet serves between a start and a stop."""

from pathlib import Path
from typing import TYPE_CHECKING

from gpushare_plugin.kubelet.api import deviceplugin_pb2_grpc, podresources_pb2_grpc
from gpushare_plugin.testing.kubelet.device_manager.registry import Registry
from gpushare_plugin.testing.kubelet.pod_resources import PodResourcesLister
from gpushare_plugin.testing.kubelet.socket_server import SocketServer

if TYPE_CHECKING:
    from gpushare_plugin.testing.kubelet.dra_manager.dra import DraManager


class Services:
    """The two sockets of one kubelet, and its connections to plugins."""

    def __init__(
        self,
        registry: Registry,
        lister: PodResourcesLister,
        dra: "DraManager | None",
        *,
        plugins: Path,
        pod_resources: Path,
    ) -> None:
        """Prepare to let plugins register at the socket `plugins`, and to answer at the socket `pod_resources`."""
        self._registry = registry
        self._dra = dra
        self._plugins, self._pod_resources = SocketServer(plugins), SocketServer(pod_resources)
        podresources_pb2_grpc.add_PodResourcesListerServicer_to_server(lister, self._pod_resources.grpc)
        deviceplugin_pb2_grpc.add_RegistrationServicer_to_server(registry, self._plugins.grpc)

    async def start(self) -> None:
        """Remove the sockets in the plugin directory and serve; raises OSError, and GpushareError for a long path."""
        wipe_sockets(self._plugins.path.parent)
        for server in (self._pod_resources, self._plugins):
            await server.start()
        if self._dra is not None:
            self._dra.start()

    async def stop(self, *, leave_sockets: bool) -> None:
        """End all connections and tasks; with `leave_sockets` both sockets stay behind dead."""
        try:
            for server in (self._pod_resources, self._plugins):
                await server.stop(leave_socket=leave_sockets)
        finally:
            if self._dra is not None:
                await self._dra.stop()
            await self._registry.close()


def wipe_sockets(directory: Path) -> None:
    """Remove every socket in `directory`, which is made if it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if path.is_socket():
            path.unlink()
