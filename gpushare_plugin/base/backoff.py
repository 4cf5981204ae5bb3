"""The wait before another attempt."""

from gpushare_plugin.base.structs import Struct


class Backoff(Struct):
    """The wait before the next attempt, which doubles with every failure."""

    first: float = 0.05
    """Seconds to wait after the first failure."""
    most: float = 5.0
    """The longest wait in seconds."""
    failures: int = 0
    """The number of failures in a row with the same cause."""
    cause: str = ""
    """The cause of the last failure."""

    def next(self, cause: str = "") -> float:
        """Count one more failure and return the seconds to wait; a new cause starts the count again."""
        if cause != self.cause:
            self.reset()
        self.cause = cause
        self.failures += 1
        return float(min(self.most, self.first * 2 ** min(self.failures - 1, 32)))

    def reset(self) -> None:
        """Forget earlier failures."""
        self.failures = 0
