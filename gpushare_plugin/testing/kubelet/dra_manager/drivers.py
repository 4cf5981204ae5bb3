"""The DRA drivers that registered, each with one instance or, during an update, several."""

import asyncio
from collections.abc import Sequence

from gpushare_plugin.testing.clock import Clock
from gpushare_plugin.testing.kubelet.dra_manager.driver import DriverConnection
from gpushare_plugin.testing.kubelet.dra_manager.health import DriverHealth
from gpushare_plugin.testing.kubelet.dra_manager.wipes import SliceWipes
from gpushare_plugin.testing.kubelet.shared.errors import DraError
from gpushare_plugin.testing.kubelet.shared.journal import Journal


class Drivers:
    """Which instance of which driver is to be called (kubernetes: cm/dra/plugin/dra_plugin_manager.go)."""

    def __init__(
        self, wipes: SliceWipes, health: DriverHealth | None, clock: Clock, journal: Journal, known: Sequence[str]
    ) -> None:
        """Start without any; `known` are the services that this kubelet knows, `health` is None where a gate is off."""
        self._wipes = wipes
        self._health = health
        self._clock = clock
        self._journal = journal
        self._known = known
        self.instances: dict[str, list[DriverConnection]] = {}

    def service(self, driver: str, endpoint: str, supported: Sequence[str]) -> str:
        """Return the first service of a driver that this kubelet knows; raises DraError."""
        where = f"invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}"
        if not supported:
            raise DraError(f"{where}: empty list of supported gRPC services (aka supported versions)")
        if found := next((service for service in supported if service in self._known), None):
            return found
        theirs, ours = (" ".join(f'"{each}"' for each in services) for services in (supported, self._known))
        raise DraError(
            f"{where}: none of services supported by the plugin ([{theirs}]) are supported by the kubelet ([{ours}])"
        )

    def register(self, driver: str, endpoint: str, supported: Sequence[str]) -> None:
        """Connect to an instance of a driver; raises DraError, also where its endpoint is registered already."""
        service = self.service(driver, endpoint, supported)
        there = self.instances.setdefault(driver, [])
        if any(instance.endpoint == endpoint for instance in there):
            raise DraError(f"endpoint {endpoint} already registered for DRA driver plugin {driver}")
        connection = DriverConnection(
            driver, endpoint, service, self._clock, changed=lambda: self._sync(driver), count=self._journal.count
        )
        there.append(connection)
        if self._health is not None:
            self._health.follow(connection)
        self._sync(driver)

    async def deregister(self, driver: str, endpoint: str) -> None:
        """Leave an instance of a driver, if there is such a one."""
        left = next((each for each in self.instances.get(driver, ()) if each.endpoint == endpoint), None)
        if left is None:
            return
        self.instances[driver].remove(left)
        if not self.instances[driver]:
            del self.instances[driver]
        if self._health is not None:
            await self._health.leave(left)
        self._sync(driver)
        await left.close()

    def get(self, driver: str) -> DriverConnection:
        """Return the newest connected instance, or else the newest; raises DraError where there is none."""
        instances = self.instances.get(driver)
        if not instances:
            raise DraError(f"DRA driver {driver} is not registered")
        return next((each for each in reversed(instances) if each.connected), instances[-1])

    def connected(self) -> frozenset[str]:
        """Return the drivers of which an instance is connected."""
        return frozenset(name for name in self.instances if self._usable(name))

    def endpoints(self) -> frozenset[str]:
        """Return the endpoints of the instances that are connected."""
        return frozenset(each.endpoint for several in self.instances.values() for each in several if each.connected)

    async def close(self) -> None:
        """Leave every driver."""
        instances = [instance for each in self.instances.values() for instance in each]
        self.instances.clear()
        if self._health is not None:
            await self._health.close()
        await asyncio.gather(*(instance.close() for instance in instances))

    def _sync(self, driver: str) -> None:
        """Plan to delete the slices of a driver that cannot be called, or give that plan up."""
        if self._usable(driver):
            self._wipes.cancel(driver)
        else:
            self._wipes.schedule(driver)
        self._journal.changed()

    def _usable(self, driver: str) -> bool:
        return any(instance.connected for instance in self.instances.get(driver, ()))
