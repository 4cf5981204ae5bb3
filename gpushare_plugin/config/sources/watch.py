"""Detects that the content of the config file, or of a directory of them, has changed.

A Kubernetes ConfigMap mount never writes to a file: it renames the symlink `..data` to another directory. So the
content is read and compared at intervals; inotify does not see this at the file, and its watches are limited.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from gpushare_plugin.config.loading.content import read_content
from gpushare_plugin.foundation.text import in_words

_log = structlog.get_logger()

_OLD_ENOUGH = 2_000_000_000
"""Nanoseconds after which a file written again has a different time, on any file system."""


async def watch_content(file: Path, changed: Callable[[], None], every: float = 1.0) -> None:
    """Call `changed` whenever the content of `file` changes; never returns, and looks every `every` seconds.

    The first look is the content to compare with, so start before the file is used. New content counts once two looks
    in a row have found it, so that a file half written is no change. Neither is a file that cannot be read.
    """
    await _watch(_Look(file).content, changed, every)


async def watch_directory(directory: Path, changed: Callable[[], None], every: float = 1.0) -> None:
    """Call `changed` whenever a file of `directory` is added, removed or changed; otherwise as `watch_content`."""
    looks: dict[str, _Look] = {}

    def contents() -> dict[str, bytes | None] | None:
        try:
            names = sorted(path.name for path in directory.iterdir() if path.name[:1] != ".")
        except OSError:
            return None
        return {name: looks.setdefault(name, _Look(directory / name)).content() for name in names}

    await _watch(contents, changed, every)


async def _watch(look: Callable[[], object], changed: Callable[[], None], every: float) -> None:
    known = look()
    pending: object = None
    while True:
        await asyncio.sleep(every)
        content = look()
        if content is None or content == known:
            pending = None
        elif content == pending:
            known, pending = content, None
            changed()
        else:
            pending = content


class _Look:
    """Reads the file again only where it may have changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._identity: tuple[int, ...] | None = None
        self._content: bytes | None = None
        self._reported = False

    def content(self) -> bytes | None:
        """Return what the file holds now, None while it cannot be read."""
        try:
            status = self._file.stat()
            identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if identity != self._identity:
                self._content = read_content(self._file)
                # Written twice within one tick of its clock, a file looks the same: one so new is read once more.
                self._identity = identity if time.time_ns() - status.st_mtime_ns > _OLD_ENOUGH else None
        except OSError as error:
            self._identity = None
            if not self._reported:
                _log.error("config_unreadable", path=str(self._file), reason=error.strerror or in_words(error))
            self._reported = True
            return None
        if self._reported:
            _log.info("config_readable", path=str(self._file))
        self._reported = False
        return self._content
