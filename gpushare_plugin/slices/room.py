"""The room of one GPU: the slices that fit beside each other, and the ways to make room for one more slice.

Two kinds exist: the memory of a GPU under MPS (`memory`), and the places of a card in MIG mode (`mig`).
"""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.slices.slice import Slice, SliceKind

How = Literal["idle", "cut", "free", "joined"]
"""The origin of a slice: an idle slice unchanged, room of idle slices, free room, or both kinds of room together."""

ORDER: tuple[How, ...] = ("idle", "cut", "free", "joined")
"""The origins of a slice in the order of choice, the best first."""


class Layout(Struct, frozen=True, gc=False):
    """The slices of one GPU, by their names in annotations (`10gb`, `3g.20gb@4`), sorted."""

    fixed: tuple[str, ...] = ()
    """Slices held by pods, or kept for pods."""
    pinned: tuple[str, ...] = ()
    """Slices possibly held by a pod whose GPU is unknown: a pinned slice can be given unchanged, but not be cut."""
    idle: tuple[str, ...] = ()
    """Slices neither held by pods nor kept for pods."""

    @property
    def all(self) -> tuple[str, ...]:
        """All slices of the GPU."""
        return (*self.fixed, *self.pinned, *self.idle)

    def given(self, name: str) -> "Layout":
        """Return the layout after the idle or pinned slice `name` was given to a pod."""
        if name in self.idle:
            return Layout(_with(self.fixed, name), self.pinned, without(self.idle, (name,)))
        return Layout(_with(self.fixed, name), without(self.pinned, (name,)), self.idle)

    def made(self, name: str, removed: Iterable[str]) -> "Layout":
        """Return the layout after the slice `name` was made in place of the idle slices `removed`."""
        return Layout(_with(self.fixed, name), self.pinned, without(self.idle, removed))


class Option(Struct, frozen=True, gc=False):
    """A way to give a pod a slice of a GPU."""

    order: int
    """The place of `how` in the order of choice."""
    how: How
    """Where the slice comes from."""
    name: str
    """The slice, by its name in annotations."""
    after: Layout
    """The layout of the GPU with the slice."""
    left: int
    """The parts of the GPU (GiB, or memory slices) then left for new slices if all idle slices were removed."""
    removed: tuple[str, ...] = ()
    """The idle slices that are removed for the slice."""


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(sorted((*names, name)))


def without(names: Sequence[str], removed: Iterable[str]) -> tuple[str, ...]:
    """Return `names` without one occurrence of every name in `removed`; raises ValueError if a name is missing."""
    left = list(names)
    for name in removed:
        left.remove(name)
    return tuple(left)


class Room(Protocol):
    """The room of one GPU, immutable; GPUs that are alike have equal rooms.

    Slices are given by their names in annotations (`10gb`, `3g.20gb@4`), and sizes in parts of the GPU: GiB, or memory
    slices.
    """

    @property
    def kind(self) -> SliceKind:
        """How the GPU is divided."""
        ...

    @property
    def parts(self) -> int:
        """The number of parts of the GPU."""
        ...

    @property
    def part_name(self) -> str:
        """The name of the parts: `GiB`, or `memory slices`."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The only slices possible on the GPU, by profile; empty if any size is possible."""
        ...

    def parts_taken(self, name: str) -> int:
        """Return the number of parts that a slice on the GPU takes; an impossible slice takes 0."""
        ...

    def parts_needed(self, wanted: Slice) -> int | None:
        """Return the number of parts that a new slice needs, None if not even the empty GPU has room for the slice."""
        ...

    def fits(self, slices: Sequence[str]) -> bool:
        """Return whether `slices` fit on the GPU together."""
        ...

    def options(self, layout: Layout, wanted: Slice) -> tuple[Option, ...]:
        """Return the ways to give a slice, best first; empty without room."""
        ...

    def left(self, layout: Layout) -> int:
        """Return the parts that would be available for new slices if all idle slices were removed."""
        ...

    def missing(self, layout: Layout, wanted: Slice) -> int:
        """Return the parts that would still be missing for a slice if all idle slices were removed."""
        ...


def given(room: Room, layout: Layout, name: str) -> Option:
    """Return the option to give an idle or pinned slice unchanged."""
    after = layout.given(name)
    return Option(0, "idle", name, after, room.left(after))


def made(room: Room, layout: Layout, how: How, name: str, removed: tuple[str, ...]) -> Option:
    """Return the option to make the slice `name` in place of the idle slices `removed`."""
    after = layout.made(name, removed)
    return Option(ORDER.index(how), how, name, after, room.left(after), removed)


def fitting(room: Room, lasting: Sequence[str], more: Iterable[str]) -> list[str]:
    """Return the slices of `more`, in order, that fit beside `lasting` and beside the slices already returned."""
    there = list(lasting)
    for name in more:
        if room.fits((*there, name)):
            there.append(name)
    return there[len(lasting) :]
