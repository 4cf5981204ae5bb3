"""Work in the background, by name: what breaks is logged and started again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from weakref import WeakSet

import structlog

from gpushare_plugin.foundation.backoff import Backoff
from gpushare_plugin.foundation.errors import DriverChangedError, GpushareError

_log = structlog.get_logger()

Work = Callable[[], Awaitable[None]]

Spawn = Callable[[str, Work], asyncio.Task[None]]
"""Runs work under a name, in the background, and starts it again should it break."""


_ending: WeakSet[asyncio.Task[None]] = WeakSet()
"""Work that was ended before its background."""

Result = TypeVar("Result")


def end(work: asyncio.Task[None]) -> None:
    """Cancel work, once, before its background ends."""
    if work not in _ending:
        _ending.add(work)
        work.cancel()


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, Result]) -> AsyncIterator[asyncio.Task[Result]]:
    """Do `work`, once, beside the body of the context, which may await it; both have ended at the end.

    Raises what either raises, upon which the other is cancelled.
    """
    with _unwrapped():
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            await asyncio.sleep(0)  # it begins before a body that may do much before it waits
            yield task


@asynccontextmanager
async def background() -> AsyncIterator[Spawn]:
    """Yield what runs work beside the body of the context; all of it is cancelled, and has ended, at the end.

    Raises what the body raises, and DriverChangedError, which ends the body, when work raises that.
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
                # A second cancellation would interrupt the cleanup of one that is ending already. `cancelling` does not
                # say so: a timeout that expires cancels its task as well, and takes that back.
                if task not in _ending:
                    task.cancel()


@contextmanager
def _unwrapped() -> Iterator[None]:
    """Raise what ended a group of tasks, which wraps it, where that is one error."""
    try:
        yield
    except ExceptionGroup as errors:
        # An error of a task that the body awaits is in there twice.
        if len(set(errors.exceptions)) > 1:
            raise
        raise errors.exceptions[0] from None


_LONGEST_WAIT = 60.0
"""Seconds between two attempts at most. Work that ran for as long ran well: its next failure is a first one."""


async def _restarted(work: Work) -> None:
    """Run `work`; log when it fails or breaks, and start it again, unless that takes another process."""
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
