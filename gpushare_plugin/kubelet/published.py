"""A value that is published whole: whoever follows it sees the newest, and may miss those between."""

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

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

    async def follow(self) -> AsyncIterator[T]:
        """Yield the value now, and then the newest each time it was replaced, for ever."""
        while True:
            replaced = self._replaced
            yield self._value
            await replaced.wait()
