"""A first look at GPUs where a node is allowed to have none yet."""

import math
from dataclasses import dataclass

from gpushare_plugin.adapters.host.source import GpuSource
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.foundation.errors import ConfigError, DriverChangedError, NoGpuLibraryError, SilentGpusError
from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.programs.node.gpus.looks import first_look
from gpushare_plugin.programs.node.news.news import GpusFound, News, NoGpuYet


@dataclass(frozen=True, slots=True)
class NoGpu:
    """A look found no GPU that can be used.

    They are `silent` where there are some; `longest_pause` is how many seconds until the next look at most.
    """

    silent: bool
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
        # Settings that are wrong anyway are not worth waiting for: report every problem together.
        if loaded.problems:
            raise ConfigError(loaded.lines(loaded.problems)) from None
        if loaded.config is None or loaded.config.flags.fail_on_init_error:
            raise
        news.publish(NoGpuYet(str(error)))
        # GPUs that are there and silent are looked at as often as any that is at fault.
        silent = isinstance(error, SilentGpusError)
        return NoGpu(silent, loaded.config.health.probe_seconds if silent else math.inf)
    news.publish(GpusFound(inventory))
    return inventory
