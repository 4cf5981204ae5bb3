"""The room of a card in MIG mode: the places that the driver allows for MIG instances."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, ClassVar

from gpushare_plugin.base.structs import Meta, Struct, replace
from gpushare_plugin.slices.room import How, Layout, Option, given, made, without
from gpushare_plugin.slices.slice import MigPlace, Slice, SliceKind, is_profile

Parts = Annotated[int, Meta(ge=0, le=255)]
"""A number of parts of a card, read from a record: today's cards have 8 memory slices and 7 compute slices."""

MOST_MIG_PROFILES = 64
"""The most MIG profiles accepted for a card: drivers know about twenty profiles."""

_COMPUTE = re.compile(r"^[1-9][0-9]?c\.", re.ASCII)
"""Matches the beginning of a profile whose compute instance is smaller than the GPU instance."""


class MigProfile(Struct, frozen=True, gc=False, omit_defaults=True):
    """A profile of MIG instances as the driver describes the profile for one card.

    The record of a node has the same fields. The limits apply when a record is read: a wrong record must not make
    gpushare build anything large.
    """

    name: Annotated[str, Meta(max_length=64)]
    """The name, such as `3g.20gb`."""
    starts: Annotated[tuple[Parts, ...], Meta(max_length=16)]
    """The memory slices at which an instance can begin."""
    size: Parts
    """The memory slices that an instance takes."""
    compute: Parts
    """The compute slices that an instance takes."""
    most: Parts
    """The most instances of the profile on the card at once."""
    memory_mib: int = 0
    """The memory of an instance in MiB; 0 where the memory does not matter, as in records of nodes."""


class MigRoom(Struct, frozen=True):
    """The places of MIG instances on a card."""

    kind: ClassVar[SliceKind] = "mig"
    """Division of the card into MIG instances."""
    part_name: ClassVar[str] = "memory slices"
    """The name of the parts."""

    parts: int
    """The memory slices of the card."""
    compute: int
    """The compute slices of the card."""
    profiles: tuple[MigProfile, ...]
    """The profiles that instances can have."""
    blocked: int = 0
    """Memory slices, as bits, of instances that pods cannot request; the instances are left alone."""

    @classmethod
    def of(cls, profiles: Iterable[MigProfile]) -> "MigRoom":
        """Return the room of a card with the given profiles, the largest of which takes the whole card.

        Profiles without a place, and profiles with a name that pods cannot request, are ignored.
        """
        known = tuple({each.name: each for each in profiles if each.starts and is_profile(each.name)}.values())
        parts = max((start + each.size for each in known for start in each.starts), default=0)
        return cls(parts, max((each.compute for each in known), default=0), known)

    def blocked_by(self, others: Iterable[tuple[str, int | None]]) -> "MigRoom":
        """Return the room that instances leave that pods cannot request: their memory slices are `blocked`.

        `others` has the profile and the first memory slice of every instance. An example is `1c.3g.20gb`, one of
        several compute instances of a GPU instance `3g.20gb`. If the memory slices of a GPU instance are unknown, no
        room is left on the card.
        """
        names = {None if start is None else f"{_COMPUTE.sub('', profile)}@{start}" for profile, start in others}
        if not all(name in _places(self) for name in names):
            return replace(self, blocked=(1 << self.parts) - 1)
        known = [_places(self)[name] for name in names if name is not None]
        blocked = self.blocked | _mask(self, filter(None, names))
        return replace(self, blocked=blocked, compute=self.compute - sum(profile.compute for profile, _ in known))

    def has(self, name: str) -> bool:
        """Return whether `name` is a place of the card."""
        return name in _places(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the profiles."""
        return tuple(each.name for each in self.profiles if each.starts)

    def parts_taken(self, name: str) -> int:
        """Return the memory slices that an instance takes, 0 for a name that is no place of the card."""
        place = _places(self).get(name)
        return place[0].size if place else 0

    def parts_needed(self, wanted: Slice) -> int | None:
        """Return the memory slices that the profile `wanted` needs, None if the card does not have the profile."""
        profile = _profile(self, wanted)
        return profile.size if profile else None

    def fits(self, slices: Sequence[str]) -> bool:
        """Return whether `slices` are separate places of the card, within its compute slices and profile limits."""
        places, taken, compute = _places(self), self.blocked, 0
        counts: Counter[MigProfile] = Counter()
        for name in slices:
            profile, mask = places.get(name, (None, 0))
            if profile is None or mask & taken:
                return False
            taken |= mask
            compute += profile.compute
            counts[profile] += 1
        return compute <= self.compute and all(count <= profile.most for profile, count in counts.items())

    def options(self, layout: Layout, wanted: Slice) -> tuple[Option, ...]:
        """Return the possible places of an instance, best first.

        The order is by origin, by the number of removed instances, and by the number of places lost to further
        instances.
        """
        return _mig_options(self, layout, wanted)

    def left(self, layout: Layout) -> int:
        """Return the memory slices that are neither fixed nor pinned."""
        return self.parts - _taken(self, layout).bit_count()

    def missing(self, layout: Layout, wanted: Slice) -> int:
        """Return the fewest memory slices in the way at any place of the profile `wanted`.

        The result is at least 1, because compute slices can be missing instead. For a profile that the card does not
        have, the result is the GiB of the profile.
        """
        if (profile := _profile(self, wanted)) is None:
            return wanted.gib
        places, taken = _places(self), _taken(self, layout)
        return max(1, min((places[f"{profile.name}@{start}"][1] & taken).bit_count() for start in profile.starts))


@lru_cache(maxsize=1024)
def _places(room: MigRoom) -> Mapping[str | None, tuple[MigProfile, int]]:
    """Return the places of a card by name: the profile, and the memory slices as bits."""
    return {
        str(MigPlace(profile.name, start)): (profile, ((1 << profile.size) - 1) << start)
        for profile in room.profiles
        for start in profile.starts
    }


def _profile(room: MigRoom, wanted: Slice) -> MigProfile | None:
    if wanted.kind != "mig":
        return None
    return next((each for each in room.profiles if each.name == wanted.name and each.starts), None)


def _mask(room: MigRoom, names: Iterable[str]) -> int:
    places, mask = _places(room), 0
    for name in names:
        if name in places:
            mask |= places[name][1]
    return mask


def _taken(room: MigRoom, layout: Layout) -> int:
    """Return the memory slices, as bits, that stay taken even if all idle instances are removed."""
    return room.blocked | _mask(room, (*layout.fixed, *layout.pinned))


@lru_cache(maxsize=16384)
def _mig_options(room: MigRoom, layout: Layout, wanted: Slice) -> tuple[Option, ...]:
    if (profile := _profile(room, wanted)) is None:
        return ()
    taken = _taken(room, layout)
    ranked = [
        (option.order, len(option.removed), _places_lost(room, option.name, taken), start, option)
        for start in profile.starts
        if (option := _mig_option(room, layout, profile, start)) is not None
    ]
    ranked.sort(key=lambda each: each[:-1])
    return tuple(option for *_, option in ranked)


def _mig_option(room: MigRoom, layout: Layout, profile: MigProfile, start: int) -> Option | None:
    """Return how to give an instance of `profile` at the memory slice `start`, None if impossible."""
    name = str(MigPlace(profile.name, start))
    if name in layout.idle or name in layout.pinned:
        return given(room, layout, name)
    places = _places(room)
    mask = places[name][1]
    if mask & _taken(room, layout):
        return None
    removed = [each for each in layout.idle if _mask(room, (each,)) & mask]
    rest = list(without(layout.idle, removed))
    while not room.fits((*layout.fixed, *layout.pinned, *rest, name)):
        if not rest:
            return None
        # Compute slices are missing, or the profile is at its most: instances with the most compute go first.
        most = max(rest, key=lambda each: (places[each][0].compute if each in places else 0, each))
        rest.remove(most)
        removed.append(most)
    if not removed:
        return made(room, layout, "free", name, ())
    how: How = "joined" if mask & ~_mask(room, removed) else "cut"
    return made(room, layout, how, name, tuple(sorted(removed)))


def _places_lost(room: MigRoom, name: str, taken: int) -> int:
    """Return how many free places of the card are lost to an instance at the place `name`, its own place included."""
    mask = _places(room)[name][1]
    return sum(1 for _, each in _places(room).values() if each & mask and not each & taken)
