"""The files exchanged by `gpushare run` and `gpushare mps` in the MPS root: desired settings and served GPUs.

`gpushare run` alone decides, and writes `wanted.json`. `gpushare mps` only carries the settings out, and writes
`status.json`.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from gpushare_plugin.base.files.socket_path import why_too_long
from gpushare_plugin.core.namespaces import SERVER, ContainerNamespace, MpsProtocol
from gpushare_plugin.gpus.exchange import UUID, AgentStatus, ExchangeError, Message, MessagePart, SharedDirectory, Uuid

_LONGEST_SOCKET_NAME = "control_privileged"
"""The longest name of a socket of nvidia-cuda-mps-control (seen with version 535)."""


MOST_CLIENTS = 1024
"""The most clients in the status: MPS serves 48 clients on a GPU."""

_LARGEST_FILE = 1 << 20
"""The size limit of a file in bytes: MOST_CLIENTS clients with their doubts, and as many namespaces."""


def is_uuid(text: str) -> bool:
    """Return whether `text` is the UUID of a card."""
    return re.fullmatch(UUID, text) is not None


class MpsRoot(SharedDirectory, frozen=True):
    """The MPS root directory, `flags.mpsRoot`, at the same path for both processes and for all containers."""

    program: ClassVar[str] = "gpushare mps"
    title: ClassVar[str] = "MPS root"
    started_by: ClassVar[str] = "mps.enabled"

    @property
    def modes(self) -> Path:
        """The file with the compute modes of the GPUs before MPS."""
        return self.path / "modes.json"

    @property
    def pipe(self) -> Path:
        """The folder with the sockets of the control daemon, which containers of pods need to see."""
        return self.path / "pipe"

    @property
    def log(self) -> Path:
        """The folder with the logs of the control daemon and the MPS servers."""
        return self.path / "log"

    @property
    def shm(self) -> Path:
        """The folder with the memory shared by MPS servers and clients: /dev/shm of both."""
        return self.path / "shm"

    def namespace(self, name: str) -> Path:
        """Return the folder with the socket of a namespace: all that a container sees of MPS with protocol 3.

        Source: NVIDIA, "Multi-Process Service", MPS v3 Namespaces.
        """
        return self.pipe / SERVER / name

    def refuse_long_path(self) -> None:
        """Raise ExchangeError if the path of the root is too long for the sockets of the control daemon."""
        if reason := why_too_long(self.path, f"pipe/{_LONGEST_SOCKET_NAME}", "the MPS root"):
            raise ExchangeError(f"{reason}: choose a shorter one")


class MpsGpu(MessagePart):
    """A GPU under MPS."""

    uuid: Uuid
    """The UUID of the GPU."""
    memory_limit_mib: Annotated[int, Field(ge=1)] | None = None
    """The memory that each process may use at most, in MiB; None for no limit."""


def served_gpus(devices: Iterable[str], *known: MpsGpu) -> tuple[MpsGpu, ...]:
    """Return the GPUs among the `devices` of a control daemon, as the last of `known` describes each of them.

    The limits of other GPUs are unknown: a daemon of an earlier run may have some.
    """
    by_uuid = {gpu.uuid: gpu for gpu in known}
    return tuple(by_uuid.get(uuid) or MpsGpu(uuid=uuid) for uuid in devices if is_uuid(uuid))


class MpsNamespace(MessagePart):
    """A namespace of the MPS server: the limits of the processes of one container, on each GPU of the container."""

    name: Annotated[str, Field(pattern="^[a-z0-9_]{1,64}$")]
    """The name, made from the IDs of the container's units."""
    memory_limit_mib: Annotated[int, Field(ge=1)]
    """The memory that each process may use of each GPU at most, in MiB."""
    active_thread_percentage: Annotated[int, Field(ge=1, le=100)] = 100
    """The percentage of each GPU's threads that a process may use at most."""

    @classmethod
    def of(cls, namespace: ContainerNamespace) -> Self:
        """Return the namespace of a container: without a limit of compute, a process may use all threads."""
        percentage = namespace.active_thread_percentage or 100
        return cls(
            name=namespace.name, memory_limit_mib=namespace.memory_limit_mib, active_thread_percentage=percentage
        )


class MpsSettings(Message):
    """The GPUs under MPS, desired or in effect, and the limits of processes."""

    largest: ClassVar[int] = _LARGEST_FILE

    gpus: tuple[MpsGpu, ...] = ()
    """The GPUs, each with its memory limit."""
    active_thread_percentage: Annotated[int, Field(ge=1, le=100)] | None = None
    """The percentage of a GPU's threads that a process may use at most; None is the same as 100."""
    protocol: MpsProtocol = 2
    """The protocol of the MPS control daemon; with protocol 3, only the limits of namespaces count."""
    namespaces: tuple[MpsNamespace, ...] = ()
    """The namespaces, with protocol 3 only."""
    revision: int = 0
    """The number of changes of the namespaces: what is in effect includes all changes up to its revision."""

    @model_validator(mode="after")
    def _refuse_twice(self) -> Self:
        if len(self.uuids) < len(self.gpus):
            raise ValueError("the same GPU is listed more than once")
        if len({each.name for each in self.namespaces}) < len(self.namespaces):
            raise ValueError("the same namespace is listed more than once")
        return self

    @property
    def uuids(self) -> frozenset[str]:
        """The UUIDs of the GPUs."""
        return frozenset(gpu.uuid for gpu in self.gpus)

    def without(self, uuids: Iterable[str]) -> "MpsSettings":
        """Return a copy of the settings without these GPUs."""
        gone = frozenset(uuids)
        return self.model_copy(update={"gpus": tuple(gpu for gpu in self.gpus if gpu.uuid not in gone)})


class ListedClient(MessagePart):
    """A process that the control daemon lists as a client."""

    pid: Annotated[int, Field(ge=0)]
    """The number of the process in the PID namespace of `gpushare mps`, which is the host's; 0 outside of it."""
    server: str
    """The MPS server: the number of its process under protocol 2, its name under protocol 3."""
    namespace: str | None = None
    """The namespace of protocol 3 through which the client connected; None under protocol 2."""
    memory_limit_mib: Annotated[int, Field(ge=1)] | None = None
    """The memory limit of the namespace in MiB; None without a limit, and under protocol 2."""
    doubt: str | None = None
    """Why the limits that MPS itself holds may not limit the client, for people; None without a doubt."""


class MpsStatus(AgentStatus):
    """The GPUs served by `gpushare mps`, its clients, and the reasons for GPUs not served as desired."""

    largest: ClassVar[int] = _LARGEST_FILE

    in_force: MpsSettings = MpsSettings()
    """The GPUs under MPS, and the limits in effect."""
    not_served: dict[Uuid, str] = Field(default_factory=dict)
    """The reason for every GPU not served as desired, by UUID."""
    trouble: str | None = None
    """Why `gpushare mps` cannot read the desired settings; None without a problem."""
    problem: str | None = None
    """Why the last attempt to carry out the desired settings failed, or what it waits for; None without a problem."""
    clients: tuple[ListedClient, ...] | None = None
    """The clients of the control daemon by its last answer; None while unknown."""
    clients_asked_at: float | None = None
    """The time at which the control daemon was asked for the clients, in seconds of the node's boot-time clock."""

    def why_not(self, gpu: MpsGpu, desired: MpsSettings) -> str | None:
        """Return why a GPU is not served as `desired`, None for a GPU served as desired."""
        if gpu.uuid in self.not_served:
            return self.not_served[gpu.uuid]
        runs = self.in_force
        if gpu.uuid in runs.uuids and runs.protocol != desired.protocol:
            return f"gpushare mps runs MPS with protocol {runs.protocol}, not with protocol {desired.protocol} yet"
        if gpu in runs.gpus and runs.active_thread_percentage == desired.active_thread_percentage:
            return None
        if self.trouble is not None:
            return self.trouble
        what = "set the limits of" if gpu.uuid in runs.uuids else "started to serve"
        return f"gpushare mps has not {what} this GPU yet"

    def why_missing(self, namespace: MpsNamespace, desired: MpsSettings) -> str | None:
        """Return why a namespace is not `desired` or not in effect, None for a namespace in effect with its limits."""
        if namespace not in desired.namespaces:
            return "the gpushare run that serves this node has not requested it yet"
        if namespace in self.in_force.namespaces and self.in_force.revision >= desired.revision:
            return None
        return self.trouble or self.problem or "gpushare mps has not made it yet"


class RememberedModes(Message):
    """The compute modes of GPUs before MPS."""

    modes: dict[Uuid, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    """NVML's number of the compute mode, by the UUID of the GPU."""
