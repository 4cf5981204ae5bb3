"""Tests of `gpushare_plugin.slices.room`: what fits on a GPU, against a search of everything."""

from collections.abc import Iterator
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.slices.memory import MemoryRoom
from gpushare_plugin.slices.room import ORDER, Layout, Room
from gpushare_plugin.slices.slice import Slice
from tests.unit.partition.simulation import A100, PLACES, Gpu

_SIZES = ["2gb", "5gb", "10gb", "20gb", "41gb"]
_NAMES = [f"{profile}@{start}" for profile, (starts, _, _) in PLACES.items() for start in starts]


def _layouts(room: Room, truth: Gpu, names: st.SearchStrategy[str]) -> st.SearchStrategy[Layout]:
    """Draw layouts that fit: slices are put where there is room, and are fixed, pinned or idle."""

    def laid(drawn: list[tuple[str, int]]) -> Layout:
        kinds: tuple[list[str], ...] = ([], [], [])
        for name, kind in drawn:
            if truth.fits([*kinds[0], *kinds[1], *kinds[2], name]):
                kinds[kind].append(name)
        fixed, pinned, idle = (tuple(sorted(each)) for each in kinds)
        assert room.fits((*fixed, *pinned, *idle))
        return Layout(fixed, pinned, idle)

    return st.lists(st.tuples(names, st.integers(0, 2)), max_size=8).map(laid)


def _possible(truth: Gpu, layout: Layout, wanted: Slice) -> Iterator[tuple[int, str]]:
    """Yield how few idle slices have to go, and which name the slice gets, for everything that is possible."""
    if wanted.name in {name.partition("@")[0] for name in (*layout.pinned, *layout.idle)}:
        yield 0, "idle"
    for count in range(len(layout.idle) + 1):
        for rest in combinations(layout.idle, len(layout.idle) - count):
            for name in truth.names(wanted):
                if truth.fits([*layout.fixed, *layout.pinned, *rest, name]):
                    yield count, name


def _check(room: Room, truth: Gpu, layout: Layout, wanted: Slice) -> None:
    options, possible = room.options(layout, wanted), list(_possible(truth, layout, wanted))
    assert bool(options) == bool(possible)
    assert [each.order for each in options] == sorted(each.order for each in options)
    lasting = {*layout.fixed, *layout.pinned}
    for option in options:
        assert ORDER[option.order] == option.how
        assert truth.fits(list(option.after.all))
        assert lasting <= {*option.after.fixed, *option.after.pinned}
        assert sorted((*layout.all, *([option.name] if option.how != "idle" else []))) == sorted(
            (*option.after.all, *option.removed)
        )
        assert bool(option.removed) == (option.how in {"cut", "joined"}) or option.how == "cut"
        assert option.left == room.left(option.after)
    if not options and wanted.name in (*_SIZES[:-1], *PLACES):
        assert room.missing(layout, wanted) > 0


@given(_layouts(MemoryRoom(40), Gpu("", 40), st.sampled_from(_SIZES)), st.sampled_from(_SIZES))
def test_memory_is_found_wherever_there_is_any(layout: Layout, size: str) -> None:
    """There is an option exactly where removing idle slices makes room; nothing that is fixed or pinned is touched."""
    _check(MemoryRoom(40), Gpu("", 40), layout, Slice("mps", size))


@given(_layouts(A100, Gpu("", 0), st.sampled_from(_NAMES)), st.sampled_from([*PLACES, "1g.80gb"]))
def test_mig_places_are_found_wherever_there_are_any(layout: Layout, profile: str) -> None:
    """The same for the places and compute slices of a card in MIG mode."""
    _check(A100, Gpu("", 0), layout, Slice("mig", profile))


def test_slices_of_the_other_kind_do_not_fit() -> None:
    """A GPU under MPS has no MIG instances, and a card in MIG mode has no other slices."""
    assert not MemoryRoom(40).options(Layout(), Slice("mig", "1g.5gb"))
    assert not A100.options(Layout(), Slice("mps", "5gb"))
    assert not MemoryRoom(40).fits(["1g.5gb@0"])
    assert MemoryRoom(40).parts_taken("1g.5gb@0") == 0
    assert not A100.fits(["5gb"])


def test_mps_serves_no_more_slices_than_clients() -> None:
    """A GPU has at most 48 slices: idle ones go for a new one, and without any it is not made."""
    room = MemoryRoom(80)
    full = Layout(fixed=("1gb",) * 47, idle=("1gb",))
    (option,) = room.options(full, Slice("mps", "2gb"))
    assert option.removed == ("1gb",)
    assert not room.options(Layout(fixed=("1gb",) * 48), Slice("mps", "2gb"))
    assert room.missing(Layout(fixed=("1gb",) * 48), Slice("mps", "2gb")) == 1


def test_few_idle_slices_go_and_the_smallest_that_is_enough() -> None:
    """The smallest idle slice that alone is large enough goes, or else the largest ones."""
    room = MemoryRoom(60)
    (option, *_) = room.options(Layout(idle=("10gb", "16gb", "20gb")), Slice("mps", "12gb"))
    assert option.removed == ("16gb",)
    (option, *_) = room.options(Layout(idle=("10gb", "16gb", "20gb", "5gb")), Slice("mps", "30gb"))
    assert sorted(option.removed) == ["16gb", "20gb"]
