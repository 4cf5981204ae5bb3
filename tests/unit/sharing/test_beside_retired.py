"""Tests of new slices beside retired ones: `sharing.transition` with what `sharing.cut` cuts, and fixed sizes."""

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.sharing.cut import cut
from gpushare_plugin.sharing.plan import plan
from gpushare_plugin.sharing.transition import (
    MINIMUM_RETIRED_SECONDS,
    Offer,
    Waiting,
    WantedOffer,
    advance,
    resumed,
)
from gpushare_plugin.slices.wanted import SliceCounts
from tests.nodes import a_gpu, a_node
from tests.unit.sharing.holders import confirmed, taken
from tests.unit.sharing.settings import memory, planned, present

NODE = a_node(8192, 8000)
"""Two GPUs of 8gb, one of which has a little less than 8 GiB to use."""
NAMES = ("00000000", "00000001")


class PartitionedNode:
    """What a node lists while its GPUs are cut as is wanted, and what pods hold."""

    def __init__(self, inventory: Inventory = NODE) -> None:
        """List nothing yet."""
        self.inventory = inventory
        self.offer = Offer()
        self.held: set[tuple[str, str]] = set()
        self.wanted: dict[str, SliceCounts] = {}
        self.waiting: tuple[Waiting, ...] = ()
        self.now = 0.0

    def want(self, *slices: SliceCounts) -> "PartitionedNode":
        """Want these slices of the GPUs, in order, and list what can be listed at this moment."""
        self.wanted = {gpu.uuid: each for gpu, each in zip(self.inventory.cards, slices, strict=False)}
        return self.look(asks=False)

    def later(self) -> "PartitionedNode":
        """Look again when what was retired may be dropped."""
        self.now += MINIMUM_RETIRED_SECONDS + 1
        return self.look()

    def look(self, *, asks: bool = True) -> "PartitionedNode":
        """Ask the kubelet, or do not, and list what can be listed now; the kubelet is known to have been asked."""
        held = frozenset(id_ for _, id_ in self.held)
        retired = frozenset(id_ for each in self.offer.retired for id_ in each.units)
        units = present(self.inventory, self.offered, retired, held)
        made = cut(self.wanted, self.inventory.cards, units)
        decided = plan(EffectiveConfig(Config(), partitioning="mps"), self.inventory, cut=made.numbers)
        assert decided.problems == ()
        seen = confirmed(*held, at=self.now) if asks else None
        self.offer, self.waiting = advance(self.offer, WantedOffer(decided.resources, decided.modes), seen, self.now)
        return self

    @property
    def offered(self) -> frozenset[str]:
        """The slices that can be allocated."""
        return frozenset(id_ for each in self.offer.resources.values() for id_ in each.units)

    @property
    def retired(self) -> frozenset[str]:
        """The slices that are listed and cannot be allocated."""
        return frozenset(id_ for each in self.offer.resources.values() for id_ in each.retired)

    @property
    def sizes(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """How many slices of each size can be allocated, and how many are retired."""
        return _by_size(self.offered), _by_size(self.retired)


def _by_size(ids: frozenset[str]) -> Mapping[str, int]:
    found = [id_.split("-")[1] for id_ in ids]
    return {size: found.count(size) for size in found}


def gib(id_: str) -> int:
    """Return the nominal size in GiB that an ID names."""
    return int(id_.split("-")[1].removesuffix("gb"))


def test_a_new_slice_comes_at_once_where_there_is_room_beside_the_retired() -> None:
    """Nobody waits two seconds for room that is not needed."""
    node = PartitionedNode().want({"2gb": 2}).want({"4gb": 1})
    assert node.sizes == ({"4gb": 1}, {"2gb": 2})
    assert node.waiting == ()
    assert node.later().sizes == ({"4gb": 1}, {})


def test_new_slices_that_find_no_room_beside_the_retired_wait_for_them() -> None:
    """Of several new slices the small ones come first; the rest comes when the retired ones are gone."""
    node = PartitionedNode().want({"2gb": 2}).want({"4gb": 1, "3gb": 1, "1gb": 1})
    assert node.sizes == ({"3gb": 1, "1gb": 1}, {"2gb": 2})
    assert node.waiting == (Waiting(a_gpu(0).uuid, frozenset({"00000000-2gb-0", "00000000-2gb-1"})),)
    assert node.later().sizes == ({"4gb": 1, "3gb": 1, "1gb": 1}, {})
    assert not node.waiting


def test_a_retired_slice_that_a_pod_took_in_the_last_moment_keeps_its_room() -> None:
    """It counts from the start, so what was listed beside it needs not go."""
    node = PartitionedNode().want({"2gb": 2}).want({"4gb": 1})
    node.held = {("nvidia.com/gpu-2gb", "00000000-2gb-1")}
    assert node.later().sizes == ({"4gb": 1, "2gb": 1}, {})


def test_no_more_slices_than_mps_serves_are_listed_with_the_retired() -> None:
    """A GPU before Volta has 16 clients, retired slices included, however much memory it has."""
    old = replace(a_gpu(0, 81920), compute_capability=(6, 0))
    node = PartitionedNode(Inventory((old,))).want({"1gb": 10}).want({"2gb": 16})
    assert node.sizes == ({"2gb": 6}, {"1gb": 10})
    assert node.later().sizes == ({"2gb": 16}, {})


def test_a_card_that_lost_memory_gets_no_new_slice_before_there_is_room() -> None:
    """What was listed while it was larger counts as it is."""
    node = PartitionedNode().want({"8gb": 1})
    node.inventory = a_node(4096, 8000)
    assert node.want({"2gb": 1}).sizes == ({}, {"8gb": 1})
    assert node.later().sizes == ({"2gb": 1}, {})


def test_fixed_sizes_come_beside_retired_ones_too() -> None:
    """A changed config needs no waiting either, except where a GPU is shared in another way."""

    def sizes(*slices: dict[str, object]) -> WantedOffer:
        return wanted({"mps": {"sizes": [{"slices": slices, "devices": [0]}]}})

    def wanted(sharing: dict[str, object]) -> WantedOffer:
        decided = planned(NODE, sharing=sharing)
        assert decided.problems == ()
        return WantedOffer(decided.resources, decided.modes)

    offer, _ = advance(Offer(), sizes({"size": "2gb", "count": 2}), None, 0.0)
    offer, waiting = advance(offer, sizes({"size": "4gb"}), None, 0.0)
    assert (set(offer.resources["nvidia.com/gpu-4gb"].units), waiting) == ({"00000000-4gb-0"}, ())
    offer, waiting = advance(offer, wanted(memory(devices=[0])), None, 0.0)
    assert [each.gpu for each in waiting] == [a_gpu(0).uuid]


def test_a_slice_whose_id_another_resource_lists_waits() -> None:
    """An ID is listed only once, whatever resource it was held under."""
    offer = resumed(taken({("nvidia.com/other", "00000000-2gb-0")}), NODE.cards, {}, 0.0)
    decided = planned(NODE, sharing={"mps": {"sizes": [{"slices": [{"size": "2gb", "count": 2}], "devices": [0]}]}})
    offer = replace(offer, retired=tuple(replace(each, mode=decided.modes[each.gpu]) for each in offer.retired))
    offer, waiting = advance(offer, WantedOffer(decided.resources, decided.modes), None, 0.0)
    assert set(offer.resources["nvidia.com/gpu-2gb"].units) == {"00000000-2gb-1"}
    assert waiting == (Waiting(a_gpu(0).uuid, frozenset({"00000000-2gb-0"})),)


COUNTS = st.dictionaries(st.sampled_from(["1gb", "2gb", "3gb", "4gb", "8gb"]), st.integers(0, 8), max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(COUNTS, COUNTS),
        st.sampled_from(["ask", "later", "restart"]),
        st.tuples(st.sampled_from(["take", "end"]), st.integers(0, 99)),
    ),
    max_size=14,
)


@given(STEPS)
@settings(max_examples=60)
def test_a_gpu_never_lists_more_than_it_has(
    steps: list[tuple[SliceCounts, SliceCounts] | str | tuple[str, int]],
) -> None:
    """Whatever is wanted, taken and given back: no GPU has too much, what is held stays, and all that fits comes."""
    node = PartitionedNode()
    # 16 clients, so that the number of slices is a limit as well.
    node.inventory = Inventory(tuple(replace(gpu, compute_capability=(6, 0)) for gpu in a_node(20480, 8000).cards))
    for step in steps:
        match step:
            case "ask":
                node.look()
            case "later":
                node.later()
            case "restart":
                modes = {gpu.uuid: node.offer.wanted.modes.get(gpu.uuid) for gpu in node.inventory.cards}
                listed_before = {(name, id_) for name, each in node.offer.resources.items() for id_ in each.units}
                node.offer = resumed(taken(node.held | listed_before), node.inventory.cards, modes, node.now)
                node.look()
            case ("take", int(number)):
                free = sorted((name, id_) for name, each in node.offer.resources.items() for id_ in each.units)
                node.held |= {free[number % len(free)]} if free else set()
            case ("end", int(number)):
                node.held -= {sorted(node.held)[number % len(node.held)]} if node.held else set()
            case (first, second):
                assert not isinstance(first, str)
                assert not isinstance(second, int)
                node.want(first, second)
        listed(node)
    # Until nothing is retired that is free.
    node.later().later().later()
    listed(node)
    assert node.retired == frozenset()
    assert node.waiting == ()
    held = frozenset(id_ for _, id_ in node.held)
    made = cut(node.wanted, node.inventory.cards, present(node.inventory, node.offered, frozenset(), held))
    expected = {
        f"{name}-{size.name}-{number}"
        for name, gpu in zip(NAMES, node.inventory.cards, strict=True)
        for size, numbers in made.numbers[gpu.uuid].items()
        for number in numbers
    }
    assert node.offered == expected


def listed(node: PartitionedNode) -> None:
    """See that no GPU lists more than it has, and that all is listed that pods hold."""
    every = [id_ for each in node.offer.resources.values() for id_ in (*each.units, *each.retired)]
    assert len(every) == len(set(every))
    kept = {id_ for each in node.offer.retired for id_ in each.units} | set(every)
    assert {id_ for _, id_ in node.held} <= kept
    for name, nominal in zip(NAMES, (20, 8), strict=True):
        of_gpu = [id_ for id_ in kept if id_.startswith(name)]
        assert sum(map(gib, of_gpu)) <= nominal
        assert len(of_gpu) <= 16
