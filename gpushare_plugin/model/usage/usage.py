"""Who uses what on a node: GPUs, the containers that hold them, and processes that should not be there.

Memory is in bytes; a utilization is the part of the time in which a GPU computed, from 0 to 1. None is not known.
"""

from collections.abc import Mapping

from gpushare_plugin.foundation.memory import MIB
from gpushare_plugin.foundation.structs import Struct

TOLERANCE = 512 * MIB
"""Bytes by which a container may exceed its limit: the context of CUDA takes some hundreds of MiB for each process."""


class ContainerUsage(Struct, frozen=True):
    """What a container holds of a GPU (by UUID), and what its processes use there.

    `container` is empty for all containers of the pod together, where several hold the same GPU and it is not known
    which of them a process belongs to. `uid` is the pod's UID as the kubelet has it. `resource` has several names,
    separated by commas, where the container holds units of several. `limit` is None where nothing says how much memory
    the container may use, as with time slicing.
    """

    namespace: str
    pod: str
    container: str
    uid: str
    gpu: str
    resource: str
    units: int
    limit: int | None = None
    used: int | None = None
    utilization: float | None = None
    processes: int | None = None

    @property
    def label(self) -> str:
        """The pod, as people name it."""
        return f"{self.namespace}/{self.pod}"

    @property
    def excess(self) -> int:
        """Bytes in use beyond the limit; 0 where there is no limit, or it is not known what is in use."""
        return 0 if self.limit is None or self.used is None else max(0, self.used - self.limit)

    @property
    def over(self) -> bool:
        """Whether it uses more than it may, by more than the tolerance."""
        return self.excess > TOLERANCE


class Stowaway(Struct, frozen=True):
    """A process on an offered GPU (by UUID) that belongs to no pod to which units of this GPU were allocated.

    `pod` is `namespace/name` where the pod is known, since it holds another GPU; `pod_uid` and `container_id` are empty
    for a process that is in no pod.
    """

    gpu: str
    pid: int
    program: str = ""
    pod: str = ""
    pod_uid: str = ""
    container_id: str = ""
    memory: int | None = None

    @property
    def whose(self) -> str:
        """Whose process it is, in words."""
        if self.pod or self.pod_uid:
            return f"pod {self.pod or self.pod_uid}"
        return f"container {self.container_id}" if self.container_id else "the host"


class GpuUsage(Struct, frozen=True):
    """How one GPU or MIG instance, by UUID, is used.

    `processes` counts the processes that use it, `mps_clients` those that compute through MPS. `unknown` says why it is
    not known which containers use it.
    """

    uuid: str
    memory_total: int | None = None
    memory_used: int | None = None
    utilization: float | None = None
    processes: int | None = None
    stowaways: tuple[Stowaway, ...] = ()
    unknown: str | None = None
    mps_clients: int | None = None


class Usage(Struct, frozen=True):
    """How a node was used `age` seconds ago: each GPU that answered, and each container that holds one.

    `held` are the units that containers hold, by resource and the UUID of the GPU; None where that is not known.
    """

    gpus: tuple[GpuUsage, ...] = ()
    containers: tuple[ContainerUsage, ...] = ()
    age: float = 0.0
    held: Mapping[tuple[str, str], int] | None = None

    @property
    def stowaways(self) -> tuple[Stowaway, ...]:
        """The processes that should not be there, on all GPUs."""
        return tuple(each for gpu in self.gpus for each in gpu.stowaways)

    def of_gpu(self, uuid: str) -> GpuUsage | None:
        """Return how a GPU is used, None where that is not known."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
