"""Variables for frameworks that limit their own memory; each variable has one value for all GPUs of a container.

Sources: JAX, "GPU memory allocation" (a fraction of the GPU memory; older releases do not know the newer name
XLA_CLIENT_MEM_FRACTION, and newer releases reject both names together); CuPy, "Environment variables" (bytes);
TensorFlow, "Use a GPU" (no variable for an amount, only a variable for taking memory when needed instead of all memory
at the start).

PyTorch gets no variable. PyTorch reads `per_process_memory_fraction` in PYTORCH_ALLOC_CONF, but releases without the
option end with an error, and the variable would hide the allocator options of an image.
"""

from fractions import Fraction

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.grant import Grant
from gpushare_plugin.sharing.isolation.layer import ContainerShare

_MILLION = 1_000_000


class FrameworkHints(Struct, frozen=True):
    """The layer with variables for frameworks; a program can ignore the variables."""

    def add(self, grant: Grant, share: ContainerShare) -> None:
        """Add the variables, with values within the share on every GPU."""
        least = min(part.mib for part in share.parts)
        millionths = min(Fraction(part.mib * _MILLION, part.gpu.memory_mib) for part in share.parts)
        grant.environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{int(millionths) / _MILLION:.6f}"
        grant.environment["CUPY_GPU_MEMORY_LIMIT"] = str(least * MIB)
        grant.environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
