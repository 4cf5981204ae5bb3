"""A source of GPUs whose looks see the CDI devices of the host, too."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpushare_plugin.config.schema.sections import Flags
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.core.usage import GpuUsage
from gpushare_plugin.gpus.cdi.host import HostCdi
from gpushare_plugin.gpus.source import Asked, GpuSource

if TYPE_CHECKING:
    from gpushare_plugin.gpus.memory_limits import LimitReading


class CdiSource:
    """A source of GPUs that looks at the CDI devices for the GPUs before anybody knows the GPUs.

    A GPU is therefore never offered before the name of its CDI device is known.
    """

    def __init__(self, source: GpuSource, cdi: HostCdi, flags: Callable[[], Flags]) -> None:
        """Read the GPUs of `source`, and look with the flags of the config in effect."""
        self._source = source
        self._cdi = cdi
        self._flags = flags

    def read(self) -> Inventory:
        """Return all GPUs, and look at the CDI devices; raises the errors of the source."""
        inventory = self._source.read()
        self._cdi.look(inventory, self._flags())
        return inventory

    def sample(self) -> tuple[GpuUsage, ...]:
        """Return the current use of the GPUs."""
        return self._source.sample()

    def read_limits(self, asked: Sequence[Asked]) -> "Mapping[Asked, LimitReading | str]":
        """Return the memory limits of cgroups on GPUs, or why the limits are unknown."""
        return self._source.read_limits(asked)

    def watch_events(self, report: Callable[[GpuEvent], None], beat: Callable[[], None]) -> None:
        """Report the events of the GPUs."""
        self._source.watch_events(report, beat)
