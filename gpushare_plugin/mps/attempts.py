"""When a failed attempt is repeated: after longer and longer pauses."""

import asyncio

import structlog

from gpushare_plugin.base.backoff import Backoff

_log = structlog.get_logger()


class Attempts:
    """Tracks when the next attempt is due, later after every failure, and why the work is not done yet."""

    def __init__(self, steady: float) -> None:
        """Forget failures once attempts have succeeded for `steady` seconds; the first attempt is due at once."""
        self._steady = steady
        self._now = asyncio.get_running_loop().time
        self._backoff = Backoff(first=1.0, most=60.0)
        self._next_at = 0.0
        self._well_since: float | None = None
        self.reason: str | None = None
        """Why the work is not done, by the last attempt; None when all of it is done."""

    @property
    def due(self) -> bool:
        """Whether it is time for the next attempt."""
        return self._now() >= self._next_at

    def at_once(self) -> None:
        """Make the next attempt due at once, because the work to do has changed."""
        self._next_at = 0.0

    def failed(self, reason: str, at_most: float | None = None) -> None:
        """Log a failure; the next attempt is due after the back-off or `at_most` seconds, whichever is sooner."""
        wait = self._backoff.next()
        if at_most is not None:
            wait = min(wait, at_most)
        self._next_at = self._now() + wait
        self._well_since = None
        self.reason = reason
        _log.error("mps_failed", reason=reason, retry_seconds=wait)

    def succeeded(self, reason: str | None) -> None:
        """Note a success; `reason` says why a part of the work still waits although nothing failed."""
        self.reason = reason
        if self._well_since is None:
            self._well_since = self._now()
        elif self._now() - self._well_since > self._steady:
            self._backoff.reset()
