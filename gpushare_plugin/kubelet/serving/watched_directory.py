"""A directory with sockets of the kubelet or of plugins: listeners are called when a file there changes."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog
from asyncinotify import Inotify, Mask

_log = structlog.get_logger()

Identity = tuple[int, int]
"""Inode and modification time in ns: together they distinguish files of the same name, as inodes are reused."""

LOOK_EVERY = 1.0
"""Seconds between looks at a directory without inotify: out of inotify instances, or the directory is missing."""

LOOK_ANYWAY = 10.0
"""Seconds between looks at a directory with inotify, which does not report the mount of a file system."""

_CHANGES = Mask.CREATE | Mask.DELETE | Mask.MOVE | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR


def identity(file: Path) -> Identity | None:
    """Return the present identity of `file`, mostly a socket; None for a missing file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


class WatchedDirectory:
    """A directory in which sockets come and go."""

    def __init__(self, path: Path) -> None:
        """Look at `path`, which need not exist yet."""
        self.path = path
        self._listeners: list[Callable[[], None]] = []

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
