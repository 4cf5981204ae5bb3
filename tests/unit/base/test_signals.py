"""Tests of `gpushare_plugin.base.signals`; `tests/process` has those of whole processes."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from gpushare_plugin.base.signals.dispositions import ENDING, IGNORED
from gpushare_plugin.base.signals.ending import until_stopped
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """Give this process back what signals mean to it."""
    numbers = (*ENDING, *IGNORED, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("again", [*ENDING, signal.SIGHUP])
async def test_work_that_ends_is_not_interrupted_by_another_signal(again: signal.Signals) -> None:
    """Whatever comes while work ends in good order, it is cancelled once, and ends whole."""
    done = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            for _ in range(3):
                os.kill(os.getpid(), again)
                for _ in range(10):
                    await asyncio.sleep(0)
            done.append("whole")

    async with asyncio.timeout(PATIENCE):
        await until_stopped(work())
    assert done == ["whole"]
