"""The socket of one resource."""

import asyncio
import contextlib
import hashlib
import os
import socket
import struct

import grpc

from gpushare_plugin.base.files.socket_path import LONGEST_SOCKET_PATH
from gpushare_plugin.kubelet.device_plugin.directory import (
    SECOND,
    SOCKET_PREFIX,
    Identity,
    PluginDirectory,
    answers,
)
from gpushare_plugin.kubelet.device_plugin.service import DevicePluginService

MOST_CONNECTIONS = 16
"""Connections to the socket of a resource at a time; one more is closed."""

SERVER_OPTIONS = (
    # The kubelet sends a whole device list back as `Available`, up to 4 MiB.
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    ("grpc.so_reuseport", 0),
    # A kubelet has one connection to each socket, with a ListAndWatch call at any time. Only root of the node can open
    # more connections, and these keep no descriptor for long.
    ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 60_000),
)
"""Options of each resource's gRPC server."""


_CREDENTIALS = struct.Struct("3i")
"""`struct ucred`: process, user and group."""


class PluginSocket:
    """Serves one resource on a socket of its own in the plugin directory."""

    def __init__(self, service: DevicePluginService, directory: PluginDirectory) -> None:
        """Prepare a socket for the resource of `service`; nothing is served yet."""
        self.name = socket_name(service.resource.name, directory)
        self.path = directory.path / self.name
        self._service = service
        self._directory = directory
        self._server: grpc.aio.Server | None = None
        self._bound: Identity | None = None

    @property
    def exists(self) -> bool:
        """Whether a socket of this name exists, bound by this process or not."""
        return self._directory.identity(self.name) is not None

    @property
    def bound(self) -> bool:
        """Whether this process has bound the socket and not stopped; the file may be gone or replaced by now."""
        return self._bound is not None

    @property
    def served(self) -> bool:
        """Whether the existing socket is the socket bound by this process."""
        return self._bound is not None and self._directory.identity(self.name) == self._bound

    async def serve(self) -> None:
        """Serve on the socket, in place of any existing socket; raises AlreadyServedError and OSError."""
        if not self._directory.path.is_dir():
            raise OSError(f"{self._directory.path} is not a directory; is the kubelet's plugin directory mounted here?")
        self._directory.claim()
        # Stop fully first: a stopping gRPC server removes its path, even if another server has bound the path since.
        await self.stop()
        server = grpc.aio.server(options=SERVER_OPTIONS)
        self._service.add_to(server)
        try:
            server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError as error:
            raise OSError(
                f"{self.path} cannot be created: may this process write there, and is there space?"
            ) from error
        try:
            await _start(server)
        finally:
            self._server = server
            bound = self._directory.identity(self.name)
            # A starting kubelet wipes the directory, often at the same time as daemons start.
            ours = bound is not None and answers(self.path, _is_served_here)
            self._bound = bound if ours and self._directory.identity(self.name) == bound else None
        if self._bound is None:
            raise OSError(f"{self.path} was removed or replaced as soon as it was created")

    @property
    def serving(self) -> bool:
        """Whether a server runs; a server that is being stopped does not count."""
        return self._server is not None

    async def stop(self) -> None:
        """End every stream at once, and remove the socket if bound by this process; stopping twice is fine."""
        if self._server is None:
            return
        server, self._server = self._server, None
        bound, self._bound = self._bound, None
        await server.stop(grace=None)
        if bound is not None and self._directory.identity(self.name) == bound:
            # In a directory that has become read-only the socket stays; the next daemon replaces the socket.
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)


async def _start(server: grpc.aio.Server) -> None:
    """Start a server to the end, also when cancelled: gRPC cannot stop a server in the middle of its start."""
    starting = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([starting])
        raise


def _is_served_here(connection: socket.socket) -> bool:
    """Return whether this process serves at the other end of a connection (SO_PEERCRED, see unix(7))."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[0] == os.getpid())


def socket_name(resource_name: str, directory: PluginDirectory) -> str:
    """Return the file name of a resource's socket: the name of the resource, shortened if the path gets too long."""
    readable = f"{SOCKET_PREFIX}{resource_name.replace('/', '_')}"
    room = LONGEST_SOCKET_PATH - len(bytes(directory.path)) - len(f"/{SECOND}.sock")
    if len(readable) > room:
        digest = hashlib.blake2s(resource_name.encode(), digest_size=4).hexdigest()
        readable = f"{readable[: max(0, room - len(digest) - 1)]}-{digest}"
    return f"{readable}{directory.ending}.sock"
