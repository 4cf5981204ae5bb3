"""Where the config comes from: one file, or a directory of named configs, as a mounted ConfigMap."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from gpushare_plugin.config.loading.load import Loaded, Override, load
from gpushare_plugin.config.places import Finding, PlacedValue, SettingPlaces, SourcePlace
from gpushare_plugin.config.sources.watch import watch_content, watch_directory
from gpushare_plugin.foundation.structs import Struct

Fallback = Literal["named", "single", "empty"]

NAMED_FALLBACK = "default"
"""The config that the fallback `named` takes."""


class Configs(Struct, frozen=True):
    """Either `file`, None for the default config, or a `directory` whose files are the named configs.

    `default` is the config where none is requested. Without a default, `fallbacks` are tried in turn: `named` takes the
    one called "default", `single` the only one, `empty` the default config. `overrides` are put over
    whatever is loaded. Names and order of these rules are those of NVIDIA's config-manager.
    """

    overrides: Sequence[Override] = ()
    file: Path | None = None
    directory: Path | None = None
    default: str | None = None
    fallbacks: tuple[Fallback, ...] = ()

    def names(self) -> frozenset[str]:
        """Return the names of the configs that can be requested now."""
        return frozenset(_files(self.directory)) if self.directory else frozenset()

    def load(self, name: str | None = None) -> Loaded:
        """Load the config of this name, or the default one.

        Raises ConfigError when a file cannot be read; a config that does not exist is a problem in the result.
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
        """Call `changed` whenever another config may have to be loaded; never returns if there is a file."""
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
    """Return the files of a directory by name; names with a dot first are a ConfigMap mount's own."""
    try:
        return {path.name: path for path in sorted(directory.iterdir()) if path.name[:1] != "." and path.is_file()}
    except OSError:
        return {}


def _hint(requested: str, files: dict[str, Path]) -> str:
    """Return a hint to a file that has the requested name but for a suffix, which is a part of the config's name."""
    meant = [name for name, file in files.items() if file.suffix and file.stem == requested]
    return f'did you mean "{meant[0]}"? The name of a config is that of its whole file; ' if meant else ""


def _listed(files: dict[str, Path]) -> str:
    return ", ".join(files) or "none"


def _nothing(message: str) -> Loaded:
    """Return no config, but what is wrong with the choice."""
    place = SourcePlace("choice of a config")
    return Loaded(None, (Finding(place, message),), (), SettingPlaces(PlacedValue(place, place, {})))
