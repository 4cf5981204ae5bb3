"""Waiting for what becomes true by itself and sets no event."""

import asyncio
import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds until something that should have happened counts as not happening, on a machine however busy."""

LOOK_EVERY = 0.01


async def until(condition: Callable[[], object], state: Callable[[], object] = str, within: float = PATIENCE) -> None:
    """Wait until `condition` holds; raises TimeoutError, with what `state` returns, when it does not in time."""
    try:
        async with asyncio.timeout(within):
            while not condition():  # noqa: ASYNC110 - files, threads and other processes set no event
                await asyncio.sleep(LOOK_EVERY)
    except TimeoutError as error:
        raise TimeoutError(f"what was waited for did not happen within {within:g} s; {state()}") from error


def until_blocking(condition: Callable[[], object], state: Callable[[], object] = str) -> None:
    """Wait as `until` does, in a test without an event loop."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"what was waited for did not happen within {PATIENCE:g} s; {state()}")
        time.sleep(LOOK_EVERY)
