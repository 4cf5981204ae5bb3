"""The variables that state a container's share, whatever enforces it."""

from collections.abc import Iterable

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.grant import Grant
from gpushare_plugin.sharing.isolation.layer import ContainerShare


class ShareVariables(Struct, frozen=True):
    """States a container's share, in MiB, and enforces nothing; the values of several GPUs are separated by commas.

    With `cgpu_disabled`, ACK's cGPU, a kernel module that reads the variable, does not limit the container.
    """

    cgpu_disabled: bool = False

    def add(self, grant: Grant, share: ContainerShare) -> None:
        """Add the memory limit and the memory of the whole GPU."""
        grant.environment["GPUSHARE_MEMORY_LIMIT_MIB"] = _listed(part.mib for part in share.parts)
        grant.environment["GPUSHARE_GPU_MEMORY_MIB"] = _listed(part.gpu.memory_mib for part in share.parts)
        if self.cgpu_disabled:
            grant.environment["CGPU_DISABLE"] = "true"


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
