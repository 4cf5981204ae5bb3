"""What is found while a plan is made: problems with the config, and warnings for people."""

from gpushare_plugin.foundation.errors import MOST_PROBLEMS, Path, Problem
from gpushare_plugin.foundation.structs import Struct, field

GPUS_TO_NAME = 4
"""GPUs that one problem names: what is wrong with more is wrong in the same way."""


class TooManyProblemsError(Exception):
    """There are more problems than are reported."""


class Findings(Struct):
    """Problems, any of which keeps the config from being used, and warnings."""

    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def problem(self, path: Path, message: str) -> None:
        """Add a problem with the value at `path`; raises TooManyProblemsError after one more than MOST_PROBLEMS."""
        self.problems.append(Problem(path, message))
        if len(self.problems) > MOST_PROBLEMS:
            raise TooManyProblemsError

    def notice(self, message: str) -> None:
        """Add a warning."""
        self.notices.append(message)
