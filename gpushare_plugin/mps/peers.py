"""The processes connected to a process over Unix sockets, to find out who keeps an MPS control daemon busy.

Whoever holds one end of a connection can ask the kernel for the process at the other end (SO_PEERCRED, unix(7)).
`peers` therefore borrows the ends held by the examined process (pidfd_getfd(2), Linux 5.6). Tables of sockets do not
help: a table lists the sockets of one network namespace, and pods have network namespaces of their own.
"""

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from gpushare_plugin.base.structs import Struct

_PIDFD_GETFD = 438
"""The number of the system call pidfd_getfd, the same on every architecture."""

_libc = ctypes.CDLL(None, use_errno=True)
_credentials = struct.Struct("3i")


class Peer(Struct, frozen=True):
    """The process at the other end of a connection."""

    pid: int
    """The number of the process; 0 if the process cannot be seen from here."""
    user: int
    """The user ID of the process."""

    def __str__(self) -> str:
        """Return name, user and control group of the process for people; the control group names the pod."""
        entry = Path("/proc", str(self.pid))
        name = _first_line(entry / "comm")
        group = _first_line(entry / "cgroup").rpartition(":")[2]
        return f"process {self.pid} ({name!r}, user {self.user}, control group {group or 'not known'})"


def peers(process: int) -> set[Peer]:
    """Return the processes connected to `process`; raises OSError if access is denied or `process` has ended."""
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
    """Return the peer of a socket of the process; None for sockets without a peer, or not of the Unix family."""
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
