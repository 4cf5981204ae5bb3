"""Looks at the GPUs: the first look, and the later looks at intervals."""

import asyncio
from collections.abc import Callable

from gpushare_plugin.base.errors import (
    DriverChangedError,
    GpushareError,
    NoGpuLibraryError,
    UnresponsiveGpusError,
)
from gpushare_plugin.base.text import in_words
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.health import Probe
from gpushare_plugin.gpus.source import GpuSource, read_inventory
from gpushare_plugin.node.gpus.state import Gpus
from gpushare_plugin.node.news.news import DriverSlow, GpuLeftOut, News

SLOW_DRIVER = 10.0
"""Seconds without an answer to the first look before a slow driver is published."""

DRIVER_TIMEOUT = 30.0
"""Seconds without an answer after which a driver counts as unresponsive."""


async def first_look(source: GpuSource, news: News) -> Inventory:
    """Read the GPUs once.

    Raises UnresponsiveGpusError when the node has GPUs and no GPU is usable, NoGpuLibraryError when no GPU is found.
    """

    def overdue() -> None:
        # Without this news, a daemon with a slow driver would seem to do nothing.
        news.publish(DriverSlow(SLOW_DRIVER))

    inventory = await read_inventory(source, patience=SLOW_DRIVER, overdue=overdue)
    for card in inventory.failed:
        news.publish(GpuLeftOut(card))
    if not inventory.cards:
        kind = UnresponsiveGpusError if inventory.failed else NoGpuLibraryError
        raise kind(
            f"no usable GPU on this node: {len(inventory.failed)} found but unusable, at least one usable "
            "expected; see nvidia-smi, or keep this daemon off nodes without GPUs"
        )
    return inventory


class Looks:
    """Looks at the GPUs at intervals."""

    def __init__(self, source: GpuSource, gpus: Gpus, changed: Callable[[], None]) -> None:
        """Record the results of looks at `source` in `gpus`, and call `changed` after each look."""
        self._source = source
        self._gpus = gpus
        self._changed = changed
        self._pause_changed = asyncio.Event()
        self._requested = False
        self.begun = 0
        """The number of begun looks."""

    def request(self) -> None:
        """Look at once, or again after a look under way."""
        self._requested = True
        self._pause_changed.set()

    def reconsider(self) -> None:
        """Read the length of the pause before the next look again."""
        self._pause_changed.set()

    async def run(self) -> None:
        """Look at intervals, more often while a GPU is unhealthy; raises the errors of `look`."""
        clock = asyncio.get_running_loop().time
        looked_at = clock()
        while True:
            self._pause_changed.clear()
            pause = 0.0 if self._requested else self._gpus.seconds_between_looks
            try:
                async with asyncio.timeout_at(looked_at + pause):
                    await self._pause_changed.wait()
            except TimeoutError:
                self._requested = False
                await self.look()
                looked_at = clock()

    async def look(self) -> None:
        """Look at the GPUs once, and record answering, unresponsive, added and removed GPUs.

        Raises DriverChangedError when only a new process can use the driver.
        """

        def overdue() -> None:
            self._gpus.doubt(Probe(f"the driver has not answered for {DRIVER_TIMEOUT:g} s"))
            self._changed()

        self.begun += 1
        try:
            self._gpus.merge(await read_inventory(self._source, patience=DRIVER_TIMEOUT, overdue=overdue))
        except DriverChangedError:
            raise
        except GpushareError as error:
            self._gpus.doubt(Probe(str(error)))
        except Exception as error:
            # A defect; the health of the GPUs is unknown until a look succeeds.
            self._gpus.doubt(Probe(f"checking the GPUs failed: {in_words(error)}"))
            self._changed()
            raise
        self._changed()
