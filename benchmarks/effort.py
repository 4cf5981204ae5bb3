"""How much is measured: all of it, or next to nothing to see that it can be."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Effort:
    """A share, up to 1, of the full number of repetitions and of the full time."""

    share: float = 1.0

    def times(self, full: int) -> int:
        """Return how often to repeat what a full measurement repeats `full` times; once at least."""
        return max(1, round(full * self.share))

    def seconds(self, full: float) -> float:
        """Return for how long to watch what a full measurement watches for `full` seconds."""
        return full * self.share
