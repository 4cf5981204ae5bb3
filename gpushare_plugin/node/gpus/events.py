"""The thread that waits for the driver's events."""

import asyncio
import contextlib
import threading
from collections.abc import Callable

from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.gpus.source import GpuSource

EVENT_THREAD_SILENCE = 60.0
"""Seconds without a heartbeat after which the thread counts as stuck."""


class EventThread:
    """Waits for events in a daemon thread, because a call of the driver may never return."""

    def __init__(self, source: GpuSource, report: Callable[[GpuEvent], None]) -> None:
        """Prepare to call `report`, in the running event loop, with every event of `source`."""
        self._source = source
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._heard_at: float | None = None

    def start(self) -> None:
        """Start the thread."""
        arguments = (self._from_driver, self._beat)
        threading.Thread(target=self._source.watch_events, args=arguments, name="gpu-events", daemon=True).start()

    @property
    def complaints(self) -> list[str]:
        """The faults of the thread; a source without events has no heartbeat, and therefore no fault."""
        if self._heard_at is None or self._loop.time() - self._heard_at < EVENT_THREAD_SILENCE:
            return []
        return [f"the thread that waits for GPU events has not been active for more than {EVENT_THREAD_SILENCE:g} s"]

    def _from_driver(self, event: GpuEvent) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the daemon ends
            self._loop.call_soon_threadsafe(self._report, event)

    def _beat(self) -> None:
        with contextlib.suppress(RuntimeError):  # as above
            self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        self._heard_at = self._loop.time()
