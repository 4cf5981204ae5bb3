"""The socket of one resource."""

import hashlib

from gpushare_plugin.base.files.socket_path import LONGEST_SOCKET_PATH
from gpushare_plugin.kubelet.device_plugin.directory import SECOND, SOCKET_PREFIX, PluginDirectory
from gpushare_plugin.kubelet.device_plugin.service import DevicePluginService
from gpushare_plugin.kubelet.serving.own_socket import Options, OwnSocket

SERVER_OPTIONS: Options = (
    # The kubelet sends a whole device list back as `Available`, up to 4 MiB.
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    # A kubelet has a ListAndWatch call at any time; other connections keep no descriptor for long.
    ("grpc.max_connection_idle_ms", 60_000),
)
"""Options of each resource's gRPC server."""


class PluginSocket(OwnSocket):
    """Serves one resource on a socket of its own in the plugin directory."""

    def __init__(self, service: DevicePluginService, directory: PluginDirectory) -> None:
        """Prepare a socket for the resource of `service`; nothing is served yet."""
        super().__init__(directory, socket_name(service.resource.name, directory), service.add_to, SERVER_OPTIONS)
        self._claim = directory.claim

    async def serve(self) -> None:
        """Serve on the socket, in place of any existing socket; raises AlreadyServedError and OSError."""
        if not self._directory.path.is_dir():
            raise OSError(f"{self._directory.path} is not a directory; is the kubelet's plugin directory mounted here?")
        self._claim()
        await super().serve()


def socket_name(resource_name: str, directory: PluginDirectory) -> str:
    """Return the file name of a resource's socket: the name of the resource, shortened if the path gets too long."""
    readable = f"{SOCKET_PREFIX}{resource_name.replace('/', '_')}"
    room = LONGEST_SOCKET_PATH - len(bytes(directory.path)) - len(f"/{SECOND}.sock")
    if len(readable) > room:
        digest = hashlib.blake2s(resource_name.encode(), digest_size=4).hexdigest()
        readable = f"{readable[: max(0, room - len(digest) - 1)]}-{digest}"
    return f"{readable}{directory.ending}.sock"
