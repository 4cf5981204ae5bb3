"""The claim on a plugin directory: one daemon serves it at a time."""

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from gpushare_plugin.errors import GpushareError

LOCK_FILE = "gpushare.lock"
"""Name of the file that is locked. It stays for ever; the kubelet, when it starts, wipes sockets only."""


class AlreadyServedError(GpushareError):
    """Another gpushare has claimed the plugin directory; the message names both and what to do."""


class Claim:
    """A plugin directory that is ours alone until `close`, or until this process ends, however it ends.

    The kernel keeps the claim (flock(2)), so it holds between containers that share the directory, too, where neither
    sees the other's processes. A program that this process runs does not inherit it.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Own `descriptor`, which has the lock on the file at `path`."""
        self._path = path
        self._descriptor: int | None = descriptor

    @property
    def stands(self) -> bool:
        """Whether the claim is on the directory that is there now: not closed, and the lock file not made anew."""
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError:
            return False

    def close(self) -> None:
        """Give the directory up; nothing happens the second time."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        try:
            # Closing alone would leave the lock to a forked child that still has the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def __enter__(self) -> Self:
        """Return the claim itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the directory up."""
        self.close()


def claim(directory: Path) -> Claim:
    """Claim the plugin directory for this process; the claim can also be used as a context manager.

    Raises AlreadyServedError when another daemon, or another part of this process, has it; and OSError when the lock
    file can be neither opened nor made: no such directory, one that is read-only, a full disk. A lock file that is
    there already is enough, also where nothing can be written.
    """
    path = directory / LOCK_FILE
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        message = (
            f"another gpushare{_holder(descriptor)} serves {directory}, and there can be only one; stop it first "
            "(during a rolling update this passes by itself)"
        )
        os.close(descriptor)
        raise AlreadyServedError(message) from None
    except OSError:
        os.close(descriptor)
        raise
    _sign(descriptor)
    return Claim(path, descriptor)


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
    # For people only: a claim that cannot be signed is a claim.
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
