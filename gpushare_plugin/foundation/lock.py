"""A lock on a file that lasts as long as the process that took it, however that ends."""

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from gpushare_plugin.foundation.errors import GpushareError


class LockedError(GpushareError):
    """Somebody else has the lock; `holder` says who, ready for a message, and is empty where that is not known."""

    def __init__(self, path: Path, holder: str) -> None:
        """Tell that the file at `path` is locked by `holder`."""
        super().__init__(f"{path} is locked{holder}")
        self.holder = holder


class Lock:
    """A lock that is ours alone until `close`, or until this process ends, however it ends.

    The kernel keeps it (flock(2)), so it holds between containers that share the directory, too, where neither sees
    the other's processes. A program that this process runs does not inherit it.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Own `descriptor`, which has the lock on the file at `path`."""
        self._path = path
        self._descriptor: int | None = descriptor

    @property
    def stands(self) -> bool:
        """Whether the lock is on the file that is there now: not closed, and the file not made anew."""
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError:
            return False

    def close(self) -> None:
        """Give the lock up; nothing happens the second time."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        try:
            # Closing alone would leave the lock to a forked child that still has the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
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

    Raises LockedError when somebody else has it, be it another part of this process; and OSError when the file can be
    neither opened nor made: no such directory, one that is read-only, a full disk. A file that is there already is
    enough, also where nothing can be written.
    """
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
    """Tell whether somebody has locked the file at `path`; raises OSError when that cannot be found out.

    For a moment this takes a shared lock: whoever takes the lock itself must try more than once.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _open(path: Path) -> int:
    try:
        # Nobody else may open it, for whoever can may lock it. Programs we run do not get it (PEP 446).
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        if not path.exists():
            raise
        return os.open(path, os.O_RDONLY)


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
