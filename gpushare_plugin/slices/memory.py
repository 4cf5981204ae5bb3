"""The room of a GPU under MPS: the memory in whole GiB, shared by a limited number of slices."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

from gpushare_plugin.base.memory import MIB_PER_GIB
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.slices.room import How, Layout, Option, given, made, without
from gpushare_plugin.slices.slice import Slice, SliceKind, nominal_gib

MOST_MPS_CLIENTS = 48
"""Clients served by MPS at once on a GPU of compute capability 7.0 or more; thus the most slices of a GPU."""


class MemoryRoom(Struct, frozen=True):
    """The memory of a GPU under MPS."""

    kind: ClassVar[SliceKind] = "mps"
    """Division of the memory between clients of MPS."""
    part_name: ClassVar[str] = "GiB"
    """The name of the parts."""
    names: ClassVar[tuple[str, ...]] = ()
    """Empty: slices can have any size."""

    parts: int
    """The usable memory in GiB, rounded up."""
    most: int = MOST_MPS_CLIENTS
    """The most slices at once."""

    @classmethod
    def of(cls, mib: int, most: int = MOST_MPS_CLIENTS) -> "MemoryRoom":
        """Return the room of a GPU with `mib` MiB of usable memory and at most `most` slices."""
        return cls(-(-mib // MIB_PER_GIB), most)

    def left_by(self, slices: Mapping[Slice, int]) -> "MemoryRoom":
        """Return the room that `slices`, a number per size, leave; both fields of the result can be negative."""
        left = self.parts - sum(each.gib * count for each, count in slices.items())
        return MemoryRoom(left, self.most - sum(slices.values()))

    def count(self, wanted: Slice) -> int:
        """Return how many slices of the size `wanted` fit on the empty GPU."""
        return max(0, min(self.parts // wanted.gib, self.most))

    def parts_taken(self, name: str) -> int:
        """Return the GiB that a slice takes, 0 for a place of a MIG instance."""
        return 0 if "@" in name else nominal_gib(name)

    def parts_needed(self, wanted: Slice) -> int | None:
        """Return the GiB that a slice needs, None for a MIG instance, and for a slice larger than the empty GPU."""
        return wanted.gib if wanted.kind == "mps" and wanted.gib <= self.parts else None

    def fits(self, slices: Sequence[str]) -> bool:
        """Return whether the sum of the GiB and the number of `slices` are within the room."""
        of_memory = "@" not in "".join(slices)
        return of_memory and len(slices) <= self.most and sum(map(self.parts_taken, slices)) <= self.parts

    def options(self, layout: Layout, wanted: Slice) -> tuple[Option, ...]:
        """Return an idle or pinned slice, if any, and a new slice, if possible."""
        return _memory_options(self, layout, wanted)

    def left(self, layout: Layout) -> int:
        """Return the GiB that are neither fixed nor pinned."""
        return self.parts - sum(map(self.parts_taken, layout.fixed)) - sum(map(self.parts_taken, layout.pinned))

    def missing(self, layout: Layout, wanted: Slice) -> int:
        """Return the missing GiB, or the number of excess slices if larger."""
        return max(0, wanted.gib - self.left(layout), len(layout.fixed) + len(layout.pinned) + 1 - self.most)


@lru_cache(maxsize=16384)
def _memory_options(room: MemoryRoom, layout: Layout, wanted: Slice) -> tuple[Option, ...]:
    if (size := room.parts_needed(wanted)) is None:
        return ()
    name = wanted.name
    found = [given(room, layout, name)] if name in layout.idle or name in layout.pinned else []
    idle = sum(map(room.parts_taken, layout.idle))
    free = room.left(layout) - idle
    how: How
    if size <= idle:
        how, removed = "cut", _enough(room, layout.idle, size)
    elif size <= free:
        how, removed = "free", ()
    elif size <= free + idle:
        how, removed = "joined", _enough(room, layout.idle, size - free)
    else:
        return tuple(found)
    if (too_many := len(layout.all) - len(removed) + 1 - room.most) > 0:
        rest = without(layout.idle, removed)
        if len(rest) < too_many:
            return tuple(found)
        removed = (*removed, *sorted(rest, key=room.parts_taken)[:too_many])
    return (*found, made(room, layout, how, name, removed))


def _enough(room: MemoryRoom, idle: Sequence[str], size: int) -> tuple[str, ...]:
    """Return idle slices with `size` GiB in all: the smallest sufficient slice, or else a few large slices."""
    by_size = sorted(idle, key=room.parts_taken)
    for name in by_size:
        if room.parts_taken(name) >= size:
            return (name,)
    removed: list[str] = []
    for name in reversed(by_size):
        if size > 0:
            removed.append(name)
            size -= room.parts_taken(name)
    for name in sorted(removed, key=room.parts_taken):
        if room.parts_taken(name) <= -size:
            removed.remove(name)
            size += room.parts_taken(name)
    return tuple(removed)
