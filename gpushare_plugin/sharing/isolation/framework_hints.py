"""The variables by which frameworks limit themselves: each has one value for all GPUs of a container.

Facts: JAX, "GPU memory allocation" (a fraction of the GPU's memory; the newer name XLA_CLIENT_MEM_FRACTION is unknown
to older releases, and having both is an error in newer ones); CuPy, "Environment variables" (bytes); TensorFlow, "Use a
GPU", which has no variable for an amount, only one for taking memory as it is needed instead of all at once.

PyTorch is not here: it reads `per_process_memory_fraction` in PYTORCH_ALLOC_CONF, but releases that do not know the
option end with an error, and the variable would hide the allocator options of an image.
"""

from fractions import Fraction

from gpushare_plugin.foundation.memory import MIB
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.grant import Grant
from gpushare_plugin.sharing.isolation.layer import ContainerShare

_MILLION = 1_000_000


class FrameworkHints(Struct, frozen=True):
    """Sets the variables by which frameworks limit themselves to the share; a program can ignore them."""

    def add(self, grant: Grant, share: ContainerShare) -> None:
        """Add the variables, no one of which allows more than the share of any GPU."""
        least = min(part.mib for part in share.parts)
        millionths = min(Fraction(part.mib * _MILLION, part.gpu.memory_mib) for part in share.parts)
        grant.environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{int(millionths) / _MILLION:.6f}"
        grant.environment["CUPY_GPU_MEMORY_LIMIT"] = str(least * MIB)
        grant.environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
