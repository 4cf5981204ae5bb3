"""The usage of a node's GPUs at one moment, as shown by the host: without knowledge of holdings and limits."""

from gpushare_plugin.base.structs import Struct


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


class GpuSample(Struct, frozen=True):
    """The usage of a GPU or MIG instance at one moment; None stands for facts that the driver does not report."""

    uuid: str
    """The UUID of the GPU or MIG instance."""
    memory_total: int | None = None
    """The bytes of GPU memory, without the memory reserved by the driver."""
    memory_used: int | None = None
    """The bytes of GPU memory in use."""
    utilization: float | None = None
    """The part of the time in which the GPU computed, from 0 to 1."""
    processes: tuple[Process, ...] = ()
    """The processes that use the GPU, without processes that ended during the look.

    A card in MIG mode has none: the MIG instances of the card have the processes.
    """
    unknown: str | None = None
    """Why the processes of the GPU are unknown; None where the processes are known."""
    mps_clients: int | None = None
    """The number of processes that compute through MPS."""
