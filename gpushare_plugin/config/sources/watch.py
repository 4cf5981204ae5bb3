"""Notices when the content of the config file, or of a directory of them, has changed.

A Kubernetes ConfigMap mount never writes to a file: it renames the symlink `..data` to another directory. So it is the
content that counts, found by looking now and then; inotify would see none of that at the file, and its watches run out.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from gpushare_plugin.config.loading.content import read_content

_log = structlog.get_logger()

_SETTLED = 2_000_000_000
"""Nanoseconds after which a file that is written again bears another time, on any file system."""


async def watch_content(file: Path, changed: Callable[[], None], every: float = 1.0) -> None:
    """Call `changed` whenever the content of `file` is another than before; runs for ever, and looks every `every` s.

    The first look tells what "before" is, so begin before the file is used. New content counts once two looks in a row
    have found it, so that nobody is called for a file half written. A file that cannot be read is no change.
    """
    await _watch(_Look(file).content, changed, every)


async def watch_directory(directory: Path, changed: Callable[[], None], every: float = 1.0) -> None:
    """Call `changed` whenever a file of `directory` came, went, or has other content; otherwise as `watch_content`."""
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
        self._told = False

    def content(self) -> bytes | None:
        """Return what the file holds now, None while it cannot be read."""
        try:
            status = self._file.stat()
            identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if identity != self._identity:
                self._content = read_content(self._file)
                # Written twice within one tick of its clock, a file looks the same: one so new is read once more.
                self._identity = identity if time.time_ns() - status.st_mtime_ns > _SETTLED else None
        except OSError as error:
            self._identity = None
            if not self._told:
                _log.warning(
                    "config file cannot be read, the settings stay as they are",
                    file=str(self._file),
                    reason=error.strerror or str(error),
                )
            self._told = True
            return None
        self._told = False
        return self._content
