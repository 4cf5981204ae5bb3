"""The choice of a config: from one file, or from a directory of named configs, for example a mounted ConfigMap.

The chosen files are watched for changes.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.loading.content import read_content
from gpushare_plugin.config.loading.load import Loaded, Override, load
from gpushare_plugin.config.schema.places import Finding, PlacedValue, SettingPlaces, SourcePlace

_OLD_ENOUGH = 2_000_000_000
"""Nanoseconds between two writes of a file that give different modification times on any file system."""


# Kubernetes never writes to the files of a mounted ConfigMap: it renames the symlink `..data` to another directory. A
# watch of the file by inotify does not notice the change, and the number of inotify watches is limited. Therefore the
# content is read and compared at intervals.


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


Fallback = Literal["named", "single", "empty"]
"""A rule used if no config is requested.

`named` takes the config `NAMED_FALLBACK`, `single` the only named config, and `empty` the config without a file.
"""

NAMED_FALLBACK = "default"
"""The name of the config taken by the fallback `named`."""


class Configs(Struct, frozen=True):
    """The configs to choose from; the rules have the names and the order of NVIDIA's config-manager."""

    overrides: Sequence[Override] = ()
    """Values put over every loaded config."""
    file: Path | None = None
    """The file of the only config, if there is no `directory`; None for the default config."""
    directory: Path | None = None
    """The directory of the named configs, with a file for each; None if there are no named configs."""
    default: str | None = None
    """The name of the config to load if none is requested; None to try the `fallbacks`."""
    fallbacks: tuple[Fallback, ...] = ()
    """The rules to try in turn if no config is requested and `default` is None."""

    def names(self) -> frozenset[str]:
        """Return the names of the named configs that exist now."""
        return frozenset(_files(self.directory)) if self.directory else frozenset()

    def load(self, name: str | None = None) -> Loaded:
        """Load the named config `name`, or the config to use if none is requested.

        Raises ConfigError if a file cannot be read. A missing config is a problem in the result.
        """
        if self.directory is None:
            if name is not None:
                return _nothing(f'found no config "{name}"; named configs need --config-directory')
            return load(self.file, self.overrides)
        files = _files(self.directory)
        requested = name or self.default
        if requested is None:
            return self._fall_back(files)
        if requested not in files:
            hint = _hint(requested, files)
            return _nothing(f'{self.directory}: found no config "{requested}"; {hint}there are {_listed(files)}')
        return load(files[requested], self.overrides)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the files have changed; never returns if there is a file or a directory."""
        if self.directory is not None:
            await watch_directory(self.directory, changed)
        elif self.file is not None:
            await watch_content(self.file, changed)

    def _fall_back(self, files: dict[str, Path]) -> Loaded:
        for fallback in self.fallbacks:
            if fallback == "named" and NAMED_FALLBACK in files:
                return load(files[NAMED_FALLBACK], self.overrides)
            if fallback == "single" and len(files) == 1:
                return load(next(iter(files.values())), self.overrides)
            if fallback == "empty":
                return load(None, self.overrides)
        return _nothing(
            f"{self.directory}: no node label names a config, --default-config is not set, and no fallback "
            f"({', '.join(self.fallbacks) or 'none given'}) finds one; there are {_listed(files)}"
        )


def _files(directory: Path) -> dict[str, Path]:
    """Return the files of a directory by name, without hidden files, which belong to the mount of a ConfigMap."""
    try:
        return {path.name: path for path in sorted(directory.iterdir()) if path.name[:1] != "." and path.is_file()}
    except OSError:
        return {}


def _hint(requested: str, files: dict[str, Path]) -> str:
    """Return a hint to a file with the requested name plus a suffix: the suffix is a part of the config's name."""
    meant = [name for name, file in files.items() if file.suffix and file.stem == requested]
    return f'did you mean "{meant[0]}"? The name of a config is that of its whole file; ' if meant else ""


def _listed(files: dict[str, Path]) -> str:
    return ", ".join(files) or "none"


def _nothing(message: str) -> Loaded:
    """Return a result without a config, with `message` as the problem of the choice."""
    place = SourcePlace("choice of a config")
    return Loaded(None, (Finding(place, message),), (), SettingPlaces(PlacedValue(place, place, {})))
