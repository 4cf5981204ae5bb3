"""Which devices each container of each pod was given, with the plugin's answer that came along."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpushare_plugin.kubelet.api.deviceplugin_pb2 import ContainerAllocateResponse
from gpushare_plugin.testing.kubelet.shared.pods import Container, DeviceNode, Mount, StartedContainer


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices of one resource in one container by NUMA node, -1 for none, and the plugin's answer."""

    ids_by_numa: Mapping[int, tuple[str, ...]]
    response: ContainerAllocateResponse
    ids: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Gather the IDs of all nodes: a device close to two nodes stands under both."""
        object.__setattr__(self, "ids", frozenset(one for ids in self.ids_by_numa.values() for one in ids))


class Entry(NamedTuple):
    """One allocation and whose it is."""

    pod_uid: str
    container: str
    resource: str
    allocation: Allocation


class Allocations:
    """Every allocation of the node, keyed by pod, container and resource."""

    def __init__(self) -> None:
        """Start with none."""
        self._pods: dict[str, dict[str, dict[str, Allocation]]] = {}

    def add(self, entry: Entry) -> None:
        """Keep `entry`, in place of what its container had of that resource."""
        containers = self._pods.setdefault(entry.pod_uid, {})
        containers.setdefault(entry.container, {})[entry.resource] = entry.allocation

    def keep_only(self, pod_uids: Iterable[str]) -> bool:
        """Forget every pod that is not in `pod_uids`; says whether there was one."""
        gone = self._pods.keys() - pod_uids
        for uid in gone:
            del self._pods[uid]
        return bool(gone)

    def of(self, pod_uid: str, container: str) -> Mapping[str, Allocation]:
        """Look up what `container` has, by resource; empty where nothing is known."""
        return self._pods.get(pod_uid, {}).get(container, {})

    def ids(self) -> dict[str, set[str]]:
        """All allocated IDs, by resource."""
        found: dict[str, set[str]] = {}
        for entry in self:
            found.setdefault(entry.resource, set()).update(entry.allocation.ids)
        return found

    def __iter__(self) -> Iterator[Entry]:
        """Every allocation there is."""
        for uid, containers in self._pods.items():
            for container, resources in containers.items():
                for resource, allocation in resources.items():
                    yield Entry(uid, container, resource, allocation)


def merged(container: Container, allocations: Mapping[str, Allocation]) -> StartedContainer:
    """Merge the plugins' answers for `container` in the order of `allocations`; of two that clash, the first stays."""
    environment: dict[str, str] = {}
    annotations: dict[str, str] = {}
    mounts: dict[str, Mount] = {}
    nodes: dict[str, DeviceNode] = {}
    cdi_devices: dict[str, None] = {}
    for allocation in allocations.values():
        answer = allocation.response
        environment = {**answer.envs, **environment}
        annotations = {**answer.annotations, **annotations}
        for mount in answer.mounts:
            mounts.setdefault(mount.container_path, Mount(mount.container_path, mount.host_path, mount.read_only))
        for node in answer.devices:
            nodes.setdefault(node.container_path, DeviceNode(node.container_path, node.host_path, node.permissions))
        for device in answer.cdi_devices:
            cdi_devices.setdefault(device.name)
    return StartedContainer(
        name=container.name,
        environment={**environment, **container.env},
        mounts=tuple(mounts.values()),
        devices=tuple(nodes.values()),
        annotations=annotations,
        cdi_devices=tuple(cdi_devices),
        device_ids={resource: allocation.ids for resource, allocation in allocations.items()},
    )
