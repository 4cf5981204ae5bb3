"""How the GPUs of a node were used at one moment, as the host shows it; pods and limits are not known here."""

from gpushare_plugin.foundation.structs import Struct


class Owner(Struct, frozen=True):
    """Whose process it is: the pod's UID and the container's ID, as its cgroup names them.

    Simulated processes name the pod as `namespace/name` and the container instead. What is not known is empty.
    """

    pod_uid: str = ""
    container_id: str = ""
    pod: str = ""
    container: str = ""


HOST = Owner()
"""The owner of a process that is in no pod."""


class Process(Struct, frozen=True):
    """A process that uses a GPU; `pid` is its number in the PID namespace of the host, `program` its short name.

    `memory` are bytes of the GPU's memory, `utilization` the part of the time in which it computed there (0 to 1);
    either is None where the driver does not say.
    """

    pid: int
    program: str = ""
    memory: int | None = None
    utilization: float | None = None
    owner: Owner = HOST


class GpuSample(Struct, frozen=True):
    """One GPU or MIG instance, by UUID: bytes of its memory and how many are in use, and how busy it was (0 to 1).

    What the driver does not say is None. `memory_total` is without what the driver keeps for itself. A card in MIG mode
    has no processes of its own: those of its instances are theirs. `unknown` says why it is not known which processes
    use the GPU, None where it is; processes that ended while they were looked at are left out. `mps_clients` is how
    many of the processes compute through MPS.
    """

    uuid: str
    memory_total: int | None = None
    memory_used: int | None = None
    utilization: float | None = None
    processes: tuple[Process, ...] = ()
    unknown: str | None = None
    mps_clients: int | None = None
