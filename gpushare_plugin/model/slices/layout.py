"""The layout of one GPU: its slices, who has a claim to them, and the ways to make one more."""

from collections.abc import Iterable, Sequence
from typing import Literal

from gpushare_plugin.foundation.structs import Struct

How = Literal["idle", "cut", "free", "joined"]
"""Where a slice comes from: an idle slice as it is, the room of idle slices, free room, or both rooms together."""

ORDER: tuple[How, ...] = ("idle", "cut", "free", "joined")
"""The origins of a slice in the order of choice, the best first."""


class Layout(Struct, frozen=True, gc=False):
    """The slices of one GPU, each by its name in annotations (`10gb`, `3g.20gb@4`), sorted."""

    fixed: tuple[str, ...] = ()
    """Slices that pods hold, or that are kept for pods."""
    pinned: tuple[str, ...] = ()
    """Slices that a pod whose GPU is unknown may hold: they can be given as they are, and not be cut."""
    idle: tuple[str, ...] = ()
    """Slices that nobody has a claim to."""

    @property
    def all(self) -> tuple[str, ...]:
        """All slices of the GPU."""
        return (*self.fixed, *self.pinned, *self.idle)

    def given(self, name: str) -> "Layout":
        """Return the layout after an idle or pinned slice was given as it is."""
        if name in self.idle:
            return Layout(_with(self.fixed, name), self.pinned, without(self.idle, (name,)))
        return Layout(_with(self.fixed, name), without(self.pinned, (name,)), self.idle)

    def made(self, name: str, removed: Iterable[str]) -> "Layout":
        """Return the layout after a slice was made and the idle slices `removed` went for it."""
        return Layout(_with(self.fixed, name), self.pinned, without(self.idle, removed))


class Option(Struct, frozen=True, gc=False):
    """One way to give a pod a slice of a GPU."""

    order: int
    """The place of `how` in the order of choice."""
    how: How
    """Where the slice comes from."""
    name: str
    """The slice, by its name in annotations."""
    after: Layout
    """The layout of the GPU with the slice."""
    left: int
    """The parts of the GPU (GiB, or memory slices) that could still be had then, if all idle slices went."""
    removed: tuple[str, ...] = ()
    """The idle slices that go for the slice."""


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(sorted((*names, name)))


def without(names: Sequence[str], removed: Iterable[str]) -> tuple[str, ...]:
    """Return `names` without one of each of `removed`; raises ValueError where one is not among the names."""
    left = list(names)
    for name in removed:
        left.remove(name)
    return tuple(left)
