"""The usage of a node: of GPUs by processes, and of the containers that hold units or claims.

Memory is in bytes. A utilization is the part of the time in which a GPU computed, from 0 to 1. None stands for an
unknown value.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct

if TYPE_CHECKING:  # most nodes have no limits to prove, and no claims
    from gpushare_plugin.core.effect import Effect
    from gpushare_plugin.core.prepared_claim import PreparedDevice

TOLERANCE = 512 * MIB
"""Bytes by which a container may exceed its limit: the CUDA context of a process takes some hundreds of MiB."""


class Owner(Struct, frozen=True):
    """The owner of a process: a pod and a container; unknown parts are empty."""

    pod_uid: str = ""
    """The UID of the pod, from the process's cgroup."""
    container_id: str = ""
    """The ID of the container, from the process's cgroup."""
    pod: str = ""
    """The pod of a simulated process, as `namespace/name`."""
    container: str = ""
    """The name of the container of a simulated process."""


HOST = Owner()
"""The owner of a process outside all pods and containers."""


class Process(Struct, frozen=True):
    """A process that uses a GPU."""

    pid: int
    """The number of the process in the PID namespace of the host."""
    program: str = ""
    """The short name of the program."""
    memory: int | None = None
    """The bytes of GPU memory in use by the process; None if the driver does not say."""
    utilization: float | None = None
    """The part of the time in which the process computed on the GPU, from 0 to 1; None if the driver does not say."""
    owner: Owner = HOST
    """The pod and the container of the process."""
    mps_client: bool | None = None
    """Whether the driver lists the process as a client of MPS; None where the driver does not say."""


class ContainerUsage(Struct, frozen=True):
    """The share of a GPU that a container holds, and the usage of the GPU by the processes of the container."""

    namespace: str
    """The namespace of the pod."""
    pod: str
    """The name of the pod."""
    container: str
    """The name of the container.

    Empty for all containers of the pod together, where several containers hold the GPU and a process cannot be
    attributed to one of the containers; also where it is not known which of several requests of a claim each has.
    """
    uid: str
    """The UID of the pod, as the kubelet has it."""
    gpu: str
    """The UUID of the GPU."""
    resource: str
    """The name of the resource, or of the claim after `claim:`; several names are separated by commas."""
    units: int
    """The number of held units; by a claim, of devices."""
    limit: int | None = None
    """The most bytes of GPU memory that the container may use; None without a limit, as with time slicing."""
    used: int | None = None
    """The bytes of GPU memory in use."""
    utilization: float | None = None
    """The part of the time in which the container computed on the GPU."""
    processes: int | None = None
    """The number of processes on the GPU."""
    container_id: str = ""
    """The container runtime's ID of the container; empty where unknown."""
    members: tuple[Process, ...] = ()
    """The processes on the GPU; none while unknown."""
    guaranteed: int = 0
    """The bytes that the driver guarantees to the container, where containers may borrow memory."""
    effect: "Effect | None" = None
    """Whether the limit is in effect; None without an isolation that limits the container, and before it is known."""
    claimed: "tuple[PreparedDevice, ...]" = ()
    """What the container has of the GPU by claims; empty for units."""

    @property
    def label(self) -> str:
        """The pod as `namespace/name`, for people."""
        return f"{self.namespace}/{self.pod}"

    @property
    def excess(self) -> int:
        """The bytes in use beyond the limit; 0 without a limit, or while the bytes in use are unknown."""
        return 0 if self.limit is None or self.used is None else max(0, self.used - self.limit)

    @property
    def over(self) -> bool:
        """Whether the container exceeds its limit by more than the tolerance."""
        return self.excess > TOLERANCE


class Stowaway(Struct, frozen=True):
    """A process on an offered GPU that belongs to no pod with units or a claim of the GPU."""

    gpu: str
    """The UUID of the GPU."""
    pid: int
    """The number of the process in the PID namespace of the host."""
    program: str = ""
    """The short name of the program."""
    pod: str = ""
    """The pod as `namespace/name`; empty unless the pod is known, because it holds units of another GPU."""
    pod_uid: str = ""
    """The UID of the pod; empty for a process outside all pods."""
    container_id: str = ""
    """The ID of the container; empty for a process outside all containers."""
    memory: int | None = None
    """The bytes of GPU memory in use by the process."""

    @property
    def whose(self) -> str:
        """The owner of the process, in words."""
        if self.pod or self.pod_uid:
            return f"pod {self.pod or self.pod_uid}"
        return f"container {self.container_id}" if self.container_id else "the host"


class GpuUsage(Struct, frozen=True):
    """The usage of a GPU or MIG instance: a sample as the host shows it, or the sample after the attribution."""

    uuid: str
    """The UUID of the GPU or MIG instance."""
    memory_total: int | None = None
    """The bytes of GPU memory, without the memory reserved by the driver."""
    memory_used: int | None = None
    """The bytes of GPU memory in use."""
    utilization: float | None = None
    """The part of the time in which the GPU computed."""
    processes: tuple[Process, ...] | None = None
    """The processes that use the GPU, without processes that ended during the look; None while they are unknown.

    An empty tuple for a card in MIG mode: the MIG instances of the card have the processes.
    """
    unknown: str | None = None
    """Why the containers that use the GPU are unknown; None where the containers are known."""
    mps_clients: int | None = None
    """The number of processes that compute through MPS."""
    stowaways: tuple[Stowaway, ...] = ()
    """The foreign processes on the GPU; none before the attribution."""


class Usage(Struct, frozen=True):
    """The usage of a node at the last look."""

    gpus: tuple[GpuUsage, ...] = ()
    """The usage of every GPU that answered."""
    containers: tuple[ContainerUsage, ...] = ()
    """The usage of every container that holds units or claims."""
    age: float = 0.0
    """Seconds since the look."""
    held: Mapping[tuple[str, str], int] | None = None
    """The number of held units, by resource and UUID of the GPU; None while the holdings are unknown."""

    @property
    def stowaways(self) -> tuple[Stowaway, ...]:
        """The foreign processes on all GPUs."""
        return tuple(each for gpu in self.gpus for each in gpu.stowaways)

    def of_gpu(self, uuid: str) -> GpuUsage | None:
        """Return the usage of a GPU, None if the usage is unknown."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
