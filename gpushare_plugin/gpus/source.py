"""Reading GPUs from NVML or from a file, in a thread, because a driver can be slow."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.core.usage import GpuUsage

if TYPE_CHECKING:
    from gpushare_plugin.gpus.memory_limits import LimitError, LimitReading

T = TypeVar("T")

Asked = tuple[str, Path]
"""What memory limits are asked of: the UUID of a GPU, and the directory of a cgroup."""


class GpuSource(Protocol):
    """Reads the GPUs of the node."""

    def read(self) -> Inventory:
        """Return all GPUs; may block.

        Raises NoGpuLibraryError without a usable library, and DriverChangedError when only a new process can read the
        GPUs.
        """
        ...

    def sample(self) -> tuple[GpuUsage, ...]:
        """Return the current use of the GPUs last read; may block. A GPU that does not answer is left out."""
        ...

    def read_limits(self, asked: Sequence[Asked]) -> "Mapping[Asked, LimitReading | LimitError]":
        """Return the memory limits of cgroups on GPUs, or the errors for which limits are unknown; may block."""
        ...

    def watch_events(self, report: Callable[[GpuEvent], None], beat: Callable[[], None]) -> None:
        """Call `report` for every event of a GPU, and `beat` every few seconds as a heartbeat; blocks.

        Returns at once where no events can come. Calls `report` and `beat` in the thread of the caller.
        """
        ...


async def read_inventory(
    source: GpuSource, *, patience: float | None = None, overdue: Callable[[], None] = lambda: None
) -> Inventory:
    """Read `source` without blocking the event loop; call `overdue` if `patience` seconds were not enough."""
    return await in_thread(source.read, "gpu-inventory", patience, overdue)


async def read_sample(source: GpuSource) -> tuple[GpuUsage, ...]:
    """Return the current use of the GPUs of `source`, without blocking the event loop."""
    return await in_thread(source.sample, "gpu-usage")


async def read_limits(source: GpuSource, asked: Sequence[Asked]) -> "Mapping[Asked, LimitReading | LimitError]":
    """Return the memory limits of cgroups on GPUs of `source`, without blocking the event loop."""
    return await in_thread(partial(source.read_limits, asked), "gpu-limits")


async def in_thread(
    ask: Callable[[], T], name: str, patience: float | None = None, overdue: Callable[[], None] = lambda: None
) -> T:
    """Call `ask` in a daemon thread called `name`, and return the answer; call `overdue` after `patience` seconds.

    A call that never returns does not keep the process from ending.
    """
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
        except Exception as error:  # noqa: BLE001 - the caller gets every error of the thread
            done = partial(fail, error)
        # The loop may have closed during a slow call; then nobody waits for the answer.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(done)

    threading.Thread(target=work, name=name, daemon=True).start()
    try:
        if not (await asyncio.wait({answer}, timeout=patience))[0]:
            overdue()
        return await answer
    finally:
        answer.cancel()
