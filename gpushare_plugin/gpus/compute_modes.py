"""The compute mode of a GPU: how many processes may use the GPU at the same time."""

from enum import IntEnum
from pathlib import Path
from typing import Protocol

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.gpus.simulated import SimulatedSource


class ComputeMode(IntEnum):
    """Compute modes by NVML's numbers (nvml.h, `nvmlComputeMode_t`)."""

    DEFAULT = 0
    """Any number of processes may use the GPU."""
    EXCLUSIVE_THREAD = 1
    """A mode of old drivers; NVML no longer supports the mode."""
    PROHIBITED = 2
    """No process may compute on the GPU."""
    EXCLUSIVE_PROCESS = 3
    """Only one process at a time may compute on the GPU; under MPS, the MPS server."""


class ComputeModeError(GpushareError):
    """The compute mode of a GPU cannot be read or set; the message says why."""


class ComputeModes(Protocol):
    """Reads and sets the compute modes of the node's GPUs."""

    def read(self, uuid: str) -> ComputeMode:
        """Return the mode of a GPU; may block. Raises ComputeModeError."""
        ...

    def set(self, uuid: str, mode: ComputeMode) -> None:
        """Change the mode of a GPU; may block. Raises ComputeModeError."""
        ...


class SimulatedComputeModes:
    """The compute modes of simulated GPUs, remembered until the process ends."""

    def __init__(self, file: Path) -> None:
        """Take the GPUs from `file`; every call reads the file again."""
        self._source = SimulatedSource(file)
        self._modes: dict[str, ComputeMode] = {}

    def read(self, uuid: str) -> ComputeMode:
        """Return the mode of a GPU of the file; raises ComputeModeError for any other UUID."""
        if all(gpu.uuid != uuid for gpu in self._source.read().cards):
            raise ComputeModeError(f"{uuid} is not a GPU of this node")
        return self._modes.get(uuid, ComputeMode.DEFAULT)

    def set(self, uuid: str, mode: ComputeMode) -> None:
        """Change the mode of a GPU of the file; raises ComputeModeError for any other UUID."""
        self.read(uuid)
        self._modes[uuid] = mode
