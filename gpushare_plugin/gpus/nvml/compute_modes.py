"""Compute modes through NVML (nvml.h, `nvmlDeviceGetComputeMode` and `nvmlDeviceSetComputeMode`)."""

from pathlib import Path
from typing import Any

import pynvml

from gpushare_plugin.base.errors import NoGpuLibraryError
from gpushare_plugin.gpus.compute_modes import ComputeMode, ComputeModeError
from gpushare_plugin.gpus.nvml.library import NvmlLibrary
from gpushare_plugin.gpus.nvml.unanswered import UNANSWERED


class NvmlComputeModes:
    """The compute modes of the node's GPUs, through NVML."""

    def __init__(self, driver_root: Path, sysfs: Path = Path("/sys"), procfs: Path = Path("/proc")) -> None:
        """Look for the library below `driver_root` first; read the kernel's list of cards from `sysfs` and `procfs`."""
        self._library = NvmlLibrary(driver_root, sysfs, procfs)

    def read(self, uuid: str) -> ComputeMode:
        """Return the mode of a GPU; raises ComputeModeError."""
        handle = self._handle(uuid)
        try:
            return ComputeMode(pynvml.nvmlDeviceGetComputeMode(handle))
        except UNANSWERED as error:
            raise ComputeModeError(
                f"{uuid} does not report a compute mode ({error}), so the MPS server cannot have it alone. Share it "
                "without MPS"
            ) from error
        except (pynvml.NVMLError, ValueError) as error:
            raise ComputeModeError(f"the compute mode of {uuid} cannot be read: {error}") from error

    def set(self, uuid: str, mode: ComputeMode) -> None:
        """Change the mode of a GPU, which requires root; raises ComputeModeError."""
        handle = self._handle(uuid)
        try:
            pynvml.nvmlDeviceSetComputeMode(handle, mode)
        except pynvml.NVMLError_NoPermission as error:
            raise ComputeModeError(
                f"the compute mode of {uuid} cannot be set to {mode.name}: {error}. Run gpushare mps as root in a "
                "privileged container"
            ) from error
        except pynvml.NVMLError as error:
            raise ComputeModeError(f"the compute mode of {uuid} cannot be set to {mode.name}: {error}") from error

    def _handle(self, uuid: str) -> Any:
        try:
            self._library.open()
            return pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except (NoGpuLibraryError, pynvml.NVMLError) as error:
            raise ComputeModeError(f"the compute mode of {uuid} is not accessible: {error}") from error
