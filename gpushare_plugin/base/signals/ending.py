"""The orderly end, by a signal, of a program that otherwise runs without end."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType

import structlog

from gpushare_plugin.base.signals.dispositions import (
    ENDING,
    disregard,
    end_in_any_case,
    ignore_signals,
    set_ending,
)

_log = structlog.get_logger()


async def until_stopped(work: Awaitable[None], *, interactive: bool = False) -> None:
    """Do `work` until the first signal of ENDING cancels `work`; raise any error of `work`.

    Only the first signal cancels, so `work` can end in good order. The process is expected to end after `work`, and
    no later signal changes the end.

    SIGHUP does nothing to a daemon, unless `work` sets a handler. SIGHUP ends an interactive program. An interactive
    program ends within seconds of a signal in any case: its output may be a pipe that nobody reads.
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
        disregard(ENDING)  # the first signal counts
        if interactive:
            end_in_any_case()
        _call(loop, partial(stop, signal.Signals(number).name))

    set_ending(arrived)
    if not interactive:
        on_signal(signal.SIGHUP, lambda: None)
    # Signals wake an event loop only while the loop has a handler of its own. SIGURG is ignored by default and serves
    # no other purpose here.
    loop.add_signal_handler(signal.SIGURG, lambda: None)
    # The event loop is woken by bytes, also by threads. Where no more bytes find room, the loop wakes in any case, and
    # the interpreter need not complain.
    signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)
    try:
        await work
    except asyncio.CancelledError:
        if not stopping:
            raise
    finally:
        ignore_signals()
        loop.remove_signal_handler(signal.SIGURG)


def on_signal(number: signal.Signals, call: Callable[[], None]) -> None:
    """Have the running event loop call `call` at every signal `number`; after the loop has ended, do nothing.

    A handler of asyncio would be removed with the loop, and a later signal would end the process.
    """
    loop = asyncio.get_running_loop()
    signal.signal(number, lambda _number, _frame: _call(loop, call))


def _call(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(call)
