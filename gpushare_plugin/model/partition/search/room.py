"""The room of one GPU: which slices fit beside which, and how room is made for one more.

There are two kinds: under MPS, slices are parts of the memory; MIG instances are at places that the driver allows.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, Protocol

from gpushare_plugin.foundation.structs import Struct, replace
from gpushare_plugin.model.gpu import MigProfile
from gpushare_plugin.model.partition.slices import Kind, MigPlace, Slice, is_profile, size_in_gib

How = Literal["idle", "cut", "free", "joined"]
"""Where a slice comes from, in the order of choice.

An idle slice as it is; the room of idle slices; free room; or free room and that of idle slices together.
"""

ORDER: tuple[How, ...] = ("idle", "cut", "free", "joined")

_COMPUTE = re.compile(r"^[1-9][0-9]?c\.", re.ASCII)
"""Begins the profile of a compute instance that is smaller than its GPU instance."""

MOST_MPS_SLICES = 48
"""Slices of a GPU under MPS, which serves as many clients of one."""


class Layout(Struct, frozen=True, gc=False):
    """The slices of a GPU, each by its name in annotations, sorted.

    `fixed` are held by pods or kept for them. `pinned` and `idle` are neither, but a pod whose GPU is not known may
    hold a pinned one: it can be given as it is, but not be cut.
    """

    fixed: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """All slices."""
        return (*self.fixed, *self.pinned, *self.idle)

    def given(self, name: str) -> "Layout":
        """Return the layout after an idle slice was given as it is."""
        if name in self.idle:
            return Layout(_with(self.fixed, name), self.pinned, _without(self.idle, (name,)))
        return Layout(_with(self.fixed, name), _without(self.pinned, (name,)), self.idle)

    def made(self, name: str, removed: Iterable[str]) -> "Layout":
        """Return the layout after a slice was made and idle ones removed for it."""
        return Layout(_with(self.fixed, name), self.pinned, _without(self.idle, removed))


class Option(Struct, frozen=True, gc=False):
    """One way to give a pod a slice of a GPU: `name` as in annotations, idle ones `removed` for it.

    The GPU is as `after` then, with so many parts `left`. `order` is the place of `how` in the order of choice.
    """

    order: int
    how: How
    name: str
    after: Layout
    left: int
    removed: tuple[str, ...] = ()


class Room(Protocol):
    """What fits on one GPU; never changed. Rooms of GPUs that are alike are equal."""

    @property
    def kind(self) -> Kind:
        """How the GPU is divided."""
        ...

    @property
    def units(self) -> int:
        """Its size in parts: GiB of memory, or memory slices."""
        ...

    @property
    def part(self) -> str:
        """What one part is, in words."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The only slices that can be had, by profile; none where any size can be."""
        ...

    def size(self, name: str) -> int:
        """Return the parts of a slice, given its name in annotations; 0 for one that cannot be here."""
        ...

    def parts(self, wanted: Slice) -> int | None:
        """Return the parts that a slice takes, None where even the empty GPU has no room for it."""
        ...

    def fits(self, slices: Sequence[str]) -> bool:
        """Return whether slices fit beside each other."""
        ...

    def options(self, layout: Layout, wanted: Slice) -> tuple[Option, ...]:
        """Return the ways to give a slice, best first; none where there is no room."""
        ...

    def left(self, layout: Layout) -> int:
        """Return the parts that could be had if all idle slices were cut."""
        ...

    def missing(self, layout: Layout, wanted: Slice) -> int:
        """Return the parts that are missing for a slice if all idle ones were removed."""
        ...


class MemoryRoom(Struct, frozen=True):
    """The memory of a GPU under MPS in whole GiB, rounded up, which at most `most` slices share."""

    units: int
    most: int = MOST_MPS_SLICES

    @property
    def kind(self) -> Kind:
        """MPS."""
        return "mps"

    @property
    def part(self) -> str:
        """GiB."""
        return "GiB"

    @property
    def names(self) -> tuple[str, ...]:
        """None, for any size can be had."""
        return ()

    def size(self, name: str) -> int:
        """Return the GiB of a slice."""
        return 0 if "@" in name else size_in_gib(name)

    def parts(self, wanted: Slice) -> int | None:
        """Return the GiB of a slice that the empty GPU has room for."""
        return wanted.gib if wanted.kind == "mps" and wanted.gib <= self.units else None

    def fits(self, slices: Sequence[str]) -> bool:
        """Return whether their GiB, and their number, are no more than there are."""
        if len(slices) > self.most:
            return False
        sizes = list(map(self.size, slices))
        return all(sizes) and sum(sizes) <= self.units

    def options(self, layout: Layout, wanted: Slice) -> tuple[Option, ...]:
        """Return an idle slice, and a new one."""
        return _memory_options(self, layout, wanted)

    def left(self, layout: Layout) -> int:
        """Return the GiB that are neither fixed nor pinned."""
        return self.units - sum(map(self.size, layout.fixed)) - sum(map(self.size, layout.pinned))

    def missing(self, layout: Layout, wanted: Slice) -> int:
        """Return the GiB that are missing; 1 at least where only the number of slices is too large."""
        return max(0, wanted.gib - self.left(layout), len(layout.fixed) + len(layout.pinned) + 1 - self.most)


@lru_cache(maxsize=16384)
def _memory_options(room: MemoryRoom, layout: Layout, wanted: Slice) -> tuple[Option, ...]:
    if (size := room.parts(wanted)) is None:
        return ()
    name = wanted.name
    found = [_given(room, layout, name)] if name in layout.idle or name in layout.pinned else []
    idle = sum(map(room.size, layout.idle))
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
        rest = _without(layout.idle, removed)
        if len(rest) < too_many:
            return tuple(found)
        removed = (*removed, *sorted(rest, key=room.size)[:too_many])
    return (*found, _made(room, layout, how, name, removed))


def _given(room: Room, layout: Layout, name: str) -> Option:
    after = layout.given(name)
    return Option(0, "idle", name, after, room.left(after))


def _made(room: Room, layout: Layout, how: How, name: str, removed: tuple[str, ...]) -> Option:
    after = layout.made(name, removed)
    return Option(ORDER.index(how), how, name, after, room.left(after), removed)


def _enough(room: MemoryRoom, idle: Sequence[str], size: int) -> tuple[str, ...]:
    """Return idle slices that have `size` GiB together: the smallest that alone is enough, or else few large ones."""
    by_size = sorted(idle, key=room.size)
    for name in by_size:
        if room.size(name) >= size:
            return (name,)
    removed: list[str] = []
    for name in reversed(by_size):
        if size > 0:
            removed.append(name)
            size -= room.size(name)
    for name in sorted(removed, key=room.size):
        if room.size(name) <= -size:
            removed.remove(name)
            size += room.size(name)
    return tuple(removed)


class MigRoom(Struct, frozen=True):
    """The places of MIG instances on a card: `units` memory slices and `compute` slices, shared by its `profiles`.

    `blocked` are memory slices, as bits, that belong to instances of other shapes: these are left alone.
    """

    units: int
    compute: int
    profiles: tuple[MigProfile, ...]
    blocked: int = 0

    @classmethod
    def of(cls, profiles: Iterable[MigProfile]) -> "MigRoom":
        """Return the room of a card with these profiles, of which the largest has all of it.

        Those that have no place, or a name that cannot be asked for, are passed over.
        """
        known = tuple({each.name: each for each in profiles if each.starts and is_profile(each.name)}.values())
        units = max((start + each.size for each in known for start in each.starts), default=0)
        return cls(units, max((each.compute for each in known), default=0), known)

    def beside(self, others: Iterable[tuple[str, int | None]]) -> "MigRoom":
        """Return the room beside instances that cannot be asked for here, given their profiles and first slices.

        Such is `1c.3g.20gb`, one of several compute instances of a GPU instance `3g.20gb`. Where it is not known what
        the GPU instance takes, nothing is left of the card.
        """
        names = {None if start is None else f"{_COMPUTE.sub('', profile)}@{start}" for profile, start in others}
        if not names:
            return self
        places = [_place(self, name) for name in names if name is not None]
        known = [place for place in places if place is not None]
        if len(known) < len(names):
            return replace(self, blocked=(1 << self.units) - 1)
        blocked, compute = self.blocked, self.compute
        for place in known:
            blocked |= place.mask
            compute -= place.profile.compute
        return replace(self, blocked=blocked, compute=compute)

    def has(self, name: str) -> bool:
        """Return whether this is a place of the card."""
        return _place(self, name) is not None

    @property
    def kind(self) -> Kind:
        """MIG."""
        return "mig"

    @property
    def part(self) -> str:
        """Memory slices."""
        return "memory slices"

    @property
    def names(self) -> tuple[str, ...]:
        """The profiles."""
        return tuple(each.name for each in self.profiles if each.starts)

    def size(self, name: str) -> int:
        """Return the memory slices of an instance."""
        place = _place(self, name)
        return place.profile.size if place else 0

    def parts(self, wanted: Slice) -> int | None:
        """Return the memory slices of a profile that the card has."""
        profile = _profile(self, wanted)
        return profile.size if profile else None

    def fits(self, slices: Sequence[str]) -> bool:
        """Return whether these are places of the card that do not overlap, within its compute slices."""
        taken, compute = self.blocked, 0
        for name in slices:
            if (place := _place(self, name)) is None or place.mask & taken:
                return False
            taken |= place.mask
            compute += place.profile.compute
        counts = Counter(_places(self)[name].profile for name in slices)
        return compute <= self.compute and all(count <= profile.most for profile, count in counts.items())

    def options(self, layout: Layout, wanted: Slice) -> tuple[Option, ...]:
        """Return the places that it can have, those first that leave most places to others."""
        return _mig_options(self, layout, wanted)

    def left(self, layout: Layout) -> int:
        """Return the memory slices that are neither fixed nor pinned."""
        return self.units - _taken(self, layout).bit_count()

    def missing(self, layout: Layout, wanted: Slice) -> int:
        """Return the memory slices in use at the place where fewest are; 1 at least where compute is what lacks."""
        if (profile := _profile(self, wanted)) is None:
            return wanted.gib
        taken = _taken(self, layout)
        places = _places(self)
        return max(
            1, min((places[f"{profile.name}@{start}"].mask & taken).bit_count() for start in profile.starts or (0,))
        )


class _MigPlace(Struct, frozen=True):
    """A place on a card: its profile, and its memory slices as bits."""

    profile: MigProfile
    mask: int


@lru_cache(maxsize=1024)
def _places(room: MigRoom) -> Mapping[str, _MigPlace]:
    return {
        str(MigPlace(profile.name, start)): _MigPlace(profile, ((1 << profile.size) - 1) << start)
        for profile in room.profiles
        for start in profile.starts
    }


def _place(room: MigRoom, name: str) -> _MigPlace | None:
    return _places(room).get(name)


def _profile(room: MigRoom, wanted: Slice) -> MigProfile | None:
    if wanted.kind != "mig":
        return None
    return next((each for each in room.profiles if each.name == wanted.name and each.starts), None)


def _mask(room: MigRoom, names: Iterable[str]) -> int:
    mask = 0
    for name in names:
        if (place := _place(room, name)) is not None:
            mask |= place.mask
    return mask


def _taken(room: MigRoom, layout: Layout) -> int:
    """Return the memory slices that cannot be had, whichever idle instances are removed."""
    return room.blocked | _mask(room, (*layout.fixed, *layout.pinned))


@lru_cache(maxsize=16384)
def _mig_options(room: MigRoom, layout: Layout, wanted: Slice) -> tuple[Option, ...]:
    if (profile := _profile(room, wanted)) is None:
        return ()
    taken = _taken(room, layout)
    ranked = [
        (option.order, len(option.removed), _blocked(room, option.name, taken), start, option)
        for start in profile.starts
        if (option := _mig_option(room, layout, profile, start)) is not None
    ]
    ranked.sort(key=lambda each: each[:-1])
    return tuple(option for *_, option in ranked)


def _mig_option(room: MigRoom, layout: Layout, profile: MigProfile, start: int) -> Option | None:
    """Return how an instance comes to be at a place."""
    name = str(MigPlace(profile.name, start))
    if name in layout.idle or name in layout.pinned:
        return _given(room, layout, name)
    mask = _places(room)[name].mask
    if mask & _taken(room, layout):
        return None
    removed = [each for each in layout.idle if _mask(room, (each,)) & mask]
    rest = list(_without(layout.idle, removed))
    while not room.fits((*layout.fixed, *layout.pinned, *rest, name)):
        if not rest:
            return None
        # Compute slices, or the number of its kind, are what lacks: those that take most compute go first.
        most = max(rest, key=lambda each: (_compute(room, each), each))
        rest.remove(most)
        removed.append(most)
    if not removed:
        return _made(room, layout, "free", name, ())
    how: How = "joined" if mask & ~_mask(room, removed) else "cut"
    return _made(room, layout, how, name, tuple(sorted(removed)))


def _compute(room: MigRoom, name: str) -> int:
    place = _place(room, name)
    return place.profile.compute if place else 0


def _blocked(room: MigRoom, name: str, taken: int) -> int:
    """Return how many places that pods could still get an instance takes away."""
    mask = _places(room)[name].mask
    return sum(1 for each in _places(room).values() if each.mask & mask and not each.mask & taken)


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(sorted((*names, name)))


def _without(names: Sequence[str], removed: Iterable[str]) -> tuple[str, ...]:
    left = list(names)
    for name in removed:
        left.remove(name)
    return tuple(left)


def fitting(room: Room, lasting: Sequence[str], more: Iterable[str]) -> Iterator[str]:
    """Yield those of `more` that fit beside `lasting` and beside those before them."""
    there = list(lasting)
    for name in more:
        if room.fits((*there, name)):
            there.append(name)
            yield name
