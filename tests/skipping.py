"""An event loop for tests of what takes minutes: it skips the time in which nothing happens."""

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar, TypeVarTuple, Unpack

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class _Selector(selectors.DefaultSelector):
    """Waits for threads alone; else time goes on by as much as it was told to wait."""

    now = 0.0
    threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready."""
        if self.threads and timeout != 0:
            return super().select()  # a thread that ends wakes the loop up
        self.now += timeout or 0.0
        return super().select(0)


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time goes on when all wait, by as much as the first of them waits for.

    Time stands still while a thread works for the loop: how long the thread takes depends on the machine.
    """

    def __init__(self) -> None:
        """Begin at second 0."""
        self._skipping = _Selector()
        super().__init__(self._skipping)

    def time(self) -> float:
        """Return the seconds, those that were skipped included."""
        return self._skipping.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Arguments]], Result], *args: *Arguments
    ) -> asyncio.Future[Result]:
        """Have a thread call a function, and hold the time until it has."""
        found = super().run_in_executor(executor, func, *args)
        self._skipping.threads += 1
        found.add_done_callback(self._ended)
        return found

    def _ended(self, _: asyncio.Future[Result]) -> None:
        self._skipping.threads -= 1
