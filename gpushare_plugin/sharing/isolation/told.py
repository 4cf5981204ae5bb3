"""What containers are told of their share, whatever enforces it."""

from collections.abc import Iterable
from dataclasses import dataclass

from gpushare_plugin.model.grant import Grant
from gpushare_plugin.sharing.isolation.layer import ContainerShare


@dataclass(frozen=True, slots=True)
class Told:
    """Tells a container its share, in MiB, and enforces nothing; several GPUs are told with commas between.

    `cgpu_disabled` tells ACK's cGPU, a kernel module that reads the variable, to leave the container alone.
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
