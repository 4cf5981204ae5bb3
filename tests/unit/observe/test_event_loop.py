"""Tests of `gpushare_plugin.observe.event_loop`."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpushare_plugin.observe.event_loop import LOOK_EVERY, WINDOW, Pauses
from tests.waiting import until


class Watched:
    """Pauses by a clock that a test sets."""

    def __init__(self) -> None:
        """Begin at 100 s."""
        self.now = 100.0
        self.looks = 0
        self.pauses = Pauses(self._clock)

    def _clock(self) -> float:
        self.looks += 1
        return self.now

    async def passes(self, seconds: float) -> None:
        """Let time pass between two looks, and wait until the second one has been."""
        self.now += seconds
        looks = self.looks
        await until(lambda: self.looks > looks)


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    """Watch the event loop of the test."""
    watched = Watched()
    watching = asyncio.create_task(watched.pauses.watch())
    await until(lambda: watched.looks > 1)
    yield watched
    watching.cancel()


async def test_the_longest_pause_counts_for_a_minute_or_two(watched: Watched) -> None:
    """A pause that was longer ago is forgotten."""
    await watched.passes(LOOK_EVERY + 4 * WINDOW)
    await watched.passes(LOOK_EVERY + 2 * WINDOW)
    assert watched.pauses.longest == pytest.approx(4 * WINDOW)
    await watched.passes(LOOK_EVERY + WINDOW)
    assert watched.pauses.longest == pytest.approx(2 * WINDOW)


async def test_a_loop_that_is_on_time_has_no_pause(watched: Watched) -> None:
    """Waiting for work is no pause."""
    for _ in range(3):
        await watched.passes(LOOK_EVERY)
    assert watched.pauses.longest == 0
