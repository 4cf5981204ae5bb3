"""The end of a process that is told to end: SIGTERM and SIGINT."""

import asyncio
import signal
from collections.abc import Awaitable

import structlog

_log = structlog.get_logger()


async def until_told(work: Awaitable[None], *, once: bool = False) -> None:
    """Do `work` until SIGTERM or SIGINT cancels it; raises what `work` raises.

    A signal that comes while `work` ends cancels it once more, unless it is to be told only `once`.
    """
    working = asyncio.current_task()
    assert working is not None  # noqa: S101 - a coroutine runs in a task
    loop = asyncio.get_running_loop()
    stopping = False

    def stop(number: signal.Signals) -> None:
        nonlocal stopping
        if stopping and once:
            return
        stopping = True
        _log.info("stopping", signal=number.name)
        working.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await work
    except asyncio.CancelledError:
        if not stopping:
            raise
