"""How signals end a program that goes on until then: once, and in good order."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType

import structlog

from gpushare_plugin.foundation.signals.dispositions import (
    ENDING,
    disregard,
    end_in_any_case,
    ignore_signals,
    set_ending,
)

_log = structlog.get_logger()


async def until_stopped(work: Awaitable[None], *, interactive: bool = False) -> None:
    """Do `work` until a signal that ends cancels it; raises what `work` raises. SIGHUP means nothing but to `work`.

    It is cancelled once: however many signals come, it ends in good order. The process is taken to end after that, and
    no signal changes how. An interactive program ends at SIGHUP, too, and in any case within seconds of a signal:
    its output may be a pipe that nobody reads.
    """
    working = asyncio.current_task()
    assert working is not None  # noqa: S101 - a coroutine runs in a task
    loop = asyncio.get_running_loop()
    stopping = False

    def stop(reason: str) -> None:
        nonlocal stopping
        stopping = True
        _log.info("stopping", reason=reason)
        working.cancel()

    def arrived(number: int, _frame: FrameType | None) -> None:
        disregard(ENDING)  # the first one counts
        if interactive:
            end_in_any_case()
        _call(loop, partial(stop, signal.Signals(number).name))

    set_ending(arrived)
    if not interactive:
        on_signal(signal.SIGHUP, lambda: None)
    # Signals wake a loop only while it has a handler of its own; this one is of no use, and its default does nothing.
    loop.add_signal_handler(signal.SIGURG, lambda: None)
    try:
        await work
    except asyncio.CancelledError:
        if not stopping:
            raise
    finally:
        ignore_signals()
        loop.remove_signal_handler(signal.SIGURG)


def on_signal(number: signal.Signals, call: Callable[[], None]) -> None:
    """Have the running event loop call `call` at each signal of this number; once the loop has ended, nothing happens.

    A handler of asyncio's is taken away with the loop, and a signal that comes after that ends the process.
    """
    loop = asyncio.get_running_loop()
    signal.signal(number, lambda _number, _frame: _call(loop, call))


def _call(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(call)
