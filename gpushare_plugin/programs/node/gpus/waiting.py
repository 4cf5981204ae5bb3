"""A first look at GPUs where a node is allowed to have none yet."""

import math

from gpushare_plugin.adapters.host.source import GpuSource
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.foundation.errors import ConfigError, DriverChangedError, NoGpuLibraryError, UnresponsiveGpusError
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.programs.node.gpus.looks import first_look
from gpushare_plugin.programs.node.news.news import GpusFound, News, NoGpuYet


class NoGpu(Struct, frozen=True):
    """A look found no GPU that can be used.

    They are `unresponsive` where there are some; `longest_pause` is the most seconds until the next look.
    """

    unresponsive: bool
    longest_pause: float


async def look_or_wait(source: GpuSource, loaded: Loaded, news: News) -> Inventory | NoGpu:
    """Read the GPUs once; where there is none, raises NoGpuLibraryError unless the config allows that.

    Raises ConfigError where there is none and the config has mistakes.
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
        # Unresponsive GPUs are looked at as often as unhealthy ones.
        unresponsive = isinstance(error, UnresponsiveGpusError)
        return NoGpu(unresponsive, loaded.config.health.probe_seconds if unresponsive else math.inf)
    news.publish(GpusFound(inventory))
    return inventory
