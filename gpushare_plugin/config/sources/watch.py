"""Detects changes in the content of the config file, or of a directory of config files.

Kubernetes never writes to the files of a mounted ConfigMap: it renames the symlink `..data` to another directory. A
watch of the file by inotify does not notice the change, and the number of inotify watches is limited. Therefore the
content is read and compared at intervals.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from gpushare_plugin.config.loading.content import read_content

_OLD_ENOUGH = 2_000_000_000
"""Nanoseconds between two writes of a file that give different modification times on any file system."""


async def watch_content(file: Path, changed: Callable[[], None], every: float = 1.0) -> None:
    """Look at `file` every `every` seconds, and call `changed` whenever the content has changed; never returns.

    The first look gives the content to compare with: start the watch before the file is used. New content counts when
    two looks in a row have found the same content; a half-written file is no change. An unreadable file is a change:
    the next reader then reports the reason.
    """
    await _watch(_Look(file).content, changed, every)


async def watch_directory(directory: Path, changed: Callable[[], None], every: float = 1.0) -> None:
    """Call `changed` whenever a file in `directory` is added, removed or changed; otherwise like `watch_content`."""
    looks: dict[str, _Look] = {}
    names: list[str] = []

    def contents() -> dict[str, bytes | None]:
        # An unreadable directory does not mean that there are no configs.
        with contextlib.suppress(OSError):
            names[:] = sorted(path.name for path in directory.iterdir() if path.name[:1] != ".")
        return {name: looks.setdefault(name, _Look(directory / name)).content() for name in names}

    await _watch(contents, changed, every)


async def _watch(look: Callable[[], object], changed: Callable[[], None], every: float) -> None:
    known = look()
    before = known
    while True:
        await asyncio.sleep(every)
        content = look()
        if content == before and content != known:
            known = content
            changed()
        before = content


class _Look:
    """Reads a file again only after a possible change."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._identity: tuple[int, ...] | None = None
        self._content: bytes | None = None

    def content(self) -> bytes | None:
        """Return the present content of the file; None for an unreadable file."""
        try:
            status = self._file.stat()
            identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if identity != self._identity:
                self._content = read_content(self._file)
                # Two writes within one tick of the file system's clock look the same: read a new file once more.
                self._identity = identity if time.time_ns() - status.st_mtime_ns > _OLD_ENOUGH else None
        except OSError:
            self._identity = None
            return None
        return self._content
