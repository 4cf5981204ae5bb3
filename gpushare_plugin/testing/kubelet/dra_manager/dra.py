"""All parts of the DRA manager together, from one start of the kubelet to the next stop."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpushare_plugin.testing.clock import Clock, RunningClock
from gpushare_plugin.testing.kubelet.dra_manager.claims import NAME, ClaimCache
from gpushare_plugin.testing.kubelet.dra_manager.driver import V1, V1BETA1
from gpushare_plugin.testing.kubelet.dra_manager.drivers import Drivers
from gpushare_plugin.testing.kubelet.dra_manager.health import DriverHealth
from gpushare_plugin.testing.kubelet.dra_manager.manager import ClaimManager
from gpushare_plugin.testing.kubelet.dra_manager.node_api import NodeApi
from gpushare_plugin.testing.kubelet.dra_manager.registrations import Registrations
from gpushare_plugin.testing.kubelet.dra_manager.wipes import SliceWipes
from gpushare_plugin.testing.kubelet.shared.journal import Journal
from gpushare_plugin.testing.kubelet.shared.pods import Container, Pod

REGISTRY = "plugins_registry"
"""The directory below the kubelet's root in which plugins register."""
PLUGINS = "plugins"
"""The directory below the kubelet's root in which plugins serve; the kubelet makes both (kubernetes: kubelet.go)."""


@dataclass(frozen=True, slots=True)
class Dra:
    """What a kubelet needs for DRA: the API server as the kubelet sees it, and a clock.

    The clock rules every wait and deadline of the DRA manager. `services` are the services of drivers that the kubelet
    knows: up to 1.33 `v1beta1.DRAPlugin` alone (kubernetes: dra_plugin.go, servicesSupportedByKubelet). `health` is
    whether the gate ResourceHealthStatus is on, as from 1.36 by default.
    """

    api: NodeApi
    clock: Clock = field(default_factory=RunningClock)
    services: tuple[str, ...] = (V1, V1BETA1)
    health: bool = True

    def manager(
        self, directory: Path, journal: Journal, active_pods: Callable[[], Iterable[str] | None]
    ) -> "DraManager":
        """Return the DRA manager of a kubelet that starts; its root is `directory`."""
        return DraManager(self, directory, journal, active_pods)


class DraManager:
    """The DRA manager of a kubelet whose root is `directory`."""

    def __init__(
        self, dra: Dra, directory: Path, journal: Journal, active_pods: Callable[[], Iterable[str] | None]
    ) -> None:
        """Take up the claims that the kubelet before remembered; none of them counts as prepared."""
        self._clock = dra.clock
        self._registry = directory / REGISTRY
        self._wipes = SliceWipes(dra.api, dra.clock)
        self.health = DriverHealth(dra.clock, journal.changed)
        self.drivers = Drivers(self._wipes, self.health if dra.health else None, dra.clock, journal, known=dra.services)
        self._registrations = Registrations(self._registry, self.drivers, dra.clock, journal)
        self.claims = ClaimManager(
            dra.api, self.drivers, ClaimCache(directory / NAME), active_pods=active_pods, changed=journal.changed
        )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Delete the ResourceSlices of the node in the background, and look for drivers; raises OSError."""
        for directory in (self._registry, self._registry.with_name(PLUGINS)):
            directory.mkdir(parents=True, exist_ok=True)
        self._wipes.start()
        self._tasks = [
            asyncio.create_task(self._registrations.run(), name="plugin registrations"),
            asyncio.create_task(self.claims.run(self._clock), name="claims of vanished pods"),
        ]

    @property
    def is_registering(self) -> bool:
        """Whether a driver is being registered or unregistered."""
        return self._registrations.busy

    def allocated_resources(self, pod: Pod, container: Container) -> dict[str, dict[str, str]]:
        """Show the health of a container's devices, by `claim:<name>[/<request>]` and the name of the resource."""
        shown: dict[str, dict[str, str]] = {}
        for use in container.claims:
            info = self.claims.claims.get(pod.namespace, pod.claims[use.name])
            name = f"claim:{use.name}" + (f"/{use.request}" if use.request else "")
            for driver, devices in info.devices.items() if info else ():
                for each in devices:
                    if use.request and each.requests and use.request.split("/")[0] not in each.requests:
                        continue
                    resource = each.cdi_ids[0] if each.cdi_ids else f"{driver}/{each.pool}/{each.device}"
                    shown.setdefault(name, {}).setdefault(resource, self.health.of(driver, each.pool, each.device)[0])
        return shown

    async def stop(self) -> None:
        """End all connections and tasks; the sockets of drivers stay, as the kubelet leaves them."""
        for task in self._tasks:
            task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._wipes.close()
        await self.drivers.close()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
