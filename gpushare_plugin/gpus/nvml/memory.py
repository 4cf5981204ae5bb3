"""The memory of a GPU, reported by NVML."""

from functools import partial
from typing import Any, NamedTuple

import pynvml

from gpushare_plugin.gpus.nvml.unanswered import UNANSWERED, answered

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


def read_memory(handle: Handle) -> Memory | None:
    """Return the memory of a GPU, None for a GPU that does not report its memory, such as GB10; raises NVMLError.

    A total of 0 is no report. An old driver does not report the reserved memory: `reserved` is then 0, and `used`
    includes the reserved memory.
    """
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        found = Memory(int(memory.total), int(memory.reserved), int(memory.used))
    except UNANSWERED:
        memory = answered(partial(pynvml.nvmlDeviceGetMemoryInfo, handle), None)
        found = Memory(int(memory.total), 0, int(memory.used)) if memory else Memory(0, 0, 0)
    return found if found.total else None
