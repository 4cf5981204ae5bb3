"""Tests of `gpushare_plugin.foundation.tasks`: work beside the body of a context."""

import asyncio

import pytest

from gpushare_plugin.foundation.errors import NoGpuLibraryError
from gpushare_plugin.foundation.tasks import beside


async def test_both_go_on_at_a_time() -> None:
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
