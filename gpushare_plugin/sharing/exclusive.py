"""Whole GPUs: a request gets cards to itself, close to each other when it asks for several."""

from collections.abc import Sequence

from gpushare_plugin.foundation.errors import PlacementError
from gpushare_plugin.model.gpu import Closeness, Gpu
from gpushare_plugin.model.grant import Grant
from gpushare_plugin.model.placement import close_gpus
from gpushare_plugin.model.resource import Resource, Shares
from gpushare_plugin.model.unit import Unit
from gpushare_plugin.sharing.injection import Injection


class WholeGpus(Resource):
    """A resource whose units are whole GPUs; the ID of a unit is the GPU's UUID."""

    def __init__(self, name: str, shares: Shares, closeness: Closeness, injection: Injection) -> None:
        """Advertise GPUs that have one unit each; `closeness` was read when the GPUs were."""
        super().__init__(name, shares)
        self._closeness = closeness
        self._injection = injection

    def _choose(self, available: Sequence[Unit], must: Sequence[Unit], size: int) -> list[Unit]:
        if len(available) < size:
            raise PlacementError(f"{self.name}: {size} GPUs asked for, {len(available)} free and healthy")
        free = sorted(available, key=lambda unit: self.gpus[unit.gpu].place)
        chosen = close_gpus([unit.gpu for unit in free], [unit.gpu for unit in must], size, self._closeness)
        return [self.units[uuid] for uuid in chosen]

    def _grant(self, units: Sequence[Unit]) -> Grant:
        gpus = sorted((self.gpus[unit.gpu] for unit in units), key=lambda gpu: gpu.place)
        return self._injection.grant(gpus)


def whole_unit(gpu: Gpu) -> Unit:
    """Return the one unit of a GPU that is not shared."""
    return Unit(gpu.uuid, gpu.uuid, 0, gpu.numa_node)
