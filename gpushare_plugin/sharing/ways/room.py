"""The room of a GPU for slices: its nominal size, and as many slices as MPS serves clients."""

from collections.abc import Collection, Iterable

from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.unit import MIB_PER_GIB, Unit, parse_unit
from gpushare_plugin.sharing.isolation.mps import most_clients


def nominal_size(gpu: Gpu) -> int:
    """Return the parts that the slices of `gpu` can have in all: its usable memory in GiB, rounded up."""
    return -(-gpu.memory_mib // MIB_PER_GIB)


def fitting(gpu: Gpu, new: Iterable[Unit], there: Collection[str]) -> frozenset[str]:
    """Return the IDs of the `new` slices of `gpu` that have room beside those that are `there`, given by their IDs.

    Small ones come first, as in a cut: then as many as possible do.
    """
    room = nominal_size(gpu) - sum(map(_parts, there))
    places = most_clients(gpu) - len(there)
    found: set[str] = set()
    for unit in sorted(new, key=lambda each: (_parts(each.id), each.number)):
        if unit.id not in there and _parts(unit.id) <= room and len(found) < places:
            found.add(unit.id)
            room -= _parts(unit.id)
    return frozenset(found)


def _parts(id_: str) -> int:
    """Return the nominal size that the ID of a slice names; its memory can be a little less."""
    unit = parse_unit(id_, {})
    return unit.mib // MIB_PER_GIB if unit else 0
