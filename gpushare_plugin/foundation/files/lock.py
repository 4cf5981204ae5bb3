"""A lock on a file that lasts as long as the process that took it, however that ends."""

import contextlib
import errno
import fcntl
import os
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.files.regular_file import open_regular

_FLOCK = struct.Struct("hhqqi0q")
"""`struct flock` of a 64-bit Linux: kind, whence, start, length (0: the whole file) and process, 0 for these locks."""


class LockedError(GpushareError):
    """Another process has the lock; `holder` says who, ready for a message, and is empty where that is not known."""

    def __init__(self, path: Path, holder: str) -> None:
        """Report that the file at `path` is locked by `holder`."""
        super().__init__(f"{path} is locked{holder}")
        self.holder = holder


class Lock:
    """A lock that is ours alone until `close`, or until this process ends, however it ends.

    The kernel keeps it (an open-file-description lock, see fcntl(2)), so it holds between containers that share the
    directory, too, where neither sees the other's processes. A program that this process runs does not inherit it.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Own `descriptor`, which has the lock on the file at `path`."""
        self._path = path
        self._descriptor: int | None = descriptor

    @property
    def stands(self) -> bool:
        """Whether the lock is on the file that is there now: not closed, and the file not created again."""
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.lstat())
        except OSError:
            return False

    def close(self) -> None:
        """Give the lock up; nothing happens the second time."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        try:
            # Closing alone would leave the lock to a forked child that still has the descriptor.
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


def lock(path: Path) -> Lock:
    """Lock the file at `path` for this process; the lock can also be used as a context manager.

    Raises LockedError when it is locked already, also by another part of this process; and OSError when the file can be
    neither opened for writing nor made (no such directory, one that is read-only, a full disk), or is not a file of its
    own: what a link leads to is never touched.
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
    _sign(descriptor)
    return Lock(path, descriptor)


def is_locked(path: Path) -> bool:
    """Return whether the file at `path` is locked; raises OSError when that cannot be found out."""
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # Asking takes no lock, so it does not block anybody.
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(descriptor)
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def _open(path: Path) -> int:
    # Nobody else may open it, for whoever can may lock it.
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT, 0o600)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EMLINK, "has a second name (a hard link); remove it", str(path))
    return descriptor


def _set(descriptor: int, kind: int) -> None:
    """Lock or unlock the whole file; raises BlockingIOError where another has locked it."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))


def _sign(descriptor: int) -> None:
    """Write who we are: the process, and the host, since process numbers mean little between containers."""
    # For people only: a lock that cannot be signed is a lock.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n{socket.gethostname()}\n".encode(), 0)


def _holder(descriptor: int) -> str:
    """Return who signed the file, ready for a message; nothing where it does not say."""
    try:
        number, host = os.pread(descriptor, 512, 0).decode().splitlines()
    except (OSError, ValueError):
        return ""
    return f" (process {number} on {host})" if number.isdecimal() and host.isprintable() else ""
