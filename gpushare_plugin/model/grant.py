"""What a container was allocated, and what it gets for that: the neutral form of an `Allocate` answer."""

from typing import Protocol

from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.model.gpu import Gpu


class Mount(Struct, frozen=True):
    """A path of the host that appears in the container, read-only or not."""

    container_path: str
    host_path: str
    read_only: bool = False


class DeviceNode(Struct, frozen=True):
    """A device node of the host that appears in the container, readable and writable."""

    container_path: str
    host_path: str


class Grant(Struct):
    """Everything that one container gets from the kubelet."""

    environment: dict[str, str] = field(default_factory=dict)
    mounts: list[Mount] = field(default_factory=list)
    devices: list[DeviceNode] = field(default_factory=list)
    annotations: dict[str, str] = field(default_factory=dict)
    cdi_devices: list[str] = field(default_factory=list)


class AllocatedGpu(Struct, frozen=True):
    """What a container was allocated of one GPU: `units` of the `of` it has, which stand for `mib` MiB of memory.

    `mib` is 0 where units do not stand for memory.
    """

    gpu: Gpu
    units: int
    of: int
    mib: int = 0


class Recipient(Struct, frozen=True):
    """What is known of the pod that gets units, which the kubelet does not name.

    `pod_units` are the units of the resource that the whole pod asks for, None where that is not known. `promised` is
    whether a scheduler has promised it units of just these GPUs, so that it may have them even if they are several.
    """

    pod_units: int | None = None
    promised: bool = False


UNKNOWN = Recipient()
"""A pod that nothing is known of."""


class Allocation(Struct, frozen=True):
    """What a container was allocated of one resource: its GPUs, sorted by place, and the IDs of what it holds.

    No two containers hold the same ID at the same time. The ID of a whole GPU is its UUID.
    """

    resource: str
    gpus: tuple[AllocatedGpu, ...]
    ids: frozenset[str]
    recipient: Recipient = UNKNOWN


class Granter(Protocol):
    """Says what a container gets into it for what it was allocated."""

    def grant(self, allocation: Allocation) -> Grant:
        """Return what the container gets; raise PlacementError for what cannot work together."""
        ...
