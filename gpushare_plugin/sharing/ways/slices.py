"""Slices of given sizes: a GPU is cut into a few slices, and a container gets one of them.

The names are those of nos. Sizes are parts of a GPU's nominal size, its usable memory rounded up to whole GiB, because
what a container can use of a 40 GB card is a little less than 40 GiB, and two slices of 20gb must fit on it.
"""

from dataclasses import dataclass
from fractions import Fraction

from gpushare_plugin.config.schema import SliceSize
from gpushare_plugin.model.chooser import refuse_several_slices
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import Allocation, Grant
from gpushare_plugin.model.unit import Unit, slice_prefix
from gpushare_plugin.sharing.injection import Injection
from gpushare_plugin.sharing.isolation.layer import ContainerShare, Layers, Part, isolate

_MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True)
class SliceGranter:
    """Gives a container one slice of `size`; `layers` hold it to that."""

    size: SliceSize
    injection: Injection
    layers: Layers

    def grant(self, allocation: Allocation) -> Grant:
        """Return the GPU and the limits of the slice."""
        refuse_several_slices(allocation.resource, len(allocation.ids))
        (allocated,) = allocation.gpus
        part = Part(allocated.gpu, allocated.mib, Fraction(self.size.parts, nominal_size(allocated.gpu)))
        share = ContainerShare((part,), allocation.ids)
        return isolate(self.injection.grant([allocated.gpu]), share, self.layers)


def nominal_size(gpu: Gpu) -> int:
    """Return the parts that the slices of `gpu` can have in all: its usable memory in GiB, rounded up."""
    return -(-gpu.memory_mib // _MIB_PER_GIB)


def slice_units(gpu: Gpu, short_uuid: str, size: SliceSize, count: int) -> list[Unit]:
    """Cut `count` slices of `size` from `gpu`; each has its proportion of the usable memory, rounded down to MiB."""
    prefix = slice_prefix(short_uuid, str(size))
    mib = gpu.memory_mib * size.parts // nominal_size(gpu)
    return [Unit(f"{prefix}{number}", gpu.uuid, number, gpu.numa_node, mib) for number in range(count)]
