"""A source of GPUs whose looks see the rest of the host, too."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.core.usage import GpuUsage
from gpushare_plugin.gpus.host import Host
from gpushare_plugin.gpus.source import Asked, GpuSource

if TYPE_CHECKING:
    from gpushare_plugin.gpus.memory_limits import LimitError, LimitReading


class HostSource:
    """A source of GPUs that looks at the rest of the host before anybody knows the GPUs.

    A GPU is therefore never offered before the name of its CDI device is known, and what limits its memory.
    """

    def __init__(self, source: GpuSource, host: Host, config: Callable[[], Config]) -> None:
        """Read the GPUs of `source`, and look at what the config in effect needs."""
        self._source = source
        self._host = host
        self._config = config

    def read(self) -> Inventory:
        """Return all GPUs, and look at the host; raises the errors of the source."""
        inventory = self._source.read()
        self._host.look(inventory, self._config())
        return inventory

    def sample(self) -> tuple[GpuUsage, ...]:
        """Return the current use of the GPUs."""
        return self._source.sample()

    def read_limits(self, asked: Sequence[Asked]) -> "Mapping[Asked, LimitReading | LimitError]":
        """Return the memory limits of cgroups on GPUs, or why the limits are unknown."""
        return self._source.read_limits(asked)

    def watch_events(self, report: Callable[[GpuEvent], None], beat: Callable[[], None]) -> None:
        """Report the events of the GPUs."""
        self._source.watch_events(report, beat)
