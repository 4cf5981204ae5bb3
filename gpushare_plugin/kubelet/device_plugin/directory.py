"""The kubelet's plugin directory: one daemon at a time serves there; listeners are called when a file there changes."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog
from asyncinotify import Inotify, Mask

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.lock import Lock, LockedError, lock
from gpushare_plugin.base.files.socket_path import why_too_long

_log = structlog.get_logger()

Identity = tuple[int, int]
"""Inode and modification time in ns: together they distinguish files of the same name, as inodes are reused."""

LOOK_EVERY = 1.0
"""Seconds between looks at a directory without inotify: out of inotify instances, or the directory is missing."""

LOOK_ANYWAY = 10.0
"""Seconds between looks at a directory with inotify, which does not report the mount of a file system."""

_CHANGES = Mask.CREATE | Mask.DELETE | Mask.MOVE | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR

KUBELET_SOCKET = "kubelet.sock"
"""Name of the kubelet's own socket."""
SOCKET_PREFIX = "gpushare-"
"""Prefix of the names of all our sockets."""
SECOND = "~2"
"""Ends the names of the sockets of a daemon that follows a daemon with names without this end.

Plugins of one resource need sockets of different names while one follows another (kubernetes#135437): from 1.37 on, a
kubelet knows by the name whose stream has ended. No name of a resource has this character.
"""

_LONGEST_NAME = f"gpushare-0123456789abcdef-01234567{SECOND}.sock"


def refuse_long_path(directory: Path) -> None:
    """Raise GpushareError if the path of a socket in `directory` would be too long."""
    if reason := why_too_long(directory, _LONGEST_NAME, "the plugin directory"):
        raise GpushareError(f"{reason}: mount it elsewhere")


def identity(file: Path) -> Identity | None:
    """Return the present identity of `file`, mostly a socket; None for a missing file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


class PluginDirectory:
    """The directory with the sockets of the kubelet and its plugins."""

    def __init__(self, path: Path) -> None:
        """Look at `path`, which need not exist yet."""
        self.path = path
        self._listeners: list[Callable[[], None]] = []
        self._claim: Lock | None = None
        self._swept = False
        self._left = False
        self.ending = ""
        """Ends the names of our sockets, before `.sock`: SECOND beside a daemon that answers at sockets without."""

    def claim(self) -> None:
        """Claim this directory, until `close`, so that no other daemon serves it.

        Raises AlreadyServedError if another daemon has the claim, or is to have the claim since `leave`, and OSError if
        the directory is missing or unusable.
        """
        if self._left:
            raise AlreadyServedError(f"another gpushare takes {self.path} over from this one")
        if self._claim is None or not self._claim.stands:
            self.close()
            self._claim = claim(self.path)
            self._sweep()

    def _sweep(self) -> None:
        """Remove, once, the sockets of a killed daemon: no other program makes sockets of these names."""
        if self._swept:
            return
        self._swept = True
        for path in self.path.glob(f"{SOCKET_PREFIX}*.sock"):
            if not answers(path):
                with contextlib.suppress(OSError):  # a directory that is read-only by now
                    path.unlink()
            elif not path.stem.endswith(SECOND):
                self.ending = SECOND

    def leave(self) -> None:
        """Give the claim up for good, to a daemon that takes over; our sockets stay."""
        self._left = True
        self.close()

    def close(self) -> None:
        """Give the claim up."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    @contextlib.contextmanager
    def notifying(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener`, until the context ends, whenever a socket may have been added, removed or replaced.

        A listener may know the change already: the listener has to compare.
        """
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def identity(self, name: str) -> Identity | None:
        """Return the present identity of the file `name`; None for a missing file."""
        return identity(self.path / name)

    async def watch(self) -> None:
        """Call the listeners at every change, and at intervals without a change, until cancelled."""
        with contextlib.ExitStack() as stack:
            inotify = self._notifications(stack)
            while True:
                # The watch comes first: changes between look and wait must be reported.
                reported = inotify is not None and self._follow(inotify)
                for listener in tuple(self._listeners):
                    listener()
                await self._wait(inotify if reported else None)

    def _notifications(self, stack: contextlib.ExitStack) -> Inotify | None:
        try:
            return stack.enter_context(Inotify())
        except OSError as error:
            _log.warning(
                "inotify_unavailable",
                error=str(error),
                remedy="raise fs.inotify.max_user_instances",
            )
            return None

    def _follow(self, inotify: Inotify) -> bool:
        """Watch the directory, which may be a new one; return whether a watch is possible."""
        try:
            # Adding a watch twice changes nothing. The directory may have been created again since the last time.
            inotify.add_watch(self.path, _CHANGES)
        except OSError:
            return False
        return True

    @staticmethod
    async def _wait(inotify: Inotify | None) -> None:
        if inotify is None:
            await asyncio.sleep(LOOK_EVERY)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_ANYWAY):
                await inotify.get()


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


LOCK_FILE = "gpushare.lock"
"""Name of the locked file. The file is never removed: a starting kubelet removes only sockets."""


class AlreadyServedError(GpushareError):
    """Another gpushare has claimed the plugin directory; the message names both, and the remedy."""


def claim(directory: Path) -> Lock:
    """Claim the plugin directory for this process.

    Raises AlreadyServedError if another daemon, or another part of this process, has the claim, and OSError like
    `lock`.
    """
    try:
        return lock(directory / LOCK_FILE)
    except LockedError as error:
        raise AlreadyServedError(
            f"another gpushare{error.holder} serves {directory}, and there can be only one; stop it first "
            "(during a rolling update, wait until the old pod has ended)"
        ) from None
