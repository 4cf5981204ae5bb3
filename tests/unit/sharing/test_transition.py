"""Tests of `gpushare_plugin.sharing.transition`."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.grant import Allocation
from gpushare_plugin.core.holding import Confirmed
from gpushare_plugin.core.resource import Units
from gpushare_plugin.core.unit import KUBELET_MESSAGE_LIMIT, Form, Unit, listed_size
from gpushare_plugin.sharing.transition import (
    MINIMUM_RETIRED_SECONDS,
    Offer,
    Waiting,
    WantedOffer,
    advance,
    resumed,
)
from tests.nodes import a_gpu, a_mig_node, a_node
from tests.unit.sharing.holders import confirmed, taken
from tests.unit.sharing.settings import GPU_MEM, memory, only, planned, time_slicing
from tests.unit.sharing.unit_by_unit import Listed, begun, gone_on

NODE = a_node(8192, 8192)
SLICED = {"name": "nvidia.com/gpu", "replicas": 4}
LATER = MINIMUM_RETIRED_SECONDS + 1


def wanted(sharing: dict[str, object], inventory: Inventory = NODE) -> WantedOffer:
    """Return what a node should share."""
    decided = planned(inventory, sharing=sharing)
    assert decided.problems == ()
    return WantedOffer(decided.resources, decided.modes)


def offered(new: WantedOffer) -> Offer:
    """Return what a fresh node offers."""
    offer, waiting = advance(Offer(), new, None, 0.0)
    assert waiting == ()
    return offer


def counts(offer: Offer) -> dict[str, tuple[int, int]]:
    """Return how many units of each resource can be allocated, and how many are retired."""
    return {name: (len(each.units), len(each.retired)) for name, each in offer.resources.items()}


def account(*held: str, at: float = LATER) -> Confirmed:
    """Return what pods hold by the kubelet, at a time."""
    return confirmed(*held, at=at)


def settle(offer: Offer, new: WantedOffer, *held: str) -> tuple[Offer, tuple[Waiting, ...]]:
    """Change to `new` now, and look again once the kubelet told who holds what."""
    offer, _ = advance(offer, new, None, 0.0)
    return advance(offer, new, account(*held), LATER)


def test_a_fresh_node_offers_all_at_once() -> None:
    """Nothing is to be waited for where nothing was offered."""
    assert counts(offered(wanted(memory()))) == {GPU_MEM: (16, 0)}


def test_the_same_settings_again_change_nothing() -> None:
    """The same settings again give the same offer, retire nothing, and wait for nothing."""
    offer = offered(wanted(memory()))
    again, waiting = advance(offer, wanted(memory()), None, 5.0)
    assert (counts(again), waiting) == (counts(offer), ())


def test_an_offer_that_is_as_wanted_is_not_looked_through() -> None:
    """While nothing retires, the very things that are offered come back; while something does, time may change it."""
    new = wanted(memory())
    offer = offered(new)
    again, waiting = advance(offer, WantedOffer(new.resources, dict(new.modes)), account(), LATER)
    assert again is offer
    assert waiting == ()
    parts = WantedOffer(new.resources, new.modes, {"MIG": a_gpu(0).uuid})
    assert advance(offer, parts, None, LATER)[0].wanted is parts
    smaller = wanted(memory(devices=[0]))
    retiring, _ = advance(offer, smaller, None, LATER)
    assert counts(retiring)[GPU_MEM] == (8, 8)
    assert counts(advance(retiring, smaller, account(at=3 * LATER), 3 * LATER)[0])[GPU_MEM] == (8, 0)


def test_more_replicas_are_there_at_once_and_fewer_retire() -> None:
    """A changed count of the same kind of unit needs no waiting; surplus ones stay listed until they are free."""
    offer = offered(wanted(time_slicing(SLICED)))
    more, _ = advance(offer, wanted(time_slicing({**SLICED, "replicas": 6})), None, 0.0)
    assert counts(more) == {"nvidia.com/gpu": (12, 0)}
    fewer, waiting = advance(more, wanted(time_slicing({**SLICED, "replicas": 2})), None, 0.0)
    assert (counts(fewer), waiting) == ({"nvidia.com/gpu": (4, 8)}, ())
    held = f"{a_gpu(0).uuid}::5"
    settled, _ = advance(fewer, wanted(time_slicing({**SLICED, "replicas": 2})), account(held), LATER)
    assert list(settled.resources["nvidia.com/gpu"].retired) == [held]


def test_another_way_of_sharing_waits_for_the_pods_and_says_so() -> None:
    """A GPU changes over when its last unit is free; until then its units are listed, and none can be allocated."""
    old, new = wanted(memory()), wanted(time_slicing(SLICED))
    held = next(iter(old.resources[0].units))
    offer, waiting = settle(offered(old), new, held)
    assert waiting == (Waiting(a_gpu(0).uuid, frozenset({held})),)
    assert account(held).holders(waiting[0].units) == {"team/pod"}
    assert counts(offer) == {GPU_MEM: (0, 1), "nvidia.com/gpu": (4, 0)}  # the other GPU changed over
    with pytest.raises(PlacementError, match="are retired"):
        offer.resources[GPU_MEM].allocate([held])
    done, waiting = advance(offer, new, account(at=2 * LATER), 2 * LATER)
    assert (counts(done), waiting) == ({"nvidia.com/gpu": (8, 0)}, ())


def test_a_resource_that_only_leaves_hands_out_nothing() -> None:
    """Whoever asks for some of it is told why, and what helps."""
    old = wanted(memory())
    offer, _ = settle(offered(old), wanted(time_slicing(SLICED)), next(iter(old.resources[0].units)))
    leaving = offer.resources[GPU_MEM]
    with pytest.raises(PlacementError, match=f"{GPU_MEM}: this node no longer shares its GPUs as this resource"):
        leaving.prefer([], [], 1)
    with pytest.raises(PlacementError, match=f"{GPU_MEM}: this node no longer shares its GPUs as this resource"):
        leaving.granter.grant(Allocation(GPU_MEM, (), frozenset()))


def test_units_of_another_size_wait_for_the_old_units() -> None:
    """Units of 2 GiB come when those of 1 GiB are gone: else the same memory would be offered twice."""
    offer, waiting = advance(offered(wanted(memory())), wanted(memory(unit="2GiB")), None, 0.0)
    assert {each.gpu for each in waiting} == {a_gpu(0).uuid, a_gpu(1).uuid}
    assert counts(offer) == {GPU_MEM: (0, 16)}
    offer, waiting = advance(offer, wanted(memory(unit="2GiB")), account(), LATER)
    assert (counts(offer), waiting) == ({GPU_MEM: (8, 0)}, ())


def test_a_change_taken_back_brings_the_units_back() -> None:
    """Units that were retired are whole again when the settings are as before."""
    old = wanted(memory())
    offer, _ = advance(offered(old), wanted(time_slicing(SLICED)), None, 0.0)
    back, waiting = advance(offer, old, None, 1.0)
    assert (counts(back), waiting) == ({GPU_MEM: (16, 0)}, ())


def test_units_are_not_given_up_without_the_kubelets_account() -> None:
    """A kubelet that cannot be asked may have pods on any unit."""
    new = wanted(time_slicing(SLICED))
    offer, _ = advance(offered(wanted(memory())), new, None, 0.0)
    offer, waiting = advance(offer, new, None, 1e9)
    assert counts(offer) == {GPU_MEM: (0, 16), "nvidia.com/gpu": (0, 0)}
    assert len(waiting) == 2


def test_an_account_from_before_the_change_does_not_count() -> None:
    """A pod may have been given units after it; what is retired stays for a while at least."""
    new = wanted(time_slicing(SLICED))
    offer, _ = advance(offered(wanted(memory())), new, account(at=-1.0), 0.0)
    offer, _ = advance(offer, new, account(at=MINIMUM_RETIRED_SECONDS - 0.1), LATER)
    assert counts(offer) == {GPU_MEM: (0, 16), "nvidia.com/gpu": (0, 0)}


def test_a_vanished_gpu_keeps_what_pods_hold_listed() -> None:
    """Its free units go, those in use stay until the pods end, and nobody gets one."""
    held = list(wanted(memory()).resources[0].units)[:3]
    rest = Inventory((a_gpu(1, 8192),))
    offer, waiting = settle(offered(wanted(memory())), wanted(memory(), rest), *held)
    assert counts(offer) == {GPU_MEM: (8, 3)}
    assert waiting == ()


def test_units_held_from_an_earlier_life_are_kept_from_the_new_way() -> None:
    """After our restart with other settings a GPU in use waits as if we had been there; foreign IDs change nothing."""
    old, new = wanted(memory()), wanted(time_slicing(SLICED))
    held = next(iter(old.resources[0].units))
    offer = resumed(taken([(GPU_MEM, held), ("example.com/fpga", "card-0")]), NODE.cards, {}, 0.0)
    offer, waiting = advance(offer, new, None, 0.0)
    # Another plugin may serve the old resource by now, so it is not ours to list unless we want it, too.
    assert counts(offer) == {"nvidia.com/gpu": (4, 0)}
    assert waiting == (Waiting(a_gpu(0).uuid, frozenset({held})),)
    both, _ = advance(offer, wanted(memory(devices=[1]) | time_slicing({**SLICED, "devices": [0]})), None, 0.0)
    assert counts(both) == {GPU_MEM: (0, 1), "nvidia.com/gpu": (0, 4)}
    ours, _ = advance(offer, replace(new, served=frozenset({GPU_MEM})), None, 0.0)
    assert counts(ours) == {GPU_MEM: (0, 1), "nvidia.com/gpu": (4, 0)}
    offer, waiting = advance(offer, new, account(), LATER)
    assert (counts(offer), waiting) == ({"nvidia.com/gpu": (8, 0)}, ())


def test_a_renamed_resource_waits_although_its_ids_are_the_same() -> None:
    """The kubelet counts each resource by itself: the same replica under two names would be allocated twice."""
    old, new = wanted(time_slicing(SLICED)), wanted(time_slicing({**SLICED, "rename": "nvidia.com/gpu.shared"}))
    held = f"{a_gpu(0).uuid}::1"
    offer, waiting = settle(offered(old), new, held)
    assert counts(offer) == {"nvidia.com/gpu": (0, 1), "nvidia.com/gpu.shared": (4, 0)}
    assert waiting == (Waiting(a_gpu(0).uuid, frozenset({held})),)
    twice = resumed(taken([("nvidia.com/gpu", held), ("nvidia.com/gpu.shared", held)]), NODE.cards, {}, 0.0)
    for way in (old, new):
        assert advance(twice, way, None, 0.0)[1] == (Waiting(a_gpu(0).uuid, frozenset({held})),)


def test_a_card_that_comes_back_waits_for_what_pods_hold_of_it() -> None:
    """A unit whose card was not there when we began is known to be of it once it is."""
    held = next(iter(wanted(memory()).resources[0].units))
    offer = resumed(taken([(GPU_MEM, held)]), NODE.cards[1:], {}, 0.0)
    offer, waiting = advance(offer, wanted(time_slicing(SLICED), Inventory(NODE.cards[1:])), None, 0.0)
    assert (counts(offer), waiting) == ({"nvidia.com/gpu": (4, 0)}, ())
    offer, waiting = advance(offer, wanted(time_slicing(SLICED)), None, 0.0)
    assert (counts(offer), [set(each.units) for each in waiting]) == ({"nvidia.com/gpu": (4, 0)}, [{held}])


def test_instances_of_a_card_that_comes_back_wait_for_what_pods_hold_of_it() -> None:
    """A card that offers its MIG instances alone is still the one that a unit of an earlier daemon is of."""
    held = next(iter(wanted(memory()).resources[0].units))
    node = a_mig_node(("3g.20gb",))
    divided = replace(node, instances=tuple(replace(each, uuid="MIG-other-digits") for each in node.instances))
    offer = resumed(taken([(GPU_MEM, held)]), (), {}, 0.0)
    decided = planned(divided, flags={"migStrategy": "mixed"})
    parts = {gpu.uuid: a_gpu(0).uuid for gpu in divided.gpus if gpu.mig}
    offer, waiting = advance(offer, WantedOffer(decided.resources, decided.modes, parts), None, 0.0)
    assert [(each.gpu, set(each.units)) for each in waiting] == [(next(iter(parts)), {held})]
    assert sum(healthy for healthy, _ in counts(offer).values()) == 0


def test_a_card_that_lost_a_little_memory_goes_on() -> None:
    """Units of the same size beside one that is surplus allocate nothing twice, also after our restart."""
    smaller = a_node(7168, 7168)
    top = "00000000-1Gi-7"
    offer = resumed(taken([(GPU_MEM, top)]), smaller.cards, {}, 0.0)
    offer, waiting = advance(offer, wanted(memory(), smaller), None, 0.0)
    assert (counts(offer), waiting) == ({GPU_MEM: (14, 1)}, ())


def test_a_list_never_becomes_longer_than_the_kubelet_takes() -> None:
    """New units wait where the list of them and of retired ones would be rejected."""
    node = a_node(81920, 81920)
    old, new = (wanted(memory(unit="1MiB", devices=[index]), node) for index in (0, 1))
    held = [*old.resources[0].units][:60000]
    offer, waiting = settle(offered(old), new, *held)
    assert counts(offer)[GPU_MEM] == (0, 60000)
    assert {each.gpu for each in waiting} == {a_gpu(0).uuid, a_gpu(1).uuid}
    offer, waiting = advance(offer, new, account(*held[:10], at=2 * LATER), 2 * LATER)
    assert (counts(offer)[GPU_MEM], [each.gpu for each in waiting]) == ((81920, 10), [a_gpu(0).uuid])


FULL = "full-to-the-last-byte-with-an-id-of-51-letter-"
"""With five digits after it, an entry of the device list takes 64 bytes."""


def cut_by_hand(*gpus: tuple[str, Sequence[int]]) -> WantedOffer:
    """Return what to list where each GPU has units with this prefix and these numbers."""
    shares = {
        gpu: Form("replica", gpu.uuid, prefix).units(gpu.uuid, None, numbers)
        for gpu, (prefix, numbers) in zip((a_gpu(index) for index in range(len(gpus))), gpus, strict=True)
    }
    return WantedOffer((replace(only(planned(NODE, sharing=time_slicing(SLICED))), units=Units(shares)),))


def test_a_list_can_be_as_long_as_the_kubelet_takes_to_the_byte() -> None:
    """New units come beside one on its way out while all of them take 4 MiB; a byte more, and they wait."""
    assert listed_size(Form("replica", "", FULL).units("", None, [10000])) * 2**16 == KUBELET_MESSAGE_LIMIT
    numbers = range(10000, 10000 + 2**16 - 1)
    for retired, waits in ((99999, False), (100000, True)):
        old, new = cut_by_hand((FULL, [*numbers[1:], retired])), cut_by_hand((FULL, numbers))
        held = f"{FULL}{retired}"
        offer, waiting = settle(offered(old), new, held)
        assert counts(offer) == {"nvidia.com/gpu": (2**16 - 1 - waits, 1)}
        assert waiting == ((Waiting(a_gpu(0).uuid, frozenset({held})),) if waits else ())


def test_gpus_with_new_units_wait_alone_while_a_list_would_be_too_long() -> None:
    """A GPU that has all its units waits for nothing, and one that changes over for its own old units alone."""
    numbers = range(10000, 10000 + 2**16 - 1)
    old = cut_by_hand((FULL, [*numbers[1:], 100000]), ("kept-", [0, 1]), ("old-", [0, 1]))
    new = cut_by_hand((FULL, numbers), ("kept-", [0, 1]), ("new-", [0, 1]))
    offer, waiting = settle(offered(old), new, f"{FULL}100000", "old-1")
    assert set(waiting) == {
        Waiting(a_gpu(0).uuid, frozenset({f"{FULL}100000", "old-1"})),
        Waiting(a_gpu(2).uuid, frozenset({"old-1"})),
    }
    assert [unit.number for unit in offer.resources["nvidia.com/gpu"].units.by_gpu[a_gpu(1)]] == [0, 1]


def test_units_held_from_an_earlier_life_in_the_same_way_are_simply_there() -> None:
    """After our own restart with the same settings nothing waits."""
    same = wanted(memory())
    offer, waiting = advance(
        resumed(taken([(GPU_MEM, id_) for id_ in same.resources[0].units]), NODE.cards, {}, 0.0), same, None, 0.0
    )
    assert (counts(offer), waiting) == ({GPU_MEM: (16, 0)}, ())


MPS_REPLICAS: dict[str, object] = {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}
FEWER_REPLICAS: dict[str, object] = {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}
SIZES: dict[str, object] = {"mps": {"sizes": [{"slices": [{"size": "2gb", "count": 4}]}]}}
OTHER_SIZES: dict[str, object] = {"mps": {"sizes": [{"slices": [{"size": "2gb", "count": 2}, {"size": "4gb"}]}]}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (memory(), memory(isolation="mps")),
        (memory(isolation="mps"), memory()),
        (time_slicing(SLICED), MPS_REPLICAS),
        (MPS_REPLICAS, FEWER_REPLICAS),
        (
            time_slicing({**SLICED, "isolation": "hami-core"}),
            time_slicing({**SLICED, "isolation": "hami-core", "replicas": 2}),
        ),
        (memory(), memory(isolation="hami-core")),
    ],
)
def test_a_gpu_with_another_isolation_waits_though_the_ids_are_the_same(
    old: dict[str, object], new: dict[str, object]
) -> None:
    """A GPU that comes under MPS, leaves it, or gets other limits waits for its pods, also across our own restart."""
    before, after = wanted(old), wanted(new)
    (name,) = [resource.name for resource in before.resources]
    held = next(iter(before.resources[0].units))
    live, waiting = settle(offered(before), after, held)
    assert waiting == (Waiting(a_gpu(0).uuid, frozenset({held})),)
    assert held in live.resources[name].retired
    assert live.modes_in_use == {
        a_gpu(0).uuid: before.modes.get(a_gpu(0).uuid),
        a_gpu(1).uuid: after.modes.get(a_gpu(1).uuid),
    }
    again = resumed(taken([(name, held)]), NODE.cards, before.modes, 0.0)
    assert counts(advance(again, after, None, 0.0)[0]) == counts(live)
    done, waiting = advance(live, after, account(at=2 * LATER), 2 * LATER)
    assert (waiting, done.modes_in_use) == ((), {gpu.uuid: after.modes.get(gpu.uuid) for gpu in NODE.cards})


def test_sizes_of_one_gpu_stand_side_by_side() -> None:
    """Several resources on one GPU are no change of anything; new sizes wait until slices in their place are free."""
    offer = offered(wanted(OTHER_SIZES))
    sizes = {"nvidia.com/gpu-2gb": (4, 0), "nvidia.com/gpu-4gb": (2, 0)}
    assert counts(offer) == sizes
    assert counts(advance(offer, wanted(OTHER_SIZES), None, 1.0)[0]) == sizes
    offer = offered(wanted(SIZES))
    kept, surplus = (f"00000000-2gb-{number}" for number in (0, 3))
    offer, waiting = settle(offer, wanted(OTHER_SIZES), kept, surplus)
    assert waiting == (Waiting(a_gpu(0).uuid, frozenset({surplus})),)
    assert counts(offer) == {"nvidia.com/gpu-2gb": (4, 1), "nvidia.com/gpu-4gb": (1, 0)}
    assert kept in offer.resources["nvidia.com/gpu-2gb"].units
    again = resumed(taken([("nvidia.com/gpu-2gb", surplus)]), NODE.cards, wanted(SIZES).modes, 0.0)
    assert advance(again, wanted(OTHER_SIZES), None, 0.0)[0].resources["nvidia.com/gpu-4gb"].gpus.keys() == {
        a_gpu(1).uuid
    }


WAYS = st.sampled_from(
    [
        memory(),
        memory(unit="2GiB"),
        memory(devices=[0]),
        memory(isolation="mps"),
        MPS_REPLICAS,
        FEWER_REPLICAS,
        time_slicing(SLICED),
        time_slicing({**SLICED, "replicas": 2}),
        time_slicing({**SLICED, "devices": [1]}) | memory(devices=[0]),
        time_slicing({**SLICED, "rename": "nvidia.com/gpu.shared"}),
        {},
    ]
)


@given(st.lists(st.tuples(WAYS, st.booleans(), st.data()), max_size=12))
def test_no_unit_in_use_ever_vanishes(steps: list[tuple[dict[str, object], bool, st.DataObject]]) -> None:
    """Through any changes: what a pod holds stays listed, and a GPU is never offered in two ways at once."""
    offer, held, now = Offer(), set[str](), 0.0
    for sharing, asked, data in steps:
        now += data.draw(st.sampled_from([0.1, 10.0]))
        seen = confirmed(*held, at=now) if asked else None
        offer, _ = advance(offer, wanted(sharing), seen, now)
        listed = {id_ for each in offer.resources.values() for id_ in (*each.units, *each.retired)}
        assert held <= listed
        for gpu in NODE.cards:
            kinds = {
                (name, unit.mib, unit.id == unit.gpu)
                for name, each in offer.resources.items()
                for unit in (*each.units.values(), *each.retired.values())
                if unit.gpu == gpu.uuid
            }
            assert len(kinds) <= 1, "a GPU is listed in two ways"
        free = [id_ for each in offer.resources.values() for id_ in each.units if id_ not in held]
        takes, gives = data.draw(st.booleans()), data.draw(st.booleans())
        if free and takes:
            held.add(data.draw(st.sampled_from(free)))
        elif held and gives:
            held.remove(data.draw(st.sampled_from(sorted(held))))


FEW_SIZES: dict[str, object] = {"mps": {"sizes": [{"slices": [{"size": "1gb", "count": 3}, {"size": "3gb"}]}]}}
MORE_WAYS = WAYS | st.sampled_from([SIZES, OTHER_SIZES, FEW_SIZES])


@given(st.lists(st.tuples(MORE_WAYS, st.booleans(), st.data()), max_size=12), st.sampled_from(["new", "resumed"]))
def test_sets_of_units_go_as_each_unit_would(
    steps: list[tuple[dict[str, object], bool, st.DataObject]], life: str
) -> None:
    """Units that are handled together are offered, retired and waited for as if each were looked at by itself."""
    offer, reference, held, now = Offer(), Listed(), set[tuple[str, str]](), 0.0
    if life == "resumed":
        held = {("nvidia.com/gpu", f"{a_gpu(0).uuid}::3"), (GPU_MEM, "00000001-1Gi-7"), (GPU_MEM, "0000beef-1Gi-7")}
        offer, reference = resumed(taken(held), NODE.cards[1:], {}, now), begun(held, NODE.cards[1:], now)
    new = wanted({})
    for sharing, asked, data in steps:
        now += data.draw(st.sampled_from([0.1, 10.0]))
        # The same settings again are the same things: most looks are at what is there.
        if data.draw(st.booleans()):
            new = wanted(sharing)
        seen = confirmed(*(id_ for _, id_ in held), at=now) if asked else None
        (offer, waiting), reference = advance(offer, new, seen, now), gone_on(reference, new, seen, now)
        lists = {name: (list(each.units), list(each.retired)) for name, each in offer.resources.items()}
        assert {name: ids for name, ids in lists.items() if any(ids)} == reference.ids()
        assert {each.gpu: set(each.units) for each in waiting} == reference.waiting
        free = [(name, id_) for name, each in offer.resources.items() for id_ in each.units]
        if free:
            held |= set(data.draw(st.lists(st.sampled_from(free), max_size=3)))
        if held:
            held -= set(data.draw(st.lists(st.sampled_from(sorted(held)), max_size=3)))


class Counting(list[Unit]):
    """The units of a GPU, which count how often somebody goes over them."""

    times = 0

    def __iter__(self) -> Iterator[Unit]:
        """Count, and go over them."""
        self.times += 1
        return super().__iter__()


def counted(new: WantedOffer) -> WantedOffer:
    """Return the same with lists of units that count."""
    (resource,) = new.resources
    units = Units({gpu: Counting(units) for gpu, units in resource.units.by_gpu.items()})
    return WantedOffer((replace(resource, units=units),), new.modes)


def test_units_that_stay_are_not_gone_through_while_others_retire() -> None:
    """While pods hold retired units, a look at who holds what goes through none of those that stay."""
    new = counted(wanted(time_slicing({**SLICED, "replicas": 1000})))
    held = [f"{gpu.uuid}::{number}" for gpu in NODE.cards for number in (1001, 1002)]
    offer = offered(wanted(time_slicing({**SLICED, "replicas": 1003})))
    offer, _ = settle(offer, new, *held)
    lists = [units for units in new.resources[0].units.by_gpu.values() if isinstance(units, Counting)]
    before = [units.times for units in lists]
    assert len(before) == 2
    for number in range(2, 6):
        same, waiting = advance(offer, new, account(*held, at=number * LATER), number * LATER)
        assert (same is offer, waiting) == (True, ())
    assert [units.times for units in lists] == before
    fewer, _ = advance(offer, new, account(*held[:1], at=6 * LATER), 6 * LATER)
    assert counts(fewer) == {"nvidia.com/gpu": (2000, 1)}
    (units, again) = (each.resources["nvidia.com/gpu"].units for each in (offer, fewer))
    assert again is units


def test_units_on_their_way_out_are_not_gone_through_while_none_is_free() -> None:
    """However many a pod holds: the same offer, the same GPUs waiting, the very same units to list."""
    new = wanted(memory())
    held = [f"{gpu.uuid}::{number}" for gpu in NODE.cards for number in range(4)]
    offer, waiting = settle(offered(wanted(time_slicing(SLICED))), new, *held)
    assert counts(offer) == {"nvidia.com/gpu": (0, 8), GPU_MEM: (0, 0)}
    again, still = advance(offer, new, account(*held, "somebody-elses", at=2 * LATER), 2 * LATER)
    assert again is offer
    assert still is offer.waiting
    assert still == waiting
