"""An event loop for tests of what takes minutes: it skips the time in which nothing happens."""

import asyncio
import selectors


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: time goes on by as much as it was told to wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready."""
        self.now += timeout or 0.0
        return super().select(0)


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time goes on when all wait, by as much as the first of them waits for."""

    def __init__(self) -> None:
        """Begin at second 0."""
        self._skipping = _Selector()
        super().__init__(self._skipping)

    def time(self) -> float:
        """Return the seconds, those that were skipped included."""
        return self._skipping.now
