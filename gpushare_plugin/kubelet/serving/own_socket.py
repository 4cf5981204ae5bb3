"""A gRPC server on a socket of its own, which is known again among other sockets of the same name."""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc

from gpushare_plugin.kubelet.serving.watched_directory import Identity, WatchedDirectory

MOST_CONNECTIONS = 16
"""Connections to a socket at a time; one more is closed."""

Options = Sequence[tuple[str, int]]
"""Options of a gRPC server (grpc_types.h)."""

_LIMITS: Options = (
    ("grpc.so_reuseport", 0),
    # A kubelet has one connection to each socket. Only root of the node can open more connections.
    ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 5_000),
)

_CREDENTIALS = struct.Struct("3i")
"""`struct ucred`: process, user and group."""


class OwnSocket:
    """Serves on a socket that this process makes, and removes only while the socket is the one made here."""

    def __init__(
        self, directory: WatchedDirectory, name: str, add_to: Callable[[grpc.aio.Server], None], options: Options
    ) -> None:
        """Prepare a socket; `add_to` adds services to a server with `options`. Nothing is served yet."""
        self.name = name
        self.path = directory.path / name
        self._directory = directory
        self._add_to = add_to
        self._options = (*_LIMITS, *options)
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
        """Serve on the socket, in place of any existing socket; raises OSError."""
        # Stop fully first: a stopping gRPC server removes its path, even if another server has bound the path since.
        await self.stop()
        server = grpc.aio.server(options=self._options)
        self._add_to(server)
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

    async def stop(self, grace: float | None = None) -> None:
        """Stop serving, and remove the socket if bound by this process; stopping twice is fine.

        Calls under way end at once, or have `grace` seconds to end.
        """
        if self._server is None:
            return
        server, self._server = self._server, None
        bound, self._bound = self._bound, None
        await server.stop(grace)
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


def answers(path: Path, is_right: Callable[[socket.socket], bool] = lambda _: True) -> bool:
    """Return whether a program listens on the socket at `path`, and `is_right` is true of a connection to that program.

    A program whose queue of waiting connections is full counts as right.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.0)
        try:
            connection.connect(str(path))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return is_right(connection)
