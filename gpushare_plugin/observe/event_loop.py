"""Measures pauses of a program's event loop: how long a task kept all further tasks waiting.

For example, a late renewal of a Lease lets another extender or partitioner lead.
"""

import asyncio
import time
from collections.abc import Callable

LOOK_EVERY = 0.25
"""Seconds between two looks; a pause is measured too short by at most `LOOK_EVERY` seconds."""
WINDOW = 60.0
"""Seconds for which a pause is shown at least; at most twice as long. Prometheus scrapes more often."""


class Pauses:
    """The longest recent pause of the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without a pause; `clock` returns seconds."""
        self._clock = clock
        self._window_began = clock()
        self._longest_before = 0.0
        self._longest_now = 0.0

    @property
    def longest(self) -> float:
        """Seconds of the longest pause in the current and the previous window."""
        return max(self._longest_before, self._longest_now)

    async def watch(self) -> None:
        """Measure how late the event loop wakes a task, until cancelled."""
        while True:
            due = self._clock() + LOOK_EVERY
            await asyncio.sleep(LOOK_EVERY)
            self._found(self._clock() - due)

    def _found(self, pause: float) -> None:
        now = self._clock()
        if now - self._window_began >= WINDOW:
            self._window_began = now
            self._longest_before, self._longest_now = self._longest_now, 0.0
        self._longest_now = max(self._longest_now, pause)
