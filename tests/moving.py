"""An event loop whose time a test moves on, beside real sockets."""

import asyncio


class MovedLoop(asyncio.SelectorEventLoop):
    """An event loop that is as far ahead of the time of the machine as a test has moved the loop."""

    def __init__(self) -> None:
        """Begin at the time of the machine."""
        self._ahead = 0.0
        super().__init__()

    def time(self) -> float:
        """Return the seconds, the moved seconds included."""
        return super().time() + self._ahead

    def move(self, seconds: float) -> None:
        """Let so many seconds pass at once: what waited for them goes on."""
        self._ahead += seconds
