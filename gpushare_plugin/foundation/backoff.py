"""How long to wait before trying again."""

from gpushare_plugin.foundation.structs import Struct


class Backoff(Struct):
    """How long to wait before the next attempt: nothing at first, then `first` seconds, doubling up to `most`."""

    first: float = 0.05
    most: float = 5.0
    failures: int = 0
    cause: str = ""

    def next(self, cause: str = "") -> float:
        """Count one more failure and return the seconds to wait; failures of another cause count no longer."""
        if cause != self.cause:
            self.reset()
        self.cause = cause
        self.failures += 1
        return float(min(self.most, self.first * 2 ** min(self.failures - 1, 32)))

    def reset(self) -> None:
        """Forget earlier failures."""
        self.failures = 0
