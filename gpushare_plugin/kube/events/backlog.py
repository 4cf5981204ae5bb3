"""The backlog of unsent Events: adding an Event never waits, and the number of Events is bounded."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from gpushare_plugin.kube.events.event import Event

MOST = 1000
"""Largest number of unsent Events, as in client-go; beyond this number, the oldest Events are dropped."""


class Backlog:
    """Keeps Events in their order, each with its time."""

    def __init__(self, clock: Callable[[], float] = time.time, most: int = MOST) -> None:
        """Take the time of day, in seconds since 1970, from `clock`."""
        self._clock = clock
        self._most = most
        self._waiting: deque[tuple[Event, float]] = deque()
        self._filled = asyncio.Event()
        self.dropped = 0
        """The number of dropped Events."""

    def put(self, event: Event) -> None:
        """Add an Event, with the current time as its time."""
        if len(self._waiting) == self._most:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append((event, self._clock()))
        self._filled.set()

    async def take(self) -> tuple[Event, float]:
        """Wait for the oldest Event, remove the Event from the backlog, and return it with its time."""
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        return self._waiting.popleft()
