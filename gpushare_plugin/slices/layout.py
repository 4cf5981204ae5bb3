"""The layout of a GPU: its held, kept and idle slices, and the ways to give a pod one more slice."""

from collections.abc import Iterable, Sequence
from typing import Literal

from gpushare_plugin.base.structs import Struct

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
