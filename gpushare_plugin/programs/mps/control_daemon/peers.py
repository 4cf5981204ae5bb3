"""Who is connected to a process over Unix sockets, which shows who keeps an unresponsive MPS control daemon busy.

The kernel says it to whoever has the process's own end of a connection (SO_PEERCRED, unix(7)), so that end is borrowed
(pidfd_getfd(2), Linux 5.6). Tables of sockets do not: each lists one network namespace, and pods have their own.
"""

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from gpushare_plugin.foundation.structs import Struct

_PIDFD_GETFD = 438
"""The number of the system call, which is the same on every architecture."""

_libc = ctypes.CDLL(None, use_errno=True)
_credentials = struct.Struct("3i")


class Peer(Struct, frozen=True):
    """A process at the other end of a connection: its number, 0 where it cannot be seen from here, and its user."""

    pid: int
    user: int

    def __str__(self) -> str:
        """Return what a person needs to find it: its name, and its control group, which names the pod."""
        entry = Path("/proc", str(self.pid))
        name = _first_line(entry / "comm")
        group = _first_line(entry / "cgroup").rpartition(":")[2]
        return f"process {self.pid} ({name!r}, user {self.user}, control group {group or 'not known'})"


def peers(process: int) -> set[Peer]:
    """Return who is connected to a process; raises OSError where we may not look, or it has ended."""
    handle = os.pidfd_open(process)
    try:
        found = (_peer(handle, descriptor) for descriptor in _sockets(process))
        return {peer for peer in found if peer is not None}
    finally:
        os.close(handle)


def _sockets(process: int) -> Iterator[int]:
    for entry in Path("/proc", str(process), "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if str(entry.readlink()).startswith("socket:"):
                yield int(entry.name)


def _borrowed(handle: int, descriptor: int) -> socket.socket:
    ours = _libc.syscall(_PIDFD_GETFD, handle, descriptor, 0)
    if ours < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return socket.socket(fileno=ours)


def _peer(handle: int, descriptor: int) -> Peer | None:
    """Return who is at the other end of one of the process's sockets, None for a socket that has no such end."""
    try:
        end = _borrowed(handle, descriptor)
    except OSError as error:
        if error.errno == errno.EBADF:  # closed meanwhile
            return None
        raise
    with end:
        if end.family != socket.AF_UNIX or end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return None
        pid, user, _ = _credentials.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _credentials.size))
    return Peer(pid, user)


def _first_line(file: Path) -> str:
    try:
        return file.read_text(errors="replace").partition("\n")[0]
    except OSError:
        return ""
