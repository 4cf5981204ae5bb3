"""The memory of a GPU, as NVML reports it."""

from typing import Any, NamedTuple

import pynvml

Handle = Any
"""An opaque pointer of NVML."""


class Memory(NamedTuple):
    """Bytes of a GPU: all, those that the driver keeps for itself, and those in use besides."""

    total: int
    reserved: int
    used: int


def read_memory(handle: Handle) -> Memory:
    """Return the memory of a GPU; raises NVMLError.

    An old driver does not report what it keeps: that is 0 then, and counts as used.
    """
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return Memory(int(memory.total), 0, int(memory.used))
    return Memory(int(memory.total), int(memory.reserved), int(memory.used))
