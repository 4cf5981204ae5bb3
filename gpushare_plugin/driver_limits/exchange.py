"""The files exchanged by `gpushare run` and `gpushare driver-limits`: the limits that containers are to have, and have.

`gpushare run` alone decides, and writes `wanted.json`. `gpushare driver-limits` only sets the limits, and writes
`status.json`. After its end the status stays, so that the next process knows how late earlier limits were set.
"""

from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.driver_limits import MemoryLimit
from gpushare_plugin.gpus.containers import CONTAINER_ID, POD_UID
from gpushare_plugin.gpus.exchange import AgentStatus, Message, MessagePart, SharedDirectory, Uuid

DEFAULT_ROOT = Path("/run/gpushare/driver-limits")
"""The default path of the root of driver limits."""

_LARGEST_FILE = 1 << 23
"""The size limit of a file in bytes: some ten thousand containers."""

PodUid = Annotated[str, Field(pattern=f"^(?:{POD_UID})$")]
"""The kubelet's UID of a pod."""
ContainerId = Annotated[str, Field(pattern=f"^{CONTAINER_ID}$")]
"""The runtime's ID of a container."""
Mib = Annotated[int, Field(ge=0)]
"""An amount of memory in MiB."""


class DriverLimitsRoot(SharedDirectory, frozen=True):
    """The root of driver limits, the directory shared by `gpushare run` and `gpushare driver-limits`."""

    program: ClassVar[str] = "gpushare driver-limits"
    title: ClassVar[str] = "root of driver limits"
    started_by: ClassVar[str] = "driverLimits.enabled"


class _LimitOnGpu(MessagePart):
    uuid: Uuid
    """The UUID of the GPU."""
    hard_mib: Mib | None = None
    """The most memory that the container can allocate, in MiB; None without a limit."""
    soft_mib: Mib = 0
    """The memory that the container is guaranteed, in MiB."""

    @model_validator(mode="after")
    def _refuse_reverse(self) -> Self:
        if self.hard_mib is not None and self.soft_mib > self.hard_mib:
            raise ValueError("the soft limit is above the hard limit")
        return self

    @property
    def limit(self) -> MemoryLimit:
        """The limits in bytes."""
        return MemoryLimit(None if self.hard_mib is None else self.hard_mib * MIB, self.soft_mib * MIB)


class WantedLimit(_LimitOnGpu):
    """The limits that a container is to have on a GPU."""


class WantedContainer(MessagePart):
    """A container that holds units of GPUs."""

    pod_uid: PodUid
    """The kubelet's UID of the pod."""
    container_id: ContainerId
    """The runtime's ID of the container."""
    gpus: tuple[WantedLimit, ...] = ()
    """The GPUs that the container holds, each with its limits."""

    @model_validator(mode="after")
    def _refuse_twice(self) -> Self:
        if len({each.uuid for each in self.gpus}) < len(self.gpus):
            raise ValueError("the same GPU is listed more than once")
        return self


class LimitOrder(Message):
    """The limits that containers are to have; the limits of other containers stay as they are."""

    largest: ClassVar[int] = _LARGEST_FILE

    gpus: tuple[Uuid, ...] = ()
    """The GPUs on which the driver is to limit containers."""
    bursts: tuple[Uuid, ...] = ()
    """The GPUs for which the config has bursts, or had since the node started: there, containers that were never
    listed may have left memory reserved."""
    containers: tuple[WantedContainer, ...] = ()
    """The containers that hold units, those without limits included."""
    missing: str | None = None
    """Why the driver of this node cannot limit memory, so that no GPU is listed; None where it can."""

    @model_validator(mode="after")
    def _refuse_twice(self) -> Self:
        if len({each.container_id for each in self.containers}) < len(self.containers):
            raise ValueError("the same container is listed more than once")
        return self


class LimitStatus(_LimitOnGpu):
    """How the wanted limits of a container on a GPU stand."""

    late: float | None = None
    """The seconds that the container ran before these limits were in effect; None while not known to be in effect.

    0 where the limits were there at the first look, so that something else had set them: NVIDIA's hook. The kernel may
    forget when a cgroup was created; then the true number is larger.
    """
    corrected: int = 0
    """How often the limits were found changed or removed, and were set again."""
    reason: str | None = None
    """Why the limits are not set; None without a problem."""


class LimitedContainer(MessagePart):
    """How the limits of a container stand."""

    pod_uid: str
    """The kubelet's UID of the pod."""
    container_id: str
    """The runtime's ID of the container."""
    gpus: tuple[LimitStatus, ...] = ()
    """The GPUs of the container."""


class GpuStatus(MessagePart):
    """Whether limits can be set on a GPU."""

    uuid: str
    """The UUID of the GPU."""
    proven: bool = False
    """Whether limits were set and read back since the start of `gpushare driver-limits`."""
    reason: str | None = None
    """Why limits cannot be set, or what the GPU waits for; None without a problem."""


class DriverLimitsStatus(AgentStatus):
    """The status of `gpushare driver-limits`."""

    largest: ClassVar[int] = _LARGEST_FILE

    gpus: tuple[GpuStatus, ...] = ()
    """The GPUs on which the driver is to limit containers."""
    containers: tuple[LimitedContainer, ...] = ()
    """The containers whose limits are wanted."""
    trouble: str | None = None
    """Why no limits at all are set; None without a problem."""

    def why_not(self, uuid: str) -> str | None:
        """Return why limits cannot be counted on for a GPU, None for a GPU on which limits were set and read back."""
        if self.trouble is not None:
            return self.trouble
        known = next((gpu for gpu in self.gpus if gpu.uuid == uuid), GpuStatus(uuid=uuid))
        return known.reason or (None if known.proven else _NOT_PROVEN)


_NOT_PROVEN = "gpushare driver-limits has not proven yet that limits can be set on this GPU"
