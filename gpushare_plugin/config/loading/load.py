"""One load(): the file, with what the command line and the environment put over it, checked as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.loading import checks
from gpushare_plugin.config.loading.repair import Override, Repair, TooManyMistakesError
from gpushare_plugin.config.places import Finding, Node, Place, Places
from gpushare_plugin.config.schema import names
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.foundation.errors import MOST_PROBLEMS, Problem

__all__ = ["Loaded", "Override", "dump", "load"]

NO_FILE = "without a config file"

DEFAULT = {"version": "v1", "sharing": {"memory": {"resources": [{"name": names.MEMORY}]}}}
"""What holds where there is no file: the memory of every GPU, in GiB."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was understood of the settings.

    With any `problems`, `effective` must not be served: it is what remains without the wrong parts, so that it can be
    checked against the GPUs and everything be reported at once. It is None where nothing was understood. `notices` name
    settings that are accepted and change nothing. Of a great many mistakes only some are in `problems`; then nothing
    was understood, and `left_out` is how many there are beside, at least.
    """

    effective: EffectiveConfig | None
    problems: tuple[Problem, ...]
    notices: tuple[str, ...]
    places: Places
    left_out: int = 0

    @property
    def config(self) -> Config | None:
        """The effective config alone."""
        return None if self.effective is None else self.effective.config

    def lines(self, problems: Sequence[Problem]) -> list[str]:
        """Spell `problems`, own ones and ones found in `config`, each with its place, in the order of the file.

        No more than MOST_PROBLEMS are told, and in a last line that there are more.
        """
        lines = self.places.lines(problems)
        if more := max(0, len(lines) - MOST_PROBLEMS) + self.left_out:
            source = self.places.root.place.source
            lines[MOST_PROBLEMS:] = [f"{source}: at least {more:,} more mistakes are left out; mend these first"]
        return lines


def load(file: FilePath | None, overrides: Sequence[Override] = ()) -> Loaded:
    """Read `file`, or take the default where it is None, put `overrides` over it, and find everything wrong with it.

    Raises ConfigError when the file cannot be read; what is wrong with its content is in `problems` of the result.
    """
    if file is None:
        return _load(Node.of(DEFAULT, NO_FILE), [], overrides)
    # Without a file there is no YAML, and starting without its library is faster.
    from gpushare_plugin.config.loading.document import read  # noqa: PLC0415

    root, findings = read(file)
    if root is not None:
        return _load(root, findings, overrides)
    # The overrides alone can be checked, but what they would apply to is not known.
    start = Place(str(file), (), 1, 1)
    return replace(_load(Node(start, start, {}), findings, overrides), effective=None, notices=())


def dump(config: Config) -> str:
    """Spell every effective setting as a file that loads back to the same."""
    from gpushare_plugin.config.loading.scalars import write  # noqa: PLC0415 - as above

    return write(config.model_dump(mode="json", by_alias=True, exclude_none=True))


def _load(root: Node, findings: Sequence[Finding], overrides: Sequence[Override]) -> Loaded:
    repair = Repair(root, findings, overrides)
    config, left_out = None, 0
    try:
        config = repair.config()
    except TooManyMistakesError as error:
        left_out = error.left_out
    places = Places(root, {finding.problem: finding.place for finding in repair.findings})
    notices = tuple(checks.notices(config)) if config else ()
    effective = EffectiveConfig(config) if config else None
    return Loaded(effective, tuple(places.known), notices, places, left_out=left_out)
