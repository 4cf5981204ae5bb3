"""Runs in several processes, which end when the program ends."""

import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from typing import TypeVar

from gpushare_plugin.base.errors import GpushareError

Item = TypeVar("Item")
Result = TypeVar("Result")

_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to all processes of a command."""


def in_processes(
    work: Callable[[Item], Result], items: Sequence[Item], processes: int
) -> Generator[Result, None, None]:
    """Yield what `work` returns for each of `items`, in order; one process is this one.

    Raises GpushareError if memory runs out or a process is killed. Whoever stops early ends all processes.
    """
    if (needed := min(processes, len(items))) <= 1:
        try:
            yield from map(work, items)
        except MemoryError as error:
            raise GpushareError("memory ran out; nothing is reported; use fewer nodes or pods") from error
        return
    # Not forked: a process that has threads, such as that of a progress bar, must not be.
    with ProcessPoolExecutor(needed, get_context("spawn")) as pool:
        try:
            # Not `map`: it cancels what is left after an error, which the pool of a killed process does not expect.
            for future in _submitted(pool, work, items):
                yield future.result()
        except (BrokenProcessPool, MemoryError) as error:
            _end(pool)
            raise GpushareError(
                f"one of the {needed} processes was killed or could get no memory; nothing is reported, as "
                f"a comparison needs all {len(items)} runs; use fewer --jobs than {needed}, or fewer nodes or pods"
            ) from error
        except BaseException:
            _end(pool)
            raise


def _submitted(
    pool: ProcessPoolExecutor, work: Callable[[Item], Result], items: Sequence[Item]
) -> list[Future[Result]]:
    """Submit all items, to processes that inherit a block on signals of the keyboard: this process handles them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _KEYBOARD)
    try:
        return [pool.submit(work, item) for item in items]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(pool: ProcessPoolExecutor) -> None:
    """End the processes in the middle of their work."""
    for process in active_children():
        process.terminate()
    pool.shutdown()  # waits for the thread of the pool, which waits for the processes
