"""Where GPUs come from: NVML or a file; asked in a thread, because a driver can take its time."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Protocol

from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.model.health import GpuEvent


class GpuSource(Protocol):
    """Something that knows the GPUs of this node."""

    def read(self) -> Inventory:
        """Return all GPUs; may block.

        Raises NoGpuLibraryError when there is nothing to ask, DriverChangedError when only a new process can ask.
        """
        ...

    def watch_events(self, report: Callable[[GpuEvent], None], beat: Callable[[], None]) -> None:
        """Call `report` for every event of a GPU, and `beat` every few seconds as a heartbeat; blocks.

        Returns at once where there are no events to wait for. Both are called in the thread that called this.
        """
        ...


async def read_inventory(
    source: GpuSource, *, patience: float | None = None, overdue: Callable[[], None] = lambda: None
) -> Inventory:
    """Read `source` without blocking the event loop; `overdue` is called when `patience` seconds were not enough.

    The thread is a daemon, so that a driver call which never returns cannot keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Inventory] = loop.create_future()

    def deliver(inventory: Inventory | None, error: BaseException | None) -> None:
        if answer.cancelled():
            return
        if inventory is None:
            answer.set_exception(error or RuntimeError("no inventory"))
        else:
            answer.set_result(inventory)

    def work() -> None:
        inventory, failure = None, None
        try:
            inventory = source.read()
        except Exception as error:  # noqa: BLE001 - whatever happens in the thread belongs to the caller
            failure = error
        # The loop may have closed while the driver took its time; then nothing waits for it.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, inventory, failure)

    threading.Thread(target=work, name="gpu-inventory", daemon=True).start()
    try:
        if not (await asyncio.wait({answer}, timeout=patience))[0]:
            overdue()
        return await answer
    finally:
        answer.cancel()
