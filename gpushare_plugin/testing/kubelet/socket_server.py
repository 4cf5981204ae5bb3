"""A gRPC server on a Unix socket that can also be left behind, the way a killed process leaves its own."""

import os
import tempfile
from pathlib import Path

import grpc

from gpushare_plugin.base.errors import GpushareError

PATH_LENGTH = 107
"""Bytes of the longest path Linux binds a socket to."""


class SocketServer:
    """Serves on `path`, replacing what is there.

    gRPC removes the path it bound when it stops, even if another server has bound it since, and never leaves it behind.
    So it binds a passing path, and `path` is a second name of that socket which only this class removes.
    """

    def __init__(self, path: Path) -> None:
        """Prepare a server to which services are added through `grpc`."""
        self.path = path
        self.grpc = grpc.aio.server()

    async def start(self) -> None:
        """Serve; once `path` appears, callers are let in.

        Raises OSError when the directory cannot be used, GpushareError when the path is too long for a socket.
        """
        if len(os.fsencode(self.path)) > PATH_LENGTH:
            raise GpushareError(
                f"{self.path} has {len(os.fsencode(self.path))} bytes, a socket's path at most {PATH_LENGTH}: "
                "give a directory with a shorter path, such as one right below /tmp"
            )
        directory = self.path.parent
        directory.mkdir(parents=True, exist_ok=True)
        # Not in the directory itself: whoever watches it sees nothing but the socket appear.
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".") as passing:
            bound = Path(passing, "s")
            self.grpc.add_insecure_port(f"unix:{bound}")
            await self.grpc.start()
            self.path.unlink(missing_ok=True)
            os.link(bound, self.path)

    async def stop(self, *, leave_socket: bool) -> None:
        """End every call and stop serving; the socket stays as a dead file where `leave_socket` says so."""
        await self.grpc.stop(grace=None)
        if not leave_socket:
            self.path.unlink(missing_ok=True)
