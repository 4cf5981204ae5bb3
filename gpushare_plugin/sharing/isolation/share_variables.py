"""The variables that state the share of a container, whatever the isolation."""

from collections.abc import Iterable

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.grant import Grant
from gpushare_plugin.sharing.isolation.layer import ContainerShare


class ShareVariables(Struct, frozen=True):
    """The layer with variables for the share of a container, which enforces nothing.

    Values are in MiB; commas separate the values of several GPUs.
    """

    cgpu_disabled: bool = False
    """Whether to turn off the limits of ACK's cGPU, a kernel module that reads the variable CGPU_DISABLE."""

    def add(self, grant: Grant, share: ContainerShare) -> None:
        """Add the memory limit, and the memory of the whole GPU."""
        grant.environment["GPUSHARE_MEMORY_LIMIT_MIB"] = _listed(part.mib for part in share.parts)
        grant.environment["GPUSHARE_GPU_MEMORY_MIB"] = _listed(part.gpu.memory_mib for part in share.parts)
        if self.cgpu_disabled:
            grant.environment["CGPU_DISABLE"] = "true"


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
