"""The memory limits that NVIDIA's driver enforces for cgroups: the readings, the errors, and the interface to both.

Source: nvml.h of CUDA 13.4, `nvmlDeviceSetMemoryLimits_v1` and `nvmlDeviceGetMemoryLimits_v1`; drivers from 615 on have
both.
"""

from pathlib import Path
from typing import Protocol

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.driver_limits import MemoryLimit


class LimitReading(Struct, frozen=True):
    """The answer of the driver about a cgroup on a GPU."""

    limit: MemoryLimit
    """The limits in effect, in bytes. With the driver's own account (backend `misc`) the limits may be those of an
    ancestor of the cgroup: the driver does not say whose limits the answer has."""
    used: int | None
    """The bytes that the driver counts for these limits; None where the driver does not say."""


class LimitError(GpushareError):
    """The limits of a cgroup cannot be read or set; the message says why, and what to do."""


class NoLimitFunctionError(LimitError):
    """The library of the driver has no function for memory limits: the driver is older than 615."""


class NoLimitAnswerError(LimitError):
    """The driver does not limit memory here, or knows no limits of this cgroup: NVML has one answer for both."""


class LimitRefusedError(LimitError):
    """The driver does not take these limits: more memory is in use, the GPU has less, or the GPU is a MIG instance."""


class LimitNotEnforcedError(LimitError):
    """The driver has the limits of the cgroup, but counts the processes of the cgroup elsewhere."""


class LimitPermissionError(LimitError):
    """The process may not set limits."""


class NoCgroupError(LimitError):
    """There is no cgroup at the path."""


class MemoryLimits(Protocol):
    """Reads and sets the memory limits of cgroups on the GPUs of the node."""

    def read(self, uuid: str, cgroup: Path) -> LimitReading:
        """Return the limits of a cgroup, a directory, on the GPU with this UUID; may block. Raises LimitError."""
        ...

    def set(self, uuid: str, cgroup: Path, limit: MemoryLimit) -> None:
        """Set the limits of a cgroup on a GPU, and read the limits back; may block. Raises LimitError.

        `NO_LIMIT` removes the limits. The caller has to keep the limits below the memory of the GPU.
        """
        ...
