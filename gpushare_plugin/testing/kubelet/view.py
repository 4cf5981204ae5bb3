"""What can be seen of an embedded kubelet from outside."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from gpushare_plugin.testing.kubelet.admission import NodePods
from gpushare_plugin.testing.kubelet.device_manager.manager import Device, DeviceManager
from gpushare_plugin.testing.kubelet.shared.journal import Disconnection, DriverRegistration, Journal, Registration
from gpushare_plugin.testing.kubelet.shared.pods import Pod
from gpushare_plugin.testing.running import PATIENCE

if TYPE_CHECKING:
    from gpushare_plugin.testing.kubelet.dra_manager.claims import PreparedDevice
    from gpushare_plugin.testing.kubelet.dra_manager.dra import DraManager


class KubeletView:
    """The pods, resources and devices that a kubelet knows, what has happened so far, and a way to wait for more."""

    def __init__(
        self, pods: NodePods, journal: Journal, manager: DeviceManager, is_running: Callable[[], bool]
    ) -> None:
        """Show what these hold; a kubelet that starts puts another device manager in place of `manager`."""
        self._node_pods = pods
        self._journal = journal
        self._manager = manager
        self._is_running = is_running
        self._dra: DraManager | None = None

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The pods that are not over, by UID; one that is just being admitted is among them."""
        return self._node_pods.all

    @property
    def registrations(self) -> Sequence[Registration]:
        """Every registration answered so far, over all restarts, refused ones among them."""
        return tuple(self._journal.registrations)

    @property
    def disconnections(self) -> Sequence[Disconnection]:
        """Every plugin lost so far because its stream, or one before it, ended; stopping the kubelet does not count."""
        return tuple(self._journal.disconnections)

    @property
    def driver_registrations(self) -> Sequence[DriverRegistration]:
        """Every registration of a DRA driver that was answered or given up so far, over all restarts."""
        return tuple(self._journal.driver_registrations)

    @property
    def is_registering(self) -> bool:
        """Whether a DRA driver is being registered or unregistered."""
        return self._dra is not None and self._dra.is_registering

    @property
    def connected_drivers(self) -> frozenset[str]:
        """The DRA drivers that can be called."""
        return self._dra.drivers.connected() if self._dra else frozenset()

    @property
    def connected_endpoints(self) -> frozenset[str]:
        """The endpoints of DRA drivers that can be called: a driver can have several."""
        return self._dra.drivers.endpoints() if self._dra else frozenset()

    def prepared(self) -> "dict[str, dict[str, list[PreparedDevice]]]":
        """List the claims that count as prepared, by UID, with their devices by driver; none after a restart."""
        infos = self._dra.claims.claims if self._dra else ()
        return {info.uid: dict(info.devices) for info in infos if info.prepared}

    def health(self, pod: Pod, container: str) -> dict[str, dict[str, str]]:
        """Show `allocatedResourcesStatus`: by `claim:<name>[/<request>]`, the health of each resource.

        A resource is named by its first CDI device (kubernetes: cm/dra/manager.go, buildResourceHealth).
        """
        return self._dra.allocated_resources(pod, pod.container(container)) if self._dra else {}

    @property
    def calls(self) -> Mapping[str, int]:
        """How often each method was called so far, by plugins or on them; 0 for one that never was."""
        return self._journal.calls.copy()

    def capacity(self) -> dict[str, int]:
        """How many devices each resource has; a resource whose plugin is away for five minutes is dropped."""
        return self._manager.capacity()[0]

    def allocatable(self) -> dict[str, int]:
        """How many healthy devices each resource has, in use or not; drops resources as `capacity` does."""
        return self._manager.capacity()[1]

    def devices(self, resource: str) -> dict[str, Device]:
        """List the devices of `resource` by ID, as last listed; after a restart there are none until the next list."""
        return dict(self._manager.devices.get(resource, {}))

    def healthy(self, resource: str) -> frozenset[str]:
        """List the IDs that may be allocated; none while the plugin is away, whatever it listed last."""
        return frozenset(self._manager.healthy.get(resource, ()))

    def allocated(self, resource: str) -> frozenset[str]:
        """List the IDs in use, or not yet freed.

        Those of a container are missing where `List` of pod-resources freed others while they were being allocated: the
        real one counts anew then, too, and knows only what containers have already (`UpdateAllocatedDevices`).
        """
        return frozenset(self._manager.allocated.get(resource, ()))

    def held(self, resource: str) -> frozenset[str]:
        """List the IDs that containers have, those of pods included that are over and not yet forgotten."""
        return frozenset(self._manager.allocations.ids().get(resource, ()))

    async def wait_for(self, condition: Callable[[Self], object], *, within: float = PATIENCE) -> None:
        """Wait until `condition` holds; it is asked again after each change. Time alone is no change.

        Raises TimeoutError after `within` seconds, with the present state.
        """
        try:
            async with asyncio.timeout(within):
                await self._journal.wait_until(lambda: condition(self))
        except TimeoutError as error:
            raise TimeoutError(f"what was waited for did not happen within {within:g} s; {self._state()}") from error

    def _state(self) -> str:
        return "; ".join(
            (
                f"running: {self._is_running()}",
                f"capacity: {self.capacity()}",
                f"allocatable: {self.allocatable()}",
                f"allocated: { {resource: len(ids) for resource, ids in self._manager.allocated.items()} }",
                f"pods: {[f'{pod.namespace}/{pod.name}' for pod in self.pods.values()]}",
                f"calls: {dict(self._journal.calls)}",
                f"registrations: {self._journal.registrations}",
                f"disconnections: {self._journal.disconnections}",
                f"registrations of drivers: {self._journal.driver_registrations}",
            )
        )
