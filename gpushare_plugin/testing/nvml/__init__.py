"""A stand-in for NVIDIA's `libnvidia-ml.so.1`, for programs that load it with `pynvml` or any other way.

with FakeNvml([FakeGpu(), FakeGpu(name="Tesla T4", memory_mib=15360, compute_capability=(7, 5))]) as node:
    subprocess.run(["nvidia-program"], env={**os.environ, **node.environment})
"""

from gpushare_plugin.testing.nvml.building import LIBRARY_NAME, CompilerError, build, compilers
from gpushare_plugin.testing.nvml.description import functions
from gpushare_plugin.testing.nvml.fake import ENVIRONMENT_VARIABLE, UNPRIVILEGED_VARIABLE, FakeNvml
from gpushare_plugin.testing.nvml.mig_profiles import MigProfile, mig_profiles
from gpushare_plugin.testing.nvml.node import (
    ALL_FUNCTIONS,
    DRIVER_WITH_LIMITS,
    GB10,
    NO_MEMORY_REPORTED,
    ErrorCode,
    EventType,
    FakeConnection,
    FakeGpu,
    FakeMigInstance,
    FakeProcess,
    LimitBackend,
    Topology,
)

__all__ = [
    "ALL_FUNCTIONS",
    "DRIVER_WITH_LIMITS",
    "ENVIRONMENT_VARIABLE",
    "GB10",
    "LIBRARY_NAME",
    "NO_MEMORY_REPORTED",
    "UNPRIVILEGED_VARIABLE",
    "CompilerError",
    "ErrorCode",
    "EventType",
    "FakeConnection",
    "FakeGpu",
    "FakeMigInstance",
    "FakeNvml",
    "FakeProcess",
    "LimitBackend",
    "MigProfile",
    "Topology",
    "build",
    "compilers",
    "functions",
    "mig_profiles",
]
