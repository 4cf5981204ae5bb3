"""Variables that tell programs the share of their container, and enforce nothing.

Some are hints for frameworks that limit their own memory; a hint has one value for all GPUs of a container. Sources:
JAX, "GPU memory allocation" (a fraction of the GPU memory; older releases do not know the newer name
XLA_CLIENT_MEM_FRACTION, and newer releases reject both names together); CuPy, "Environment variables" (bytes);
TensorFlow, "Use a GPU" (no variable for an amount, only a variable for taking memory when needed instead of all memory
at the start).

PyTorch gets no variable. PyTorch reads `per_process_memory_fraction` in PYTORCH_ALLOC_CONF, but releases without the
option end with an error, and the variable would hide the allocator options of an image.
"""

from collections.abc import Iterable
from fractions import Fraction

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.grant import Allocation, Grant


class ShareVariables(Struct, frozen=True):
    """The layer with variables for the share of a container, which enforces nothing.

    Values are in MiB; commas separate the values of several GPUs.
    """

    cgpu_disabled: bool = False
    """Whether to turn off the limits of ACK's cGPU, a kernel module that reads the variable CGPU_DISABLE."""

    def add(self, grant: Grant, share: Allocation) -> None:
        """Add the memory limit, and the memory of the whole GPU."""
        grant.environment["GPUSHARE_MEMORY_LIMIT_MIB"] = _listed(part.mib for part in share.gpus)
        grant.environment["GPUSHARE_GPU_MEMORY_MIB"] = _listed(part.gpu.memory_mib for part in share.gpus)
        if self.cgpu_disabled:
            grant.environment["CGPU_DISABLE"] = "true"


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


_MILLION = 1_000_000


class FrameworkHints(Struct, frozen=True):
    """The layer with variables for frameworks; a program can ignore the variables."""

    limit_is_seen: bool = False
    """Whether frameworks see the limit as the memory of the GPU, of which JAX would take the fraction.

    Source: xla/pjrt/gpu/gpu_helpers.cc, `CreateBFCAllocator` (the fraction of the total of `DeviceMemoryUsage`).
    """

    def add(self, grant: Grant, share: Allocation) -> None:
        """Add the variables, with values within the share on every GPU."""
        least = min(part.mib for part in share.gpus)
        if not self.limit_is_seen:
            millionths = min(Fraction(part.mib * _MILLION, part.gpu.memory_mib) for part in share.gpus)
            grant.environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{int(millionths) / _MILLION:.6f}"
        grant.environment["CUPY_GPU_MEMORY_LIMIT"] = str(least * MIB)
        grant.environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
