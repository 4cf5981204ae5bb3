"""The memory of a GPU, reported by NVML."""

from typing import Any, NamedTuple

import pynvml

Handle = Any
"""An opaque pointer of NVML."""


class Memory(NamedTuple):
    """The memory of a GPU in bytes."""

    total: int
    """The total memory."""
    reserved: int
    """The memory reserved by the driver for itself; 0 if the driver is too old to report this."""
    used: int
    """The memory in use, without the reserved memory; an old driver includes the reserved memory."""


def read_memory(handle: Handle) -> Memory:
    """Return the memory of a GPU; raises NVMLError.

    An old driver does not report the reserved memory: `reserved` is then 0, and `used` includes the reserved memory.
    """
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return Memory(int(memory.total), 0, int(memory.used))
    return Memory(int(memory.total), int(memory.reserved), int(memory.used))
