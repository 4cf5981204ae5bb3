"""What stand-ins that serve have in common: they run as long as a context lasts, and have patience."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

PATIENCE = 120.0
"""Seconds until something that should have happened counts as not happening, on a machine however busy."""


class Running(ABC):
    """Starts and stops with a context; in between, it can also be stopped and started again."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to serve."""

    @abstractmethod
    async def stop(self) -> None:
        """Serve no more."""

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await self.stop()
