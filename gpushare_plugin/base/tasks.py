"""Named work in the background: work that fails is logged and started again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from weakref import WeakSet

import structlog

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.base.errors import DriverChangedError, GpushareError

_log = structlog.get_logger()

Work = Callable[[], Awaitable[None]]
"""A function that starts the work, and can be called again after a failure."""

Spawn = Callable[[str, Work], asyncio.Task[None]]
"""Runs work under a name, in the background, and starts the work again after a failure."""


_ending: WeakSet[asyncio.Task[None]] = WeakSet()
"""Tasks that `end` has cancelled before their background ends."""

Result = TypeVar("Result")


def end(work: asyncio.Task[None]) -> None:
    """Cancel `work` before its background ends; a second call does nothing."""
    if work not in _ending:
        _ending.add(work)
        work.cancel()


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, Result]) -> AsyncIterator[asyncio.Task[Result]]:
    """Do `work` once beside the body of the context, which may await the task; both have ended when the context ends.

    An error of the work cancels the body, and an error of the body cancels the work; the context raises the error.
    """
    with _unwrapped():
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            await asyncio.sleep(0)  # the work begins before the body, which may do much before it first waits
            yield task


@asynccontextmanager
async def background() -> AsyncIterator[Spawn]:
    """Yield a function that runs work beside the body of the context; the end of the context cancels all work.

    The context ends when all work has ended. Raises the error of the body. DriverChangedError from work cancels the
    body, and the context raises the error.
    """
    running: set[asyncio.Task[None]] = set()
    with _unwrapped():
        async with asyncio.TaskGroup() as group:

            def spawn(name: str, work: Work) -> asyncio.Task[None]:
                task = group.create_task(_restarted(work), name=name)
                running.add(task)
                task.add_done_callback(running.discard)
                return task

            yield spawn
            for task in running:
                # A second cancellation would interrupt the cleanup of a task that is ending already. `cancelling` does
                # not tell: a timeout that expires cancels its task as well, and takes the cancellation back.
                if task not in _ending:
                    task.cancel()


@contextmanager
def _unwrapped() -> Iterator[None]:
    """Unwrap the ExceptionGroup of a group of tasks where the group ended with a single error."""
    try:
        yield
    except ExceptionGroup as errors:
        # The error of a task that the body awaits is in the group twice.
        if len(set(errors.exceptions)) > 1:
            raise
        raise errors.exceptions[0] from None


_LONGEST_WAIT = 60.0
"""The most seconds between two attempts. After a run of at least the same length, a failure counts as the first."""


async def _restarted(work: Work) -> None:
    """Run `work`, log its failures and start it again; raise DriverChangedError, which only a new process mends."""
    backoff = Backoff(first=1.0, most=_LONGEST_WAIT)
    clock = asyncio.get_running_loop().time
    began = clock()

    def next_wait() -> float:
        if clock() - began >= _LONGEST_WAIT:
            backoff.reset()
        return backoff.next()

    while True:
        began = clock()
        try:
            return await work()
        except DriverChangedError:
            raise
        except GpushareError as error:
            wait = next_wait()
            _log.error("task_failed", task=_name(), reason=str(error), retry_seconds=wait)
            await asyncio.sleep(wait)
        except Exception:  # noqa: BLE001 - one broken task must not take the others down
            wait = next_wait()
            _log.exception(
                "task_crashed",
                task=_name(),
                retry_seconds=wait,
                remedy="report this as a defect of gpushare",
            )
            await asyncio.sleep(wait)


def _name() -> str:
    task = asyncio.current_task()
    return task.get_name() if task else ""
