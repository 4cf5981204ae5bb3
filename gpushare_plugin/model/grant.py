"""What a container gets: the neutral form of an `Allocate` answer."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mount:
    """A path of the host that appears in the container, read-only or not."""

    container_path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node of the host that appears in the container, readable and writable."""

    container_path: str
    host_path: str


@dataclass(slots=True)
class Grant:
    """Everything the kubelet is told to put into one container."""

    environment: dict[str, str] = field(default_factory=dict)
    mounts: list[Mount] = field(default_factory=list)
    devices: list[DeviceNode] = field(default_factory=list)
    annotations: dict[str, str] = field(default_factory=dict)
    cdi_devices: list[str] = field(default_factory=list)
