"""The room of a GPU for slices: its nominal size, and as many slices as MPS serves clients."""

from collections.abc import Collection, Iterable

from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.unit import MIB_PER_GIB, parse_unit
from gpushare_plugin.sharing.isolation.mps import most_clients


def nominal_size(gpu: Gpu) -> int:
    """Return the parts that the slices of `gpu` can have in all: its usable memory in GiB, rounded up."""
    return -(-gpu.memory_mib // MIB_PER_GIB)


Slot = tuple[int, int]
"""A slice of one GPU: its nominal size in GiB, and its number."""


def fitting(gpu: Gpu, new: Iterable[Slot], there: Collection[Slot]) -> list[Slot]:
    """Return which of the `new` slices of `gpu` have room beside those that are `there`.

    Small ones come first, as in a cut: then as many as possible do.
    """
    room = nominal_size(gpu) - sum(parts for parts, _ in there)
    places = most_clients(gpu) - len(there)
    found: list[Slot] = []
    for slot in sorted(new):
        if slot not in there and slot[0] <= room and len(found) < places:
            found.append(slot)
            room -= slot[0]
    return found


def slot_of(id_: str) -> Slot:
    """Return the slice that an ID names; its memory can be a little less than the nominal size."""
    unit = parse_unit(id_, {})
    return (unit.mib // MIB_PER_GIB, unit.number) if unit else (0, 0)
