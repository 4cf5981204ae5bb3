"""A clock for what is told the time."""

from dataclasses import dataclass


@dataclass
class Clock:
    """A clock that stands still, in seconds, until a test moves it."""

    now: float = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now
