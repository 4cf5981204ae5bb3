"""The allocation to a container, and the grant in return: the neutral form of an `Allocate` answer."""

from fractions import Fraction
from typing import Protocol

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.namespaces import ContainerNamespace


class Mount(Struct, frozen=True):
    """A path of the host that appears in the container."""

    container_path: str
    """The path in the container."""
    host_path: str
    """The path on the host."""
    read_only: bool = False
    """Whether the container can only read the path."""


class DeviceNode(Struct, frozen=True):
    """A device node of the host that appears in the container, readable and writable."""

    container_path: str
    """The path of the device node in the container."""
    host_path: str
    """The path of the device node on the host."""


class Grant(Struct):
    """Everything that a container gets through the kubelet for one resource."""

    environment: dict[str, str] = field(default_factory=dict)
    """The environment variables, by name."""
    mounts: list[Mount] = field(default_factory=list)
    """The mounted paths of the host."""
    devices: list[DeviceNode] = field(default_factory=list)
    """The device nodes."""
    annotations: dict[str, str] = field(default_factory=dict)
    """The annotations that the kubelet passes to the container runtime."""
    cdi_devices: list[str] = field(default_factory=list)
    """The fully qualified names of CDI devices."""
    namespace: ContainerNamespace | None = None
    """The MPS namespace that has to exist before the container starts; None where the container needs none."""


class AllocatedGpu(Struct, frozen=True):
    """The share of a GPU that was allocated to a container, in equal parts of the GPU.

    The parts are the units of the resource. Isolations get the parts that count for limits: of a slice, its GiB.
    """

    gpu: Gpu
    """The GPU."""
    units: int
    """The number of allocated parts."""
    of: int
    """The number of all parts of the GPU."""
    mib: int = 0
    """The memory of the allocated parts in MiB; 0 where parts do not stand for memory."""

    @property
    def fraction(self) -> Fraction:
        """The allocated parts as a fraction of all parts of the GPU.

        What isolations limit, once a way of sharing has put the parts that count for limits in place of units.
        """
        return Fraction(self.units, self.of)


class Recipient(Struct, frozen=True):
    """Facts about the pod that gets units; the kubelet does not name the pod."""

    pod_units: int | None = None
    """The units of the resource requested by the whole pod; None where unknown."""
    promised: bool = False
    """Whether a scheduler has promised the pod units of exactly the allocated GPUs: then several GPUs are allowed."""


UNKNOWN = Recipient()
"""A pod without known facts."""


class Allocation(Struct, frozen=True):
    """The units of one resource that were allocated to a container."""

    resource: str
    """The name of the resource."""
    gpus: tuple[AllocatedGpu, ...]
    """The GPUs with allocated units, sorted by place."""
    ids: frozenset[str]
    """The IDs of the units. No two containers hold the same ID at a time; the ID of a whole GPU is its UUID."""
    recipient: Recipient = UNKNOWN
    """The known facts about the pod."""


class Granter(Protocol):
    """Decides the grant for an allocation."""

    def grant(self, allocation: Allocation) -> Grant:
        """Return the grant for `allocation`; raise PlacementError for units that cannot work together."""
        ...
