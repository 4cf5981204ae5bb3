"""Tasks that end with a context, and break the test when they break."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def alongside(*works: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.TaskGroup]:
    """Run these as long as the context lasts, with whatever else its group of tasks is given.

    Raises what breaks, without the groups around it.
    """
    stop = asyncio.Event()

    async def until_stopped() -> None:
        await stop.wait()
        raise _Stopped

    try:
        async with asyncio.TaskGroup() as tasks:
            for work in (*works, until_stopped()):
                tasks.create_task(work)
            try:
                yield tasks
            finally:
                stop.set()
    except BaseExceptionGroup as errors:
        _, broken = errors.split(_Stopped)
        while isinstance(broken, BaseExceptionGroup):
            broken = broken.exceptions[0]
        if broken is not None:
            raise broken from None


class _Stopped(Exception):  # noqa: N818 - no error
    """Ends a group of tasks."""
