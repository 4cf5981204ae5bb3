"""The findings of a plan: problems of the config, and warnings for people."""

from gpushare_plugin.base.errors import MOST_PROBLEMS, Path, Problem
from gpushare_plugin.base.structs import Struct, field

GPUS_TO_NAME = 4
"""The most GPUs named in one problem: further GPUs have the same problem."""


class TooManyProblemsError(Exception):
    """The number of problems exceeds MOST_PROBLEMS."""


class Findings(Struct):
    """The problems and warnings found for a plan."""

    problems: list[Problem] = field(default_factory=list)
    """The problems of the config; with any problem, the config is not used."""
    notices: list[str] = field(default_factory=list)
    """The warnings for people."""

    def problem(self, path: Path, message: str) -> None:
        """Add a problem of the value at `path`; raises TooManyProblemsError when problems exceed MOST_PROBLEMS.

        The problem beyond MOST_PROBLEMS is added as well.
        """
        self.problems.append(Problem(path, message))
        if len(self.problems) > MOST_PROBLEMS:
            raise TooManyProblemsError

    def notice(self, message: str) -> None:
        """Add a warning."""
        self.notices.append(message)
