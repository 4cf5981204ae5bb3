"""A value that is published whole: a follower sees the newest value, and may miss values in between."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Published(Generic[T]):
    """The newest value of a thing, and a way to wait for a newer value."""

    def __init__(self, value: T) -> None:
        """Start with `value`."""
        self._value = value
        self._replaced = asyncio.Event()

    @property
    def value(self) -> T:
        """The newest value."""
        return self._value

    def publish(self, value: T) -> None:
        """Replace the value and wake every follower."""
        self._value = value
        replaced, self._replaced = self._replaced, asyncio.Event()
        replaced.set()

    @property
    def replaced(self) -> asyncio.Event:
        """The event that is set when the present value is replaced."""
        return self._replaced

    async def follow(self) -> AsyncIterator[T]:
        """Yield the present value at once, and the newest value after every replacement, without end."""
        while True:
            replaced = self._replaced
            yield self._value
            await replaced.wait()


async def changes(*values: Published[Any], every: float | None = None) -> AsyncIterator[None]:
    """Yield at once, and whenever any of `values` was replaced or `every` seconds have passed, without end."""
    while True:
        events = [value.replaced for value in values]
        yield
        waiting = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waiting, timeout=every, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
