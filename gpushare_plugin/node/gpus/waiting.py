"""The first look at the GPUs of a node, and the looks after it while the node has no GPU yet."""

import asyncio
import math
from collections.abc import Awaitable, Callable

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.base.errors import ConfigError, DriverChangedError, NoGpuLibraryError, UnresponsiveGpusError
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.gpus.source import GpuSource
from gpushare_plugin.node.gpus.looks import first_look
from gpushare_plugin.node.news.news import GpusFound, News, NoGpuYet


class NoGpu(Struct, frozen=True):
    """A look found no usable GPU."""

    unresponsive: bool
    """Whether the node has GPUs that do not answer."""
    longest_pause: float
    """The most seconds until the next look."""


async def look_or_wait(source: GpuSource, loaded: Loaded, news: News) -> Inventory | NoGpu:
    """Read the GPUs once; return NoGpu where the config allows a node without a usable GPU.

    Without a usable GPU, raises ConfigError for a config with mistakes, and otherwise NoGpuLibraryError where
    `failOnInitError` is set.
    """
    try:
        inventory = await first_look(source, news)
    except DriverChangedError:
        raise
    except NoGpuLibraryError as error:
        # A config with mistakes is not worth waiting for: report every mistake now.
        if loaded.problems:
            raise ConfigError(loaded.lines(loaded.problems)) from None
        if loaded.config is None or loaded.config.flags.fail_on_init_error:
            raise
        news.publish(NoGpuYet(str(error)))
        # Looks at unresponsive GPUs are as frequent as looks at unhealthy GPUs.
        unresponsive = isinstance(error, UnresponsiveGpusError)
        return NoGpu(unresponsive, loaded.config.health.probe_seconds if unresponsive else math.inf)
    news.publish(GpusFound(inventory))
    return inventory


async def first_gpus(look: Callable[[], Awaitable[Inventory | NoGpu]], found: NoGpu) -> Inventory:
    """Look again, after longer and longer pauses, until a look finds GPUs; `found` is the result of the last look."""
    backoff = Backoff(first=1.0, most=30.0)
    while True:
        await asyncio.sleep(min(backoff.next(), found.longest_pause))
        again = await look()
        if not isinstance(again, NoGpu):
            return again
        found = again
