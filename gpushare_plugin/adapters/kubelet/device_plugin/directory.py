"""The kubelet's plugin directory: calls listeners at once when a file in it is created, removed or replaced."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog
from asyncinotify import Inotify, Mask

from gpushare_plugin.adapters.kubelet.device_plugin.claim import claim
from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.files.lock import Lock
from gpushare_plugin.foundation.files.socket_path import why_too_long

_log = structlog.get_logger()

Identity = tuple[int, int]
"""Distinguishes files of the same name: inode, and modification time in ns, since inodes are reused."""

LOOK_EVERY = 1.0
"""Seconds between looks at a directory without inotify: no instance may be left, or the directory may be missing."""

LOOK_ANYWAY = 10.0
"""Seconds between looks at a directory with inotify, which does not report that a file system is mounted there."""

_CHANGES = Mask.CREATE | Mask.DELETE | Mask.MOVE | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR

KUBELET_SOCKET = "kubelet.sock"
SOCKET_PREFIX = "gpushare-"
"""Prefix of the names of all our sockets."""

_LONGEST_NAME = "gpushare-0123456789abcdef-01234567.sock"


def refuse_long_path(directory: Path) -> None:
    """Raise GpushareError for a directory with too long a path for a socket in it."""
    if reason := why_too_long(directory, _LONGEST_NAME, "the plugin directory"):
        raise GpushareError(f"{reason}: mount it elsewhere")


def identity(file: Path) -> Identity | None:
    """Return the identity of `file`, mostly a socket, as it is now, None when there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


class PluginDirectory:
    """The directory where the kubelet and its plugins keep their sockets."""

    def __init__(self, path: Path) -> None:
        """Look at `path`, which need not exist yet."""
        self.path = path
        self._listeners: list[Callable[[], None]] = []
        self._claim: Lock | None = None
        self._swept = False

    def claim(self) -> None:
        """Make sure that no other daemon serves this directory, from now until `close`.

        Raises AlreadyServedError when one does, and OSError when the directory is missing or cannot be used.
        """
        if self._claim is None or not self._claim.stands:
            self.close()
            self._claim = claim(self.path)
            self._sweep()

    def _sweep(self) -> None:
        """Remove, once, the sockets of a daemon that was killed: no other program makes sockets of these names."""
        if self._swept:
            return
        self._swept = True
        for socket in self.path.glob(f"{SOCKET_PREFIX}*.sock"):
            with contextlib.suppress(OSError):  # a directory that is read-only by now
                socket.unlink()

    def close(self) -> None:
        """Give the claim up."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    @contextlib.contextmanager
    def notifying(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener`, as long as the context lasts, whenever a socket may have been added, removed or replaced.

        What a listener knows may be newer than what was last seen here, so it is for the listener to compare.
        """
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def identity(self, name: str) -> Identity | None:
        """Return the identity of the file `name` as it is now, None when there is none."""
        return identity(self.path / name)

    async def watch(self) -> None:
        """Call the listeners on every change, and now and then without one, until cancelled."""
        with contextlib.ExitStack() as stack:
            inotify = self._notifications(stack)
            while True:
                # Changes between look and wait must be reported, so the watch comes first.
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
        """Watch the directory that is there now; return whether that is possible."""
        try:
            # Adding a watch twice changes nothing; the directory may have been created again since.
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
