"""A lock on a file that lasts until the locking process ends, in any way."""

import contextlib
import errno
import fcntl
import os
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.regular_file import open_regular

_FLOCK = struct.Struct("hhqqi0q")
"""`struct flock` of 64-bit Linux: kind, whence, start, length (0: whole file), process (0: open-file-description)."""


class LockedError(GpushareError):
    """The file is locked already; `holder` names the holder, ready for a message, empty for an unknown holder."""

    def __init__(self, path: Path, holder: str) -> None:
        """Report that the file at `path` is locked by `holder`."""
        super().__init__(f"{path} is locked{holder}")
        self.holder = holder


class Lock:
    """An exclusive lock of this process until `close`, or until the process ends in any way.

    The kernel keeps the lock (an open-file-description lock, see fcntl(2)). The lock therefore also holds between
    containers that share the directory but cannot see the processes of one another. Programs run by this process do
    not inherit the lock.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Own `descriptor`, the holder of the lock on the file at `path`."""
        self._path = path
        self._descriptor: int | None = descriptor

    @property
    def stands(self) -> bool:
        """Whether the lock is open and on the present file at the path, not on a file that was replaced."""
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.lstat())
        except OSError:
            return False

    def close(self) -> None:
        """Give the lock up; a second call does nothing."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        try:
            # Closing alone would leave the lock to a forked child with a copy of the descriptor.
            _set(descriptor, fcntl.F_UNLCK)
        finally:
            os.close(descriptor)

    def __enter__(self) -> Self:
        """Return the lock itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the lock up."""
        self.close()


def lock(path: Path, *, signed: bool = True) -> Lock:
    """Lock the file at `path` for this process; the lock can also be used as a context manager.

    A lock that lasts for milliseconds can do without the signature, which names the holder to people and takes longer.

    Raises LockedError when the file is locked already, also by another part of this process. Raises OSError when the
    file can be neither opened for writing nor made (no directory, a read-only directory, a full disk), and for a
    symbolic link or a file with a second name: the target of a link is never touched.
    """
    descriptor = _open(path)
    try:
        _set(descriptor, fcntl.F_WRLCK)
    except BlockingIOError:
        error = LockedError(path, _holder(descriptor))
        os.close(descriptor)
        raise error from None
    except OSError:
        os.close(descriptor)
        raise
    if signed:
        _sign(descriptor)
    return Lock(path, descriptor)


def is_locked(path: Path) -> bool:
    """Return whether the file at `path` is locked; raise OSError when the file cannot be opened or asked."""
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # F_OFD_GETLK takes no lock and blocks nobody.
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(descriptor)
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def _open(path: Path) -> int:
    # No other user may open the file: whoever can open a file can lock the file.
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT, 0o600)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EMLINK, "has a second name (a hard link); remove it", str(path))
    return descriptor


def _set(descriptor: int, kind: int) -> None:
    """Lock or unlock the whole file; raise BlockingIOError where the file is locked already."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))


def _sign(descriptor: int) -> None:
    """Write the process number and the host into the file: the number alone means little between containers."""
    # For people only: a lock holds without a signature, too.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n{socket.gethostname()}\n".encode(), 0)


def _holder(descriptor: int) -> str:
    """Return the process and host in the file, ready for a message; empty for a file without a signature."""
    try:
        number, host = os.pread(descriptor, 512, 0).decode().splitlines()
    except (OSError, ValueError):
        return ""
    return f" (process {number} on {host})" if number.isdecimal() and host.isprintable() else ""
