"""Whole GPUs: a request gets cards to itself, close to each other when it asks for several."""

from dataclasses import dataclass

from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import Allocation, Grant
from gpushare_plugin.model.unit import Unit
from gpushare_plugin.sharing.injection import Injection


@dataclass(frozen=True, slots=True)
class WholeGpuGranter:
    """Gives a container GPUs to itself."""

    injection: Injection

    def grant(self, allocation: Allocation) -> Grant:
        """Return the GPUs."""
        return self.injection.grant([each.gpu for each in allocation.gpus])


def whole_unit(gpu: Gpu) -> Unit:
    """Return the one unit of a GPU that is not shared."""
    return Unit(gpu.uuid, gpu.uuid, 0, gpu.numa_node)
