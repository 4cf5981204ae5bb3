"""Work in the background, by name: what breaks is logged and started again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from gpushare_plugin.foundation.backoff import Backoff
from gpushare_plugin.foundation.errors import DriverChangedError, GpushareError

_log = structlog.get_logger()

Work = Callable[[], Awaitable[None]]

Spawn = Callable[[str, Work], asyncio.Task[None]]
"""Runs work under a name, in the background, and starts it again should it break."""


@asynccontextmanager
async def background() -> AsyncIterator[Spawn]:
    """Yield what runs work beside the body of the context; all of it is cancelled, and has ended, at the end.

    Raises what the body raises, and DriverChangedError, which ends the body, when work raises that.
    """
    running: set[asyncio.Task[None]] = set()
    try:
        async with asyncio.TaskGroup() as group:

            def spawn(name: str, work: Work) -> asyncio.Task[None]:
                task = group.create_task(_restarted(work), name=name)
                running.add(task)
                task.add_done_callback(running.discard)
                return task

            yield spawn
            for task in running:
                # A second cancellation would interrupt the cleanup of one that is ending already.
                if not task.cancelling():
                    task.cancel()
    except ExceptionGroup as errors:
        # A group of tasks wraps what ended it.
        if len(errors.exceptions) > 1:
            raise
        raise errors.exceptions[0] from None


async def _restarted(work: Work) -> None:
    """Run `work`; log when it fails or breaks, and start it again, unless that takes another process."""
    backoff = Backoff(first=1.0, most=60.0)
    while True:
        try:
            return await work()
        except DriverChangedError:
            raise
        except GpushareError as error:
            wait = backoff.next()
            _log.error("task_failed", task=_name(), reason=str(error), retry_seconds=wait)
            await asyncio.sleep(wait)
        except Exception:  # noqa: BLE001 - one broken task must not take the others down
            wait = backoff.next()
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
