"""The driver's own limits of GPU memory for each cgroup, which drivers have from 615 on (nvml.h of CUDA 13.4)."""

import ctypes
from collections.abc import AsyncIterator

from real_gpus.findings import Finding, equal
from real_gpus.steps import Subject

_FIRST_DRIVER = 615
_CALL = "nvmlDeviceSetMemoryLimits_v1"


async def driver_limits(subject: Subject) -> AsyncIterator[Finding]:
    """Look whether the library has the call."""
    driver = subject.machine.driver
    there = hasattr(ctypes.CDLL("libnvidia-ml.so.1"), _CALL)
    yield equal(f"{_CALL} in the library of driver {driver}", int(driver.split(".")[0]) >= _FIRST_DRIVER, there)
