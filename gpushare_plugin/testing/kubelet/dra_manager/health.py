"""The health of devices, as DRA drivers report it in streams."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from gpushare_plugin.kubelet.api.dra_health_pb2 import DeviceHealth, HealthStatus, NodeWatchResourcesResponse
from gpushare_plugin.testing.clock import Clock
from gpushare_plugin.testing.kubelet.dra_manager.driver import DriverConnection
from gpushare_plugin.testing.kubelet.shared.errors import PluginCallError

RETRY_SECONDS = 5.0
"""The wait until a stream that ended is tried again (kubernetes: dra_plugin_manager.go, add)."""
TIMEOUT_SECONDS = 30.0
"""After this time without a report, a device is Unknown (kubernetes: cm/dra/healthinfo.go, DefaultHealthTimeout)."""
LONGEST_MESSAGE = 1024

UNKNOWN = "Unknown"
_WORDS = {HealthStatus.HEALTHY: "Healthy", HealthStatus.UNHEALTHY: "Unhealthy"}

log = logging.getLogger(__name__)

Device = tuple[str, str]
"""Pool and name."""


@dataclass(frozen=True, slots=True)
class ReportedHealth:
    """The health of a device: `health` in Kubernetes' word, the time of the report, and how long it is believed."""

    health: str
    message: str
    at: float
    timeout: float


class DriverHealth:
    """What is known of the health of each device of each driver."""

    def __init__(self, clock: Clock, changed: Callable[[], None]) -> None:
        """Start without any knowledge; `changed` is called after each report."""
        self._clock = clock
        self._changed = changed
        self._devices: dict[str, dict[Device, ReportedHealth]] = {}
        self._streams: dict[DriverConnection, asyncio.Task[None]] = {}

    def of(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """Return Healthy, Unhealthy or Unknown, and the driver's message."""
        found = self._devices.get(driver, {}).get((pool, device))
        if found is None or self._clock() - found.at > found.timeout:
            return UNKNOWN, ""
        return found.health, found.message

    def follow(self, connection: DriverConnection) -> None:
        """Read the stream of an instance of a driver, again and again."""
        self._streams[connection] = asyncio.create_task(self._follow(connection), name=f"health of {connection.driver}")

    async def leave(self, connection: DriverConnection) -> None:
        """Read the stream no more."""
        task = self._streams.pop(connection)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """Read no stream any more."""
        for connection in list(self._streams):
            await self.leave(connection)

    async def _follow(self, connection: DriverConnection) -> None:
        while True:
            try:
                async for report in connection.health():
                    self._take(connection.driver, report)
            except PluginCallError as error:
                log.info("the health stream of %s ended: %s", connection.driver, error)
            finally:
                # Of the driver, and so of its other instances, too, as the real one does.
                self._devices.pop(connection.driver, None)
                self._changed()
            await self._clock.sleep(RETRY_SECONDS)

    def _take(self, driver: str, report: NodeWatchResourcesResponse) -> None:
        devices = self._devices.setdefault(driver, {})
        for each in report.devices:
            devices[each.device.pool_name, each.device.device_name] = self._reported(each)
        self._changed()

    def _reported(self, each: DeviceHealth) -> ReportedHealth:
        message = each.message
        if len(message.encode()) > LONGEST_MESSAGE:
            message = message.encode()[: LONGEST_MESSAGE - 3].decode(errors="ignore") + "..."
        timeout = float(each.health_check_timeout_seconds)
        health = _WORDS.get(each.health, UNKNOWN)
        return ReportedHealth(health, message, self._clock(), timeout if timeout > 0 else TIMEOUT_SECONDS)
