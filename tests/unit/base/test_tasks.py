"""Tests of `gpushare_plugin.base.tasks`: work beside the body of a context, and in the background."""

import asyncio
from contextlib import suppress
from itertools import pairwise

import pytest

from gpushare_plugin.base.errors import NoGpuLibraryError
from gpushare_plugin.base.tasks import background, beside, end
from tests.skipping import SkippingLoop
from tests.waiting import PATIENCE


async def test_background_work_runs_at_the_same_time_as_the_body() -> None:
    """The work begins while the body waits for something else, and its result is there for the body."""
    begun = asyncio.Event()

    async def work() -> str:
        begun.set()
        return "result"

    async with beside(work()) as working:
        await begun.wait()
        assert await working == "result"


@pytest.mark.parametrize("awaited", [True, False])
async def test_an_error_of_the_work_ends_the_body(awaited: bool) -> None:  # noqa: FBT001 - what the body does
    """Whatever the body waits for, the error of the work is raised at once, as it is."""

    async def work() -> None:
        raise NoGpuLibraryError("no driver")

    with pytest.raises(NoGpuLibraryError, match="no driver"):
        async with beside(work()) as working:
            await (working if awaited else asyncio.Event().wait())


async def test_an_error_of_the_body_ends_the_work() -> None:
    """What the body raises is raised, and nothing goes on behind it."""
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(NoGpuLibraryError):
        async with beside(work()):
            raise NoGpuLibraryError
    assert ended.is_set()


@pytest.mark.parametrize("steps", range(8))
async def test_work_ends_also_while_a_timeout_expires(steps: int) -> None:
    """A timeout cancels its task, too, and takes that back: work that does this again and again ends nevertheless."""

    async def work() -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE):
        async with background() as spawn:
            spawn("timeouts", work)
            for _ in range(steps):
                await asyncio.sleep(0)


async def test_the_end_of_the_background_does_not_interrupt_work_that_ends_already() -> None:
    """Work that was ended by itself cleans up undisturbed when the background ends meanwhile."""
    cleaning, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await asyncio.sleep(0.01)
            cleaned.set()

    async with background() as spawn:
        task = spawn("work", work)
        await asyncio.sleep(0)
        end(task)
        await cleaning.wait()
    assert cleaned.is_set()


def test_the_wait_starts_over_once_work_has_run_well() -> None:
    """Failures long ago do not count: after a minute of work the next failure is waited out like a first one."""
    starts: list[float] = []

    async def work() -> None:
        starts.append(asyncio.get_running_loop().time())
        await asyncio.sleep(60.0 if len(starts) == 4 else 0.0)
        if len(starts) < 7:
            raise NoGpuLibraryError("no driver")

    async def run() -> None:
        async with background() as spawn:
            await spawn("work", work)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(run())
    assert [round(later - before) for before, later in pairwise(starts)] == [1, 2, 4, 61, 2, 4]
