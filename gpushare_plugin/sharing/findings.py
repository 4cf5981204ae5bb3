"""What comes to light while a plan is made: problems with the settings, and notices for people."""

from dataclasses import dataclass, field

from gpushare_plugin.foundation.errors import MOST_PROBLEMS, Path, Problem


class TooManyProblemsError(Exception):
    """More is wrong than is told."""


@dataclass(slots=True)
class Findings:
    """Problems, any of which keeps the settings from being used, and notices; whoever finds one adds it."""

    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def problem(self, path: Path, message: str) -> None:
        """Add a problem with the setting at `path`; raises TooManyProblemsError after one more than MOST_PROBLEMS."""
        self.problems.append(Problem(path, message))
        if len(self.problems) > MOST_PROBLEMS:
            raise TooManyProblemsError

    def notice(self, message: str) -> None:
        """Add what people should know."""
        self.notices.append(message)
