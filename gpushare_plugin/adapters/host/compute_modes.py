"""The compute mode of a GPU: who may use it at the same time."""

from enum import IntEnum
from pathlib import Path
from typing import Protocol

from gpushare_plugin.adapters.host.simulated import SimulatedSource
from gpushare_plugin.foundation.errors import GpushareError


class ComputeMode(IntEnum):
    """Compute modes by NVML's numbers (nvml.h, `nvmlComputeMode_t`)."""

    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


class ComputeModeError(GpushareError):
    """The compute mode of a GPU cannot be read or set; the message says why."""


class ComputeModes(Protocol):
    """Something that knows the compute modes of this node's GPUs."""

    def read(self, uuid: str) -> ComputeMode:
        """Return the mode of a GPU; may block. Raises ComputeModeError."""
        ...

    def set(self, uuid: str, mode: ComputeMode) -> None:
        """Change the mode of a GPU; may block. Raises ComputeModeError."""
        ...


class SimulatedComputeModes:
    """The modes of GPUs that a file describes: remembered as long as this process lives."""

    def __init__(self, file: Path) -> None:
        """Describe the node by `file`, which is read at each question."""
        self._source = SimulatedSource(file)
        self._modes: dict[str, ComputeMode] = {}

    def read(self, uuid: str) -> ComputeMode:
        """Return the mode of a GPU of the file."""
        if all(gpu.uuid != uuid for gpu in self._source.read().cards):
            raise ComputeModeError(f"{uuid} is not a GPU of this node")
        return self._modes.get(uuid, ComputeMode.DEFAULT)

    def set(self, uuid: str, mode: ComputeMode) -> None:
        """Change the mode of a GPU of the file."""
        self.read(uuid)
        self._modes[uuid] = mode
