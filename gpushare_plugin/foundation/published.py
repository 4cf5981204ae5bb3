"""A value that is published whole: whoever follows it sees the newest, and may miss those between."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Published(Generic[T]):
    """The newest value of something, and a way to wait for a newer one."""

    def __init__(self, value: T) -> None:
        """Start with `value`."""
        self._value = value
        self._replaced = asyncio.Event()

    @property
    def value(self) -> T:
        """The newest value."""
        return self._value

    def publish(self, value: T) -> None:
        """Replace the value and wake everybody who follows it."""
        self._value = value
        replaced, self._replaced = self._replaced, asyncio.Event()
        replaced.set()

    @property
    def replaced(self) -> asyncio.Event:
        """Set once the value there is now has been replaced."""
        return self._replaced

    async def follow(self) -> AsyncIterator[T]:
        """Yield the value now, and then the newest each time it was replaced, without end."""
        while True:
            replaced = self._replaced
            yield self._value
            await replaced.wait()


async def changes(*values: Published[Any], every: float | None = None) -> AsyncIterator[None]:
    """Yield now, and then each time one of `values` was replaced or `every` seconds have passed, without end."""
    while True:
        events = [value.replaced for value in values]
        yield
        waiting = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waiting, timeout=every, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
