"""Pods as the embedded kubelet is given them, and what their containers are started with."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class ClaimEntry(NamedTuple):
    """An entry of a container's `resources.claims`: the name of a claim in the pod, and a request of it, or all."""

    name: str
    request: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class Container:
    """One container of a pod.

    `limits` are whole numbers by resource name, `env` the container's own environment, which wins over a plugin's.
    `restartable` makes an init container a sidecar; elsewhere it means nothing. `numa_affinity` are the NUMA nodes the
    topology manager settled on; None, the default, is a node whose topology manager has no opinion. `claims` are those
    of the pod's claims that the container uses.
    """

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    restartable: bool = False
    numa_affinity: frozenset[int] | None = None
    claims: Sequence[ClaimEntry] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Pod:
    """One pod; the `uid` is what the kubelet knows it by, so a pod created again under the same name is another pod.

    `claims` are the names of ResourceClaims, by the names that the containers use for them.
    """

    name: str
    containers: Sequence[Container]
    init_containers: Sequence[Container] = ()
    namespace: str = "default"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    claims: Mapping[str, str] = field(default_factory=dict)

    def in_order(self) -> list[Container]:
        """List all containers in the order in which they are given devices and started: init containers first."""
        return [*self.init_containers, *self.containers]

    def container(self, name: str) -> Container:
        """Look up the container called `name`; raises KeyError when the pod has none."""
        for container in self.in_order():
            if container.name == name:
                return container
        known = ", ".join(container.name for container in self.in_order())
        raise KeyError(f"pod {self.namespace}/{self.name} has no container {name!r}; it has {known}")


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path seen inside a container."""

    container_path: str
    host_path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device file of the host seen inside a container; `permissions` is any of r, w and m."""

    container_path: str
    host_path: str
    permissions: str


@dataclass(frozen=True, slots=True)
class StartedContainer:
    """What the container runtime gets: the plugins' answers merged, then the pod's own environment over them.

    `device_ids` holds, for each resource, the IDs the kubelet allocated to this container.
    """

    name: str
    environment: Mapping[str, str]
    mounts: tuple[Mount, ...]
    devices: tuple[DeviceNode, ...]
    annotations: Mapping[str, str]
    cdi_devices: tuple[str, ...]
    device_ids: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """A pod that was let in and whose containers, init containers among them, were all started once."""

    pod: Pod
    containers: Mapping[str, StartedContainer]
