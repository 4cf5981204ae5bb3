"""Events that are not sent yet: whoever adds one never waits, and there are never too many."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from gpushare_plugin.adapters.cluster.events.event import Event

MOST = 1000
"""Events that wait to be sent at most, as in client-go; of more the oldest are dropped."""


class Backlog:
    """Keeps Events with the time at which each happened, in their order; `dropped` counts those lost."""

    def __init__(self, clock: Callable[[], float] = time.time, most: int = MOST) -> None:
        """Take the time of day, in seconds since 1970, from `clock`."""
        self._clock = clock
        self._most = most
        self._waiting: deque[tuple[Event, float]] = deque()
        self._filled = asyncio.Event()
        self.dropped = 0

    def put(self, event: Event) -> None:
        """Add an Event that happens now."""
        if len(self._waiting) == self._most:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append((event, self._clock()))
        self._filled.set()

    async def take(self) -> tuple[Event, float]:
        """Wait for the oldest Event, and take it out, with the time at which it happened."""
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        return self._waiting.popleft()
