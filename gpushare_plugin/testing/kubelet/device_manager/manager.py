"""The device manager's memory: which devices there are, who answers for them, and which are given to whom."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from gpushare_plugin.kubelet.api.deviceplugin_pb2 import Device as ListedDevice
from gpushare_plugin.kubelet.api.deviceplugin_pb2 import DevicePluginOptions
from gpushare_plugin.testing.kubelet.device_manager import checkpoint
from gpushare_plugin.testing.kubelet.device_manager.allocations import Allocations, Entry
from gpushare_plugin.testing.kubelet.device_manager.client import PluginClient
from gpushare_plugin.testing.kubelet.device_manager.endpoint import PluginEndpoint

HEALTHY = "Healthy"

log = logging.getLogger(__name__)


class Device(NamedTuple):
    """One device as its plugin last listed it; any `health` but `Healthy` is unhealthy."""

    health: str
    numa_nodes: tuple[int, ...]


class DeviceManager:
    """What the kubelet holds in memory from one start to the next stop; maps are by resource.

    `active_pods` are the UIDs of the pods that are not over, None before it has heard of its pods; `changed` is called
    after each change; `checkpoint_file` is None where nothing shall be remembered over a restart.
    """

    def __init__(
        self,
        *,
        active_pods: Callable[[], Iterable[str] | None],
        changed: Callable[[], None],
        clock: Callable[[], float],
        checkpoint_file: Path | None,
    ) -> None:
        """Start with an empty memory."""
        self._active_pods = active_pods
        self._changed = changed
        self._clock = clock
        self._checkpoint_file = checkpoint_file
        self.endpoints: dict[str, PluginEndpoint] = {}
        self.devices: dict[str, dict[str, Device]] = {}
        self.healthy: dict[str, set[str]] = {}
        self.unhealthy: dict[str, set[str]] = {}
        self.allocated: dict[str, set[str]] = {}
        self.allocations = Allocations()

    def remember(self) -> None:
        """Take up what the checkpoint holds: allocations, and resources whose plugins are yet to come back."""
        if self._checkpoint_file is None:
            return
        try:
            remembered = checkpoint.read(self._checkpoint_file)
        except checkpoint.CheckpointError:
            log.exception("starting without a checkpoint")
            return
        for entry in remembered.entries:
            self.allocations.add(entry)
        self.forget_unfinished()
        for resource in remembered.registered:
            self.healthy[resource] = set()
            self.unhealthy[resource] = set()
            self.endpoints[resource] = PluginEndpoint(resource, None, DevicePluginOptions(), self._clock())

    def connect(self, resource: str, client: PluginClient, options: DevicePluginOptions) -> None:
        """Put `client` in charge of `resource`; its devices stay as they were until its first list."""
        self.endpoints[resource] = PluginEndpoint(resource, client, options)
        self._changed()

    def disconnect(self, resource: str) -> None:
        """Make all devices of `resource` unhealthy and stop whichever endpoint is in charge of it by now."""
        if endpoint := self.endpoints.get(resource):
            self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))
            if resource in self.healthy:
                self.healthy[resource] = set()
            endpoint.stopped_at = self._clock()
            self._changed()

    def uses(self, client: PluginClient) -> bool:
        """Whether an endpoint would still call `client`."""
        return any(endpoint.client is client for endpoint in self.endpoints.values())

    def replace(self, resource: str, devices: Iterable[ListedDevice]) -> None:
        """Take `devices` for all there are of `resource`: what is not among them is forgotten, allocated or not."""
        listed = self.devices[resource] = {}
        healthy, unhealthy = self.healthy[resource], self.unhealthy[resource] = set[str](), set[str]()
        for device in devices:
            listed[device.ID] = Device(device.health, tuple(node.ID for node in device.topology.nodes))
            (healthy if device.health == HEALTHY else unhealthy).add(device.ID)
        self._save_or_log()
        self._changed()

    def capacity(self) -> tuple[dict[str, int], dict[str, int]]:
        """Count all devices and the healthy ones; drop resources whose plugin is gone for too long."""
        self._drop_expired()
        allocatable = {resource: len(ids) for resource, ids in self.healthy.items()}
        capacity = {
            resource: allocatable.get(resource, 0) + len(self.unhealthy.get(resource, ()))
            for resource in self.healthy.keys() | self.unhealthy.keys()
        }
        return capacity, allocatable

    def knows(self, resource: str) -> bool:
        """Whether a plugin stands behind `resource`, or did when some of it was allocated."""
        return resource in self.healthy or resource in self.allocated

    def is_active(self, pod_uid: str) -> bool:
        """Whether the pod is not over."""
        return pod_uid in (self._active_pods() or ())

    def give(self, entry: Entry) -> None:
        """Keep an allocation that the plugin agreed to."""
        self.allocations.add(entry)
        self._changed()

    def free_inactive(self) -> None:
        """Forget the allocations of pods that are over; until then their devices stay in use.

        The real one does not either before each source of pods was heard (`sourcesReady`), since it would forget all.
        """
        active = self._active_pods()
        if active is not None and self.allocations.keep_only(active):
            self.forget_unfinished()

    def forget_unfinished(self) -> None:
        """Take for allocated only what containers really have."""
        self.allocated = self.allocations.ids()
        self._changed()

    def save(self) -> None:
        """Write the checkpoint; raises CheckpointError."""
        if self._checkpoint_file is not None:
            checkpoint.write(self._checkpoint_file, checkpoint.Checkpoint(tuple(self.allocations), self.healthy))

    def _drop_expired(self) -> None:
        now = self._clock()
        gone = set()
        for resource in self.healthy.keys() | self.unhealthy.keys():
            endpoint = self.endpoints.get(resource)
            if endpoint is None or endpoint.expired(now):
                gone.add(resource)
        for resource in gone:
            self.endpoints.pop(resource, None)
            self.healthy.pop(resource, None)
            self.unhealthy.pop(resource, None)
        if gone:
            self._save_or_log()
            self._changed()

    def _save_or_log(self) -> None:
        try:
            self.save()
        except checkpoint.CheckpointError:
            log.exception("going on with an old checkpoint")
