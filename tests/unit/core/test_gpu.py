"""Tests of `gpushare_plugin.core.gpu`."""

import pytest

from gpushare_plugin.core.gpu import FailedGpu
from gpushare_plugin.core.health import GpuEvent
from tests.nodes import a_gpu, a_mig_node

NODE = a_mig_node(("1g.5gb", "1g.5gb", "3g.20gb"), None, ("7g.40gb",))


def labels(uuids: frozenset[str]) -> list[str]:
    """Return the labels of GPUs, in order of place."""
    return [gpu.label for gpu in NODE.gpus if gpu.uuid in uuids]


def test_a_card_comes_before_its_instances() -> None:
    """Labels are NVIDIA's `card:instance`, and their order is that of cards and numbers."""
    assert [gpu.label for gpu in NODE.gpus] == ["0", "0:0", "0:1", "0:2", "1", "2", "2:0"]
    assert [gpu.label for gpu in NODE.instances_of(NODE.cards[2])] == ["2:0"]
    assert NODE.instances_of(NODE.cards[1]) == ()


def test_an_instance_belongs_to_its_card() -> None:
    """An instance has the UUID of its card, and its profile."""
    card, instance = NODE.cards[0], NODE.instances[0]
    assert (card.card, instance.card) == (card.uuid, card.uuid)
    assert (card.product, instance.product) == (card.name, f"{card.name} MIG 1g.5gb")


def test_cards_and_instances_that_failed_have_labels() -> None:
    """A card its index, an instance its number as well."""
    assert (FailedGpu(3, "lost").label, FailedGpu(3, "lost", number=1).label) == ("3", "3:1")


@pytest.mark.parametrize(
    ("event", "concerned"),
    [
        (GpuEvent(a_gpu(0).uuid, 94, "", 8, 0), ["0:1"]),
        (GpuEvent(a_gpu(0).uuid, 94, "", 8), ["0:1"]),
        (GpuEvent(a_gpu(0).uuid, 94, "", 8, 1), ["0"]),
        (GpuEvent(a_gpu(0).uuid, 94, "", 99, 0), ["0"]),
        (GpuEvent(a_gpu(0).uuid, 79, ""), ["0"]),
        (GpuEvent(a_gpu(1).uuid, 79, ""), ["1"]),
        (GpuEvent(a_gpu(2).uuid, 94, "", 7, 0), ["2:0"]),
        (GpuEvent(None, None, ""), ["0", "1", "2"]),
    ],
)
def test_an_event_concerns_the_narrowest_gpus_that_it_names(event: GpuEvent, concerned: list[str]) -> None:
    """The named instances; the card if no known instance is named; all cards if no card is named."""
    assert labels(NODE.concerned(event)) == concerned


def test_an_event_can_concern_a_card_that_failed_the_first_look() -> None:
    """A card that failed at the first look may still tell of an error."""
    assert NODE.concerned(GpuEvent("GPU-silent", 79, "")) == {"GPU-silent"}


@pytest.mark.parametrize(
    ("faulty", "affected"),
    [
        ([], []),
        (["1"], ["1"]),
        (["0"], ["0", "0:0", "0:1", "0:2"]),
        (["0:1"], ["0", "0:1"]),
        (["0:1", "2"], ["0", "0:1", "2", "2:0"]),
    ],
)
def test_a_fault_of_a_card_is_a_fault_of_all_its_instances(faulty: list[str], affected: list[str]) -> None:
    """The fault of an instance is not that of its neighbours, but that of the whole card."""
    uuids = {gpu.uuid for gpu in NODE.gpus if gpu.label in faulty}
    assert labels(NODE.affected(uuids)) == affected
