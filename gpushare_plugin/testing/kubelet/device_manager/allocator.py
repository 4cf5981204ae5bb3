"""How a container comes to its devices: the calls to plugins, and what happens when they are not followed."""

import asyncio
from collections.abc import Iterable, Mapping
from random import Random

from gpushare_plugin.kubelet.api.deviceplugin_pb2 import AllocateResponse, ContainerAllocateResponse
from gpushare_plugin.testing.kubelet.device_manager.allocations import Allocation, Entry, merged
from gpushare_plugin.testing.kubelet.device_manager.manager import DeviceManager
from gpushare_plugin.testing.kubelet.device_manager.selection import DeviceSelection, by_affinity
from gpushare_plugin.testing.kubelet.shared.errors import DeviceManagerError, KubeletCrashError
from gpushare_plugin.testing.kubelet.shared.pods import Container, Pod, StartedContainer

NO_NUMA_NODE = -1


class Allocator:
    """Gives devices to containers, and starts them with what they were given.

    Go walks its maps and sets in no order; here `rng` draws each such order.
    """

    def __init__(self, manager: DeviceManager, rng: Random, records: asyncio.Event) -> None:
        """Allocate from what `manager` knows; answers to `Allocate` are recorded only while `records` is set."""
        self._manager = manager
        self._rng = rng
        self._reusable_by_pod: dict[str, dict[str, set[str]]] = {}
        self._records = records

    async def allocate(self, pod: Pod, container: Container) -> None:
        """Give `container` its devices; those of a pod must come in order, init containers first.

        What init containers leave behind is used again by what comes after them; sidecars keep theirs. Raises
        DeviceManagerError when the container cannot have its devices.
        """
        if pod.uid not in self._reusable_by_pod:
            self._reusable_by_pod = {pod.uid: {}}
        reusable = self._reusable_by_pod[pod.uid]
        await self._allocate_resources(pod, container, reusable)
        passes_on = container in pod.init_containers and not container.restartable
        for resource, allocation in self._held(pod, container).items():
            left = reusable.get(resource, set())
            reusable[resource] = left | allocation.ids if passes_on else left - allocation.ids

    async def start(self, pod: Pod, container: Container) -> StartedContainer:
        """Say what to start `container` with, first calling the plugins that ask for PreStartContainer.

        Raises DeviceManagerError when a plugin objects.
        """
        forgotten = False
        for resource, wanted in self._limits(container):
            if not self._manager.knows(resource) or wanted == 0:
                continue
            await self._pre_start(pod, container, resource)
            if self._manager.is_active(pod.uid) and resource not in self._held(pod, container):
                forgotten = True
        if forgotten:
            await self.allocate(pod, container)
        held = self._held(pod, container)
        return merged(container, {resource: held[resource] for resource in self._shuffled(held)})

    def forget_unfinished(self) -> None:
        """Give back what is chosen for a container whose admission was given up."""
        self._manager.forget_unfinished()

    async def _allocate_resources(self, pod: Pod, container: Container, reusable: Mapping[str, set[str]]) -> None:
        freed = chosen_any = False
        for resource, wanted in self._limits(container):
            if not self._manager.knows(resource):
                continue
            if not freed:
                self._manager.free_inactive()
                freed = True
            chosen = await self._choose(pod, container, resource, wanted, reusable.get(resource, set()))
            if not chosen:
                continue
            chosen_any = True
            response = await self._call_allocate(resource, chosen)
            await self._records.wait()
            allocation = Allocation(self._by_numa(resource, chosen), response)
            self._manager.give(Entry(pod.uid, container.name, resource, allocation))
        if chosen_any:
            self._manager.save()

    async def _choose(self, pod: Pod, container: Container, resource: str, wanted: int, reusable: set[str]) -> set[str]:
        """Choose the devices still to be allocated; none when the container has them already."""
        held = self._held(pod, container).get(resource)
        if held is not None and len(held.ids) != wanted:
            raise DeviceManagerError(
                f'pod "{pod.uid}" container "{container.name}" changed request for resource "{resource}" '
                f"from {len(held.ids)} to {wanted}"
            )
        self._require_healthy(resource, held.ids if held else frozenset())
        if held is not None or wanted == 0:
            return set()
        selection = DeviceSelection(wanted, self._rng, lambda taken: self._mark(resource, taken))
        if not selection.take(reusable):
            await self._choose_available(resource, selection, container.numa_affinity)
        return selection.chosen

    def _require_healthy(self, resource: str, held: frozenset[str]) -> None:
        """Refuse what can only be asked for before the plugin is back, such as after a reboot."""
        healthy = self._manager.healthy.get(resource)
        if healthy is None:
            raise DeviceManagerError(f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise DeviceManagerError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not held <= healthy:
            raise DeviceManagerError(
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            )

    async def _choose_available(
        self, resource: str, selection: DeviceSelection, affinity: frozenset[int] | None
    ) -> None:
        """Fill `selection` from free devices, those on the NUMA nodes of `affinity` first."""
        available = self._manager.healthy[resource] - self._manager.allocated[resource]
        if len(available) < selection.needed:
            raise DeviceManagerError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {selection.needed}, Available: {len(available)}"
            )
        aligned, unaligned, elsewhere = by_affinity(available, self._manager.devices[resource], affinity)
        if selection.needed < len(aligned):
            preferred = await self._prefer(resource, aligned, selection)
            rounds: tuple[set[str], ...] = (preferred & aligned, aligned)
        elif selection.take(aligned):
            return
        else:
            preferred = await self._prefer(resource, available, selection)
            rounds = (preferred & available, unaligned, elsewhere)
        for devices in rounds:
            if selection.take(devices):
                return

    async def _prefer(self, resource: str, available: set[str], selection: DeviceSelection) -> set[str]:
        """Ask the plugin for its preference; empty when it has none. What is chosen counts as available."""
        endpoint = self._manager.endpoints.get(resource)
        if endpoint is None:
            raise DeviceManagerError(f"endpoint not found in cache for a registered resource: {resource}")
        if not endpoint.options.get_preferred_allocation_available:
            return set()
        offered, included = self._shuffled(available | selection.chosen), self._shuffled(selection.chosen)
        try:
            answer = await endpoint.running().preferred(offered, included, selection.size)
        except DeviceManagerError as error:
            raise DeviceManagerError(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error
        return set(answer.container_responses[0].deviceIDs) if answer.container_responses else set()

    async def _call_allocate(self, resource: str, chosen: set[str]) -> ContainerAllocateResponse:
        try:
            answer = await self._ask_to_allocate(resource, chosen)
        except DeviceManagerError:
            self._manager.forget_unfinished()
            raise
        if not answer.container_responses:
            # The chosen devices stay marked as allocated: here the real one forgets to give them back, too.
            raise DeviceManagerError("no containers return in allocation response &AllocateResponse{}")
        return answer.container_responses[0]

    async def _ask_to_allocate(self, resource: str, chosen: set[str]) -> AllocateResponse:
        endpoint = self._manager.endpoints.get(resource)
        if endpoint is None:
            raise DeviceManagerError(f"unknown Device Plugin {resource}")
        return await endpoint.running().allocate(self._shuffled(chosen))

    async def _pre_start(self, pod: Pod, container: Container, resource: str) -> None:
        endpoint = self._manager.endpoints.get(resource)
        if endpoint is None:
            raise DeviceManagerError(f"endpoint not found in cache for a registered resource: {resource}")
        if not endpoint.options.pre_start_required:
            return
        held = self._held(pod, container).get(resource)
        if held is None:
            raise DeviceManagerError(
                f"no devices found allocated in local cache for pod {pod.uid}, container {container.name}, "
                f"resource {resource}"
            )
        try:
            await endpoint.running().pre_start(self._shuffled(held.ids))
        except DeviceManagerError as error:
            raise DeviceManagerError(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    def _by_numa(self, resource: str, chosen: set[str]) -> dict[int, tuple[str, ...]]:
        listed = self._manager.devices[resource]
        if vanished := sorted(chosen - listed.keys()):
            raise KubeletCrashError(
                f"the plugin of {resource} took {', '.join(vanished)} off its list while they were being allocated: "
                "the kubelet crashes on that; keep a device in use on the list, as unhealthy"
            )
        by_numa: dict[int, list[str]] = {}
        for one in self._shuffled(chosen):
            for node in listed[one].numa_nodes or (NO_NUMA_NODE,):
                by_numa.setdefault(node, []).append(one)
        return {node: tuple(ids) for node, ids in by_numa.items()}

    def _held(self, pod: Pod, container: Container) -> Mapping[str, Allocation]:
        return self._manager.allocations.of(pod.uid, container.name)

    def _mark(self, resource: str, taken: Iterable[str]) -> None:
        # Looked up each time: the map is replaced whenever a pod is found to be over, even while a plugin is asked.
        self._manager.allocated.setdefault(resource, set()).update(taken)

    def _limits(self, container: Container) -> list[tuple[str, int]]:
        return [(resource, container.limits[resource]) for resource in self._shuffled(container.limits)]

    def _shuffled(self, ids: Iterable[str]) -> list[str]:
        # Sorted first: the order of a set of strings differs from one process to the next, whatever the seed.
        ordered = sorted(ids)
        self._rng.shuffle(ordered)
        return ordered
