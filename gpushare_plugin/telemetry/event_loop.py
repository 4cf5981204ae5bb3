"""How long the event loop of a program was busy with one thing, so that nothing else could run.

Such as the renewal of a Lease: where that comes too late, another extender or partitioner leads.
"""

import asyncio
import time
from collections.abc import Callable

LOOK_EVERY = 0.25
"""Seconds between two looks; a pause is found to be too short by that much at most."""
WINDOW = 60.0
"""Seconds for which a pause is shown at least; twice as many at most. Prometheus looks more often."""


class Pauses:
    """The longest pause of the event loop lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Have seen none yet; `clock` returns seconds."""
        self._clock = clock
        self._window_began = clock()
        self._longest_before = 0.0
        self._longest_now = 0.0

    @property
    def longest(self) -> float:
        """Seconds of the longest pause in this window and the one before."""
        return max(self._longest_before, self._longest_now)

    async def watch(self) -> None:
        """Look how late a task of this loop is woken, until cancelled."""
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
