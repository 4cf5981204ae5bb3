"""The room of one GPU: which slices fit beside which, and how room is made for one more.

There are two kinds: the memory of a GPU under MPS (`memory`), and the places of a card in MIG mode (`mig`).
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from gpushare_plugin.model.slices.layout import ORDER, How, Layout, Option
from gpushare_plugin.model.slices.slice import Kind, Slice


class Room(Protocol):
    """What fits on one GPU, never changed; rooms of GPUs that are alike are equal.

    Slices are given by their names in annotations (`10gb`, `3g.20gb@4`), sizes in parts: GiB, or memory slices.
    """

    @property
    def kind(self) -> Kind:
        """How the GPU is divided."""
        ...

    @property
    def units(self) -> int:
        """The size of the GPU in parts."""
        ...

    @property
    def part(self) -> str:
        """What one part is, in words."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The only slices that the GPU can have, by profile; none where any size can be had."""
        ...

    def size(self, name: str) -> int:
        """Return the parts of a slice, 0 for a slice that this GPU cannot have."""
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
        """Return the parts that are missing for a slice if all idle slices were removed."""
        ...


def given(room: Room, layout: Layout, name: str) -> Option:
    """Return the option to give an idle or pinned slice as it is."""
    after = layout.given(name)
    return Option(0, "idle", name, after, room.left(after))


def made(room: Room, layout: Layout, how: How, name: str, removed: tuple[str, ...]) -> Option:
    """Return the option to make a slice where idle slices, `removed`, were before."""
    after = layout.made(name, removed)
    return Option(ORDER.index(how), how, name, after, room.left(after), removed)


def fitting(room: Room, lasting: Sequence[str], more: Iterable[str]) -> list[str]:
    """Return the slices of `more`, in order, that fit beside the `lasting` ones and beside those before them."""
    there = list(lasting)
    for name in more:
        if room.fits((*there, name)):
            there.append(name)
    return there[len(lasting) :]
