"""Clocks of stand-ins: those that go on by themselves, and those that a test moves."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

T = TypeVar("T")

_TURNS = 20
"""Turns of the event loop in which a task that was woken goes on until the task waits for a peer or for time."""


class Clock(Protocol):
    """A clock, in seconds, by which can be waited."""

    def __call__(self) -> float:
        """Return the time."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after some seconds of this clock."""
        ...


class RunningClock:
    """The clock of the machine."""

    def __call__(self) -> float:
        """Return the time."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after some seconds."""
        await asyncio.sleep(seconds)


class MovedClock:
    """A clock that stands still until a test moves it.

    What waits for a peer over a socket takes no time by this clock. So a deadline passes only where a test says so,
    however slow the machine is.
    """

    def __init__(self) -> None:
        """Begin at second 1000."""
        self._now = 1000.0
        self._sleeping: list[tuple[float, asyncio.Future[None]]] = []

    def __call__(self) -> float:
        """Return the time."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Return once the clock was moved by so many seconds."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        entry = self._now + seconds, asyncio.get_running_loop().create_future()
        self._sleeping.append(entry)
        try:
            await entry[1]
        finally:
            self._sleeping.remove(entry)

    async def skip(self, seconds: float) -> None:
        """Move the clock on, and wake each who sleeps at that one's time, in the order of these times.

        Call it when those whose time shall pass are waiting. Requests over sockets that are on the way stay so.
        """
        end = self._now + seconds
        await _turns()
        while (first := min((due for due, woken in self._sleeping if not woken.done()), default=end + 1)) <= end:
            self._now = first
            for due, woken in list(self._sleeping):
                if due <= first and not woken.done():
                    woken.set_result(None)
            await _turns()
        self._now = end


async def within(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """Return the result of `work`; raises TimeoutError and cancels the work after so many seconds of the clock."""
    task = asyncio.ensure_future(work)
    limit = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((task, limit), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise TimeoutError(f"not done within {seconds:g} s")
    finally:
        task.cancel()
        limit.cancel()
        await asyncio.gather(task, limit, return_exceptions=True)


async def _turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
