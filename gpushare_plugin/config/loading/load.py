"""Loads a config: the file, with the options and environment variables over it, checked as a whole."""

from collections.abc import Sequence
from pathlib import Path as FilePath

from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.loading.mistakes import Mistakes, Override
from gpushare_plugin.config.loading.notices import notices
from gpushare_plugin.config.loading.recognition import not_a_config
from gpushare_plugin.config.places import Finding, PlacedValue, SettingPlaces, SourcePlace
from gpushare_plugin.config.schema import names
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.foundation.errors import MOST_PROBLEMS, Problem
from gpushare_plugin.foundation.structs import Struct

__all__ = ["Loaded", "Override", "dump", "load", "validated"]

NO_FILE = "without a config file"

DEFAULT = {"version": "v1", "sharing": {"memory": {"resources": [{"name": names.MEMORY}]}}}
"""The config without a file: the memory of every GPU, in GiB."""


class Loaded(Struct, frozen=True):
    """The result of loading a config.

    `effective` is None if there are any `problems`. `notices` name settings that are accepted and have no effect.
    `left_out` is how many problems there are, at least, beside those in `problems`.
    """

    effective: EffectiveConfig | None
    problems: tuple[Finding, ...]
    notices: tuple[str, ...]
    places: SettingPlaces
    left_out: int = 0

    @property
    def config(self) -> Config | None:
        """The effective config alone."""
        return None if self.effective is None else self.effective.config

    def lines(self, problems: Sequence[Problem | Finding]) -> list[str]:
        """Spell `problems`, own ones or ones found in `config`, each with its place, in the order of the file.

        At most MOST_PROBLEMS, and a last line with the number of others.
        """
        lines = self.places.lines(problems)
        if more := max(0, len(lines) - MOST_PROBLEMS) + self.left_out:
            source = self.places.root.place.source
            lines[MOST_PROBLEMS:] = [f"{source}: at least {more:,} more mistakes are not shown; fix these first"]
        return lines


def load(file: FilePath | None, overrides: Sequence[Override] = ()) -> Loaded:
    """Read `file`, or take the default where it is None, put `overrides` over it, and find everything wrong with it.

    Raises ConfigError when the file cannot be read; what is wrong with its content is in `problems` of the result.
    """
    if file is None:
        return validated(PlacedValue.of(DEFAULT, NO_FILE), [], overrides)
    # Without a file there is no YAML, and starting without its library is faster.
    from gpushare_plugin.config.loading.document import read  # noqa: PLC0415

    root, findings = read(file)
    return validated(root or nothing_at(str(file)), findings, overrides)


def nothing_at(source: str) -> PlacedValue:
    """Return an empty config for a text that is none: the overrides alone can be checked."""
    start = SourcePlace(source, (), 1, 1)
    return PlacedValue(start, start, {})


def dump(config: Config) -> str:
    """Spell every effective setting as a file that loads back to the same."""
    from gpushare_plugin.config.loading.scalars import write  # noqa: PLC0415 - as above

    return write(config.model_dump(mode="json", by_alias=True, exclude_none=True))


def validated(root: PlacedValue, findings: Sequence[Finding], overrides: Sequence[Override] = ()) -> Loaded:
    """Put `overrides` over the values in `root`, which are changed, and find everything wrong with them.

    `findings` are what is known to be wrong with them already.
    """
    if misplaced := not_a_config(root):
        return Loaded(None, (misplaced,), (), SettingPlaces(root))
    mistakes = Mistakes(root, findings)
    config = mistakes.config(overrides)
    if config is None:
        return Loaded(None, tuple(mistakes.findings), (), SettingPlaces(root), mistakes.left_out)
    return Loaded(EffectiveConfig(config), (), tuple(notices(config)), SettingPlaces(root))
