"""Tests of `gpushare_plugin.mig.exchange`."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_plugin.gpus.exchange import ExchangeError, read_message, write_message
from gpushare_plugin.gpus.mig_driver import MigCard, MigPart
from gpushare_plugin.mig.exchange import MigOrder, MigRoot, MigStatus, WantedCard
from gpushare_plugin.mig.reconciler import card_status
from gpushare_plugin.slices.mig import MigProfile
from gpushare_plugin.slices.slice import MigPlace

CARD = "GPU-00000000-0000-4000-8000-000000000001"
INSTANCE = "MIG-00000000-0000-5000-8000-000000000001"


@given(
    st.sets(st.tuples(st.sampled_from(["1g.5gb", "1g.5gb+me", "3g.20gb"]), st.integers(0, 7)), max_size=7),
    st.none() | st.booleans(),
    st.integers(0, 1 << 40),
)
def test_a_written_order_is_read(places: set[tuple[str, int]], mode: bool | None, revision: int) -> None:  # noqa: FBT001
    """Any order comes back as it went, and names its places."""
    wanted = tuple(MigPlace(*place) for place in sorted(places))
    card = WantedCard(uuid=CARD, instances=tuple(map(str, wanted)), removable=(INSTANCE,), mig_mode=mode)
    order = MigOrder(revision=revision, gpus=(card,))
    assert MigOrder.model_validate_json(order.model_dump_json()) == order
    assert order.gpus[0].places == wanted


NUMBERS = st.integers(0, 1 << 31)
NAMES = st.sampled_from(["1g.5gb", "1g.5gb+me", "1g.12gb+gfx", "3g.20gb", "7g.40gb"])
UUIDS = st.sampled_from([f"{INSTANCE[:-1]}{number}" for number in range(10)])
PROFILES = st.builds(
    MigProfile,
    name=NAMES,
    memory_mib=NUMBERS,
    size=NUMBERS,
    compute=NUMBERS,
    most=NUMBERS,
    starts=st.lists(NUMBERS, max_size=3).map(tuple),
)
PARTS = st.builds(
    MigPart,
    number=NUMBERS,
    place=st.builds(MigPlace, NAMES, st.integers(0, 15)),
    size=st.integers(1, 16),
    uuids=st.lists(UUIDS, max_size=2).map(tuple),
)
CARDS = st.builds(
    MigCard,
    uuid=st.just(CARD),
    enabled=st.booleans(),
    pending=st.booleans(),
    profiles=st.lists(
        PROFILES,
        max_size=2,
    ).map(tuple),
    parts=st.lists(PARTS, max_size=4).map(tuple),
)


@settings(max_examples=25)
@given(CARDS, st.none() | st.text(max_size=40), NUMBERS, NUMBERS, st.none() | st.text(max_size=40))
def test_a_status_says_how_a_card_is_divided(
    card: MigCard, reason: str | None, created: int, destroyed: int, trouble: str | None
) -> None:
    """Any status comes back as it went, with the profiles and instances of the card, in the order of their places."""
    told = card_status(card, reason, created, destroyed)
    status = MigStatus(revision=created, gpus=(told,), trouble=trouble)
    read = MigStatus.model_validate_json(status.model_dump_json())
    assert read == status
    found = read.card(CARD)
    assert found is not None
    assert (found.mig_mode, found.pending, found.reason) == (card.enabled, card.pending, reason)
    assert [(each.name, each.starts, each.size, each.compute, each.most) for each in found.profiles] == [
        (each.name, each.starts, each.size, each.compute, each.most) for each in card.profiles
    ]
    assert sorted((each.place, each.size, each.uuids) for each in found.instances) == sorted(
        (str(each.place), each.size, each.uuids) for each in card.parts
    )
    places = [int(each.place.partition("@")[2]) for each in found.instances]
    assert places == sorted(places)


def test_the_largest_node_has_room_in_the_files(tmp_path: Path) -> None:
    """Sixteen cards with as many profiles and instances as any can have."""
    root = MigRoot(tmp_path)
    profiles = tuple(
        MigProfile(
            name=f"{number}g.100gb+me.all", memory_mib=1 << 20, size=7, compute=7, most=8, starts=tuple(range(8))
        )
        for number in range(1, 20)
    )
    parts = tuple(MigPart(each, MigPlace("1g.100gb+me.all", each), 1, (INSTANCE,)) for each in range(8))
    cards = [f"{CARD[:-2]}{number:02}" for number in range(16)]
    status = MigStatus(
        gpus=tuple(card_status(MigCard(each, True, True, profiles, parts), "why" * 300, 1, 1) for each in cards)  # noqa: FBT003
    )
    write_message(root.status, status)
    assert read_message(root.status, MigStatus) == status
    instances = tuple(f"1g.100gb+me.all@{start}" for start in range(8))
    removable = tuple(f"{INSTANCE[:-1]}{number}" for number in range(8))
    order = MigOrder(gpus=tuple(WantedCard(uuid=each, instances=instances, removable=removable) for each in cards))
    write_message(root.wanted, order)
    assert read_message(root.wanted, MigOrder) == order


def test_keys_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    """Either daemon may be upgraded first, so what is not known does not matter."""
    root = MigRoot(tmp_path)
    root.wanted.write_text(f'{{"version": 1, "revision": 3, "gpus": [{{"uuid": "{CARD}", "colour": 1}}], "shape": 4}}')
    assert read_message(root.wanted, MigOrder) == MigOrder(revision=3, gpus=(WantedCard(uuid=CARD),))
    write_message(root.wanted, MigOrder(revision=4))
    assert read_message(root.wanted, MigOrder) == MigOrder(revision=4)


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (
            f'{{"uuid": "{CARD}", "instances": ["3g.20gb"]}}',
            "'3g.20gb' found, a MIG profile and its first memory slice",
        ),
        (f'{{"uuid": "{CARD}", "instances": ["1g.5gb@0", "1g.5gb@0"]}}', "same place is listed more than once"),
        (f'{{"uuid": "{CARD}", "removable": ["GPU-1"]}}', "gpus.0.removable.0"),
        (f'{{"uuid": "{CARD}"}}, {{"uuid": "{CARD}"}}', "same GPU is listed more than once"),
        ('{"uuid": "MIG-1"}', "gpus.0.uuid"),
    ],
)
def test_a_senseless_order_is_refused(tmp_path: Path, gpu: str, words: str) -> None:
    """The error says where the mistake is, what was found and what to check."""
    root = MigRoot(tmp_path)
    root.wanted.write_text(f'{{"version": 1, "gpus": [{gpu}]}}')
    with pytest.raises(ExchangeError) as caught:
        read_message(root.wanted, MigOrder)
    assert words in str(caught.value)
    assert "the same version" in str(caught.value)
