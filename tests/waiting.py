"""Waiting for what becomes true by itself and sets no event."""

import asyncio
from collections.abc import Callable

PATIENCE = 30.0
"""Seconds until something that should have happened counts as not happening."""

LOOK_EVERY = 0.01


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds; raises TimeoutError when it does not in time."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - files and other processes set no event
            await asyncio.sleep(LOOK_EVERY)
