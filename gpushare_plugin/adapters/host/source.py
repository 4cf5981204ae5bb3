"""Where GPUs come from: NVML or a file; asked in a thread, because a driver can take its time."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.model.health import GpuEvent
from gpushare_plugin.model.usage.sample import GpuSample

T = TypeVar("T")


class GpuSource(Protocol):
    """Something that knows the GPUs of this node."""

    def read(self) -> Inventory:
        """Return all GPUs; may block.

        Raises NoGpuLibraryError when there is nothing to ask, DriverChangedError when only a new process can ask.
        """
        ...

    def sample(self) -> tuple[GpuSample, ...]:
        """Return how the GPUs that were read are used now; may block. One that does not answer is left out."""
        ...

    def watch_events(self, report: Callable[[GpuEvent], None], beat: Callable[[], None]) -> None:
        """Call `report` for every event of a GPU, and `beat` every few seconds as a heartbeat; blocks.

        Returns at once where there are no events to wait for. Both are called in the thread that called this.
        """
        ...


async def read_inventory(
    source: GpuSource, *, patience: float | None = None, overdue: Callable[[], None] = lambda: None
) -> Inventory:
    """Read `source` without blocking the event loop; `overdue` is called when `patience` seconds were not enough."""
    return await in_thread(source.read, "gpu-inventory", patience, overdue)


async def read_sample(source: GpuSource) -> tuple[GpuSample, ...]:
    """Return how the GPUs of `source` are used, without blocking the event loop."""
    return await in_thread(source.sample, "gpu-usage")


async def in_thread(
    ask: Callable[[], T], name: str, patience: float | None = None, overdue: Callable[[], None] = lambda: None
) -> T:
    """Ask in a daemon thread of this name, so that a call which never returns does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def deliver(found: T) -> None:
        if not answer.cancelled():
            answer.set_result(found)

    def fail(error: Exception) -> None:
        if not answer.cancelled():
            answer.set_exception(error)

    def work() -> None:
        try:
            done = partial(deliver, ask())
        except Exception as error:  # noqa: BLE001 - whatever happens in the thread belongs to the caller
            done = partial(fail, error)
        # The loop may have closed while the driver took its time; then nothing waits for it.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(done)

    threading.Thread(target=work, name=name, daemon=True).start()
    try:
        if not (await asyncio.wait({answer}, timeout=patience))[0]:
            overdue()
        return await answer
    finally:
        answer.cancel()
