"""Slices of given sizes: a GPU is cut into a few slices, and a container gets one of them.

The names are those of nos. Sizes are parts of a GPU's nominal size, its usable memory rounded up to whole GiB, because
what a container can use of a 40 GB card is a little less than 40 GiB, and two slices of 20gb must fit on it.
"""

from collections.abc import Sequence
from fractions import Fraction

from gpushare_plugin.config.schema.sections import SliceSize
from gpushare_plugin.foundation.errors import PlacementError
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import Grant
from gpushare_plugin.model.placement import one_gpu
from gpushare_plugin.model.resource import Resource, Shares, by_gpu, lowest
from gpushare_plugin.model.unit import Unit, slice_prefix
from gpushare_plugin.sharing.injection import Injection
from gpushare_plugin.sharing.isolation import Layers, Part, Share, isolate

_MIB_PER_GIB = 1024


class GpuSlices(Resource):
    """A resource whose units are slices of one size; a GPU can have slices of other sizes, under other names."""

    def __init__(self, name: str, size: SliceSize, shares: Shares, injection: Injection, layers: Layers) -> None:
        """Advertise the units of `shares`, as `slice_units` cuts them."""
        super().__init__(name, shares)
        self._size = size
        self._injection = injection
        self._layers = layers

    def _choose(self, available: Sequence[Unit], must: Sequence[Unit], size: int) -> list[Unit]:
        self._refuse_several(size)
        if must:
            return list(must)
        free = by_gpu(available)
        gpu = one_gpu(self.occupancy(free), size, "binpack")
        if gpu is None:
            raise PlacementError(f"{self.name}: 1 slice asked for, none is free and healthy")
        return lowest(free[gpu], (), size)

    def _grant(self, units: Sequence[Unit]) -> Grant:
        self._refuse_several(len(units))
        (unit,) = units
        gpu = self.gpus[unit.gpu]
        part = Part(gpu, unit.mib, Fraction(self._size.parts, nominal_size(gpu)))
        return isolate(self._injection.grant([gpu]), Share((part,), frozenset({unit.id})), self._layers)

    def _refuse_several(self, count: int) -> None:
        if count > 1:
            raise PlacementError(
                f"{self.name}: {count} slices asked for, at most 1 allowed: slices are not joined; ask for a larger one"
            )


def nominal_size(gpu: Gpu) -> int:
    """Return the parts that the slices of `gpu` can have in all: its usable memory in GiB, rounded up."""
    return -(-gpu.memory_mib // _MIB_PER_GIB)


def slice_units(gpu: Gpu, short_uuid: str, size: SliceSize, count: int) -> list[Unit]:
    """Cut `count` slices of `size` from `gpu`; each has its proportion of the usable memory, rounded down to MiB."""
    prefix = slice_prefix(short_uuid, str(size))
    mib = gpu.memory_mib * size.parts // nominal_size(gpu)
    return [Unit(f"{prefix}{number}", gpu.uuid, number, gpu.numa_node, mib) for number in range(count)]
