"""Tests of `gpushare_plugin.sharing.cut`."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.sharing.cut import Cut, PresentUnits, cut, keeping, unwanted
from gpushare_plugin.sharing.plan import Plan, plan
from gpushare_plugin.slices.slice import Slice
from tests.nodes import a_gpu, a_node
from tests.unit.sharing.settings import present

GPU = a_gpu(0)
NODE = Inventory((GPU,))
NO_IDS: frozenset[str] = frozenset()


def ids(*slices: str) -> frozenset[str]:
    """Return the IDs of slices of GPU 0, such as 10gb-3."""
    return frozenset(f"00000000-{each}" for each in slices)


def one(
    wanted: dict[str, int] | None,
    offered: frozenset[str] = NO_IDS,
    retired: frozenset[str] = NO_IDS,
    held: frozenset[str] = NO_IDS,
) -> tuple[dict[str, tuple[int, ...]], Cut]:
    """Return how GPU 0 is cut, by size, and all that is known of it."""
    made = cut({} if wanted is None else {GPU.uuid: wanted}, [GPU], present(NODE, offered, retired, held))
    return {size.name: tuple(numbers) for size, numbers in sorted(made.numbers[GPU.uuid].items())}, made


def test_a_held_slice_keeps_its_number_and_counts_as_wanted() -> None:
    """The two that are wanted are the one that a pod holds, and the other one that is offered."""
    offered = ids("10gb-0", "10gb-2", "10gb-3")
    assert one({"10gb": 2}, offered=offered, held=ids("10gb-3"))[0] == {"10gb": (0, 3)}


def test_a_held_slice_that_is_not_wanted_stays_and_takes_its_room() -> None:
    """What does not fit beside it is told, and made once its pod has ended."""
    slices, made = one({"20gb": 2}, offered=ids("10gb-0"), held=ids("10gb-0"))
    assert slices == {"10gb": (0,), "20gb": (0,)}
    assert made.surplus == ids("10gb-0")
    (notice,) = made.notices
    assert notice == (
        f"{GPU.identity}: 2 slices of 20gb wanted, 1 fit: it has 40gb, of which pods hold 10gb, and MPS serves 48 "
        "slices at most"
    )
    assert one({"20gb": 2})[0] == {"20gb": (0, 1)}


def test_missing_slices_are_not_told_while_holdings_are_unknown() -> None:
    """Every slice counts as held then, and people would be warned of pods that are none."""
    there = ids("20gb-0", "20gb-1")
    made = cut({GPU.uuid: {"40gb": 1}}, [GPU], present(NODE, there, NO_IDS, there, asked_at=None))
    assert (made.surplus, made.notices) == (there, ())


def test_offered_slices_go_before_new_slices() -> None:
    """Where not all fits, no idle slice goes for one that is not better."""
    assert one({"10gb": 3, "20gb": 1}, offered=ids("20gb-4"))[0] == {"10gb": (0, 1), "20gb": (4,)}


def test_a_retired_slice_comes_back_before_a_new_slice_is_made() -> None:
    """A slice that comes back needs no room that has to become free first."""
    assert one({"10gb": 1}, retired=ids("10gb-5"))[0] == {"10gb": (5,)}


def test_a_gpu_of_which_nothing_is_said_stays_as_it_is() -> None:
    """Idle slices included; one with no slices wanted keeps those that are held."""
    units = {"offered": ids("10gb-0", "10gb-1"), "held": ids("10gb-1"), "retired": ids("20gb-0")}
    assert one(None, **units)[0] == {"10gb": (0, 1)}
    assert one({}, **units)[0] == {"10gb": (1,)}


def test_a_gpu_has_no_more_slices_than_mps_serves() -> None:
    """48 clients, or 16 before Volta, however small the slices are; and an absurd number takes no time."""
    large = a_gpu(0, 81920)
    old = replace(large, compute_capability=(6, 0))
    for gpu, most in ((large, 48), (old, 16)):
        made = cut({gpu.uuid: {"1gb": 10**9}}, [gpu], PresentUnits(asked_at=0.0))
        assert made.numbers == {gpu.uuid: {Slice("mps", "1gb"): tuple(range(most))}}
        assert "1,000,000,000 slices of 1gb wanted" in made.notices[0]


def test_many_sizes_that_do_not_fit_are_told_in_one_sentence() -> None:
    """Whoever may write the annotation floods neither the log nor the record of the node."""
    (notice,) = one({f"{size}gb": 16 for size in range(1, 65)})[1].notices
    assert notice.startswith(f"{GPU.identity}: 16 slices of 2gb wanted, 12 fit, 16 slices of 3gb wanted, 0 fit, ")
    assert notice.endswith(" and 58 more sizes: it has 40gb, of which pods hold 0gb, and MPS serves 48 slices at most")


def test_a_gpu_that_mps_cannot_share_is_left_alone() -> None:
    """The plan says why; the others are cut."""
    node = Inventory((a_gpu(0, mig_enabled=True), a_gpu(1)))
    made = cut({gpu.uuid: {"10gb": 1} for gpu in node.cards}, node.cards, PresentUnits(asked_at=0.0))
    assert list(made.numbers) == [a_gpu(1).uuid]
    decided = planned(node, made)
    assert {name: len(units) for name, units in units_of(decided).items()} == {"nvidia.com/gpu-10gb": 1}
    (notice,) = decided.notices
    assert "GPU 0" in notice
    assert "is not partitioned: it is in MIG mode" in notice


def planned(node: Inventory, made: Cut) -> Plan:
    """Return what a partitioned node offers."""
    decided = plan(EffectiveConfig(Config(), partitioning="mps"), node, cut=made.numbers)
    assert decided.problems == ()
    return decided


def units_of(decided: Plan) -> dict[str, list[str]]:
    """Return the IDs of each resource."""
    return {resource.name: list(resource.units) for resource in decided.resources}


SIZES = st.integers(1, 45)
COUNTS = st.dictionaries(SIZES.map("{}gb".format), st.integers(0, 60), max_size=4)
IDS = st.sets(st.builds("0000000{}-{}gb-{}".format, st.integers(0, 2), SIZES, st.integers(0, 9)), max_size=8)


@given(st.lists(st.none() | COUNTS, min_size=2, max_size=2), IDS, IDS, IDS)
def test_held_slices_stay_whatever_is_wanted(
    wanted: list[dict[str, int] | None], offered: set[str], retired: set[str], held: set[str]
) -> None:
    """Each keeps its ID, a GPU never gets more than it has beside them, and the same again changes nothing."""
    node = a_node(40326, 20480)
    counts = {gpu.uuid: each for gpu, each in zip(node.cards, wanted, strict=True) if each is not None}
    made = cut(counts, node.cards, present(node, frozenset(offered), frozenset(retired), frozenset(held)))
    found = {id_ for each in units_of(planned(node, made)).values() for id_ in each}
    here = {id_ for id_ in held if not id_.startswith("00000002")}
    assert here <= found
    for gpu, nominal in zip(node.cards, (40, 20), strict=True):
        slices = made.numbers[gpu.uuid]
        room = nominal - sum(size_of(id_) for id_ in here if id_.startswith(gpu.uuid[4:12]))
        more = sum(size.gib * len(numbers) for size, numbers in slices.items()) - (nominal - room)
        assert more == 0 or more <= room
        if (desired := counts.get(gpu.uuid)) is not None:
            for size, numbers in slices.items():
                of_size = sum(1 for id_ in here if id_.startswith(f"{gpu.uuid[4:12]}-{size.name}-"))
                assert len(numbers) <= max(desired.get(size.name, 0), of_size)
    again = cut(counts, node.cards, present(node, frozenset(found), frozenset(), frozenset(held)))
    assert again.numbers == made.numbers


def size_of(id_: str) -> int:
    """Return the GiB that an ID names."""
    return int(id_.split("-")[1].removesuffix("gb"))


def kept(wanted: dict[str, int], offered: frozenset[str], withdrawn: frozenset[str]) -> dict[str, tuple[int, ...]]:
    """Return how GPU 0 is cut while slices that are not wanted are withdrawn, by size."""
    units = present(NODE, offered)
    numbers = cut({GPU.uuid: wanted}, [GPU], units).numbers
    assert withdrawn <= unwanted(numbers, units)
    found = keeping(numbers, [GPU], units, withdrawn)[GPU.uuid]
    return {size.name: tuple(numbers) for size, numbers in sorted(found.items())}


def test_offered_slices_that_are_not_wanted_can_be_withdrawn() -> None:
    """A withdrawn slice stays with its number, and of what is new there is as much as fits beside it."""
    offered = ids("10gb-0", "10gb-1", "20gb-0")
    numbers = cut({GPU.uuid: {"10gb": 1, "5gb": 6}}, [GPU], present(NODE, offered)).numbers
    assert unwanted(numbers, present(NODE, offered)) == ids("10gb-1", "20gb-0")
    assert kept({"10gb": 1, "5gb": 6}, offered, ids("20gb-0")) == {"5gb": (0, 1), "10gb": (0,), "20gb": (0,)}
    assert kept({"10gb": 1, "5gb": 6}, offered, NO_IDS) == {"5gb": tuple(range(6)), "10gb": (0,)}
    assert kept({"40gb": 1}, offered, ids("10gb-1")) == {"10gb": (1,)}
    assert unwanted({}, present(NODE, offered)) == NO_IDS


@given(
    st.dictionaries(st.sampled_from(["1gb", "5gb", "10gb", "20gb", "40gb"]), st.integers(0, 60)),
    st.dictionaries(st.sampled_from(["1gb", "5gb", "10gb", "20gb", "40gb"]), st.integers(0, 60)),
    st.randoms(use_true_random=False),
)
def test_a_gpu_is_never_overcommitted_while_slices_are_withdrawn(
    first: dict[str, int], then: dict[str, int], random: Random
) -> None:
    """There are no more slices than MPS serves; withdrawn slices stay, and so does all that is wanted and there."""
    there = cut({GPU.uuid: first}, [GPU], PresentUnits(asked_at=0.0)).numbers[GPU.uuid]
    offered = frozenset(f"00000000-{size.name}-{number}" for size, numbers in there.items() for number in numbers)
    numbers = cut({GPU.uuid: then}, [GPU], present(NODE, offered)).numbers
    idle = sorted(unwanted(numbers, present(NODE, offered)))
    withdrawn = frozenset(random.sample(idle, random.randint(0, len(idle))))
    found = keeping(numbers, [GPU], present(NODE, offered), withdrawn)[GPU.uuid]
    made = {f"00000000-{size.name}-{number}" for size, numbers in found.items() for number in numbers}
    assert sum(size.gib * len(numbers) for size, numbers in found.items()) <= 40
    assert len(made) <= 48
    assert made >= withdrawn | offered.difference(idle)
    assert not made & set(idle).difference(withdrawn)
