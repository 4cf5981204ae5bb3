"""Detects that the content of the config file, or of a directory of them, has changed.

A Kubernetes ConfigMap mount never writes to a file: it renames the symlink `..data` to another directory. So the
content is read and compared at intervals; inotify does not see this at the file, and its watches are limited.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from gpushare_plugin.config.loading.content import read_content

_OLD_ENOUGH = 2_000_000_000
"""Nanoseconds after which a file written again has a different time, on any file system."""


async def watch_content(file: Path, changed: Callable[[], None], every: float = 1.0) -> None:
    """Call `changed` whenever the content of `file` changes; never returns, and looks every `every` seconds.

    The first look is the content to compare with, so start before the file is used. New content counts once two looks
    in a row have found it, so that a file half written is no change. A file that cannot be read is one, so that whoever
    reads it says why.
    """
    await _watch(_Look(file).content, changed, every)


async def watch_directory(directory: Path, changed: Callable[[], None], every: float = 1.0) -> None:
    """Call `changed` whenever a file of `directory` is added, removed or changed; otherwise as `watch_content`."""
    looks: dict[str, _Look] = {}
    names: list[str] = []

    def contents() -> dict[str, bytes | None]:
        # A directory that cannot be listed does not mean that there are no configs.
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
    """Reads the file again only where it may have changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._identity: tuple[int, ...] | None = None
        self._content: bytes | None = None

    def content(self) -> bytes | None:
        """Return what the file holds now, None while it cannot be read."""
        try:
            status = self._file.stat()
            identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if identity != self._identity:
                self._content = read_content(self._file)
                # Written twice within one tick of its clock, a file looks the same: one so new is read once more.
                self._identity = identity if time.time_ns() - status.st_mtime_ns > _OLD_ENOUGH else None
        except OSError:
            self._identity = None
            return None
        return self._content
