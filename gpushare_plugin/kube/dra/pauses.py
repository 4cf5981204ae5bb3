"""How long ResourceSlices are left alone after they were written."""

import math

from gpushare_plugin.base.backoff import Backoff

BETWEEN_WRITES = 0.1
"""Seconds between two rounds of writes."""
LONGEST_BETWEEN_MENDS = 10.0
"""The longest pause in seconds while others delete or change ResourceSlices again and again."""
QUIET = 60.0
"""Seconds without a deletion or change by others after which pauses are short again."""


class WritePauses:
    """The pauses between writes, longer and longer while others write against us."""

    def __init__(self) -> None:
        """Start with short pauses."""
        self._mending = Backoff(first=BETWEEN_WRITES, most=LONGEST_BETWEEN_MENDS)
        self._mended_at = -math.inf

    def after(self, *, mended: bool, now: float) -> float:
        """Return the seconds to wait after writes at the time `now`, and whether they mended what others had done."""
        if now - self._mended_at >= QUIET:
            self._mending.reset()
        if not mended:
            return BETWEEN_WRITES
        self._mended_at = now
        return self._mending.next()
