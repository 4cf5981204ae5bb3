"""Tests of `gpushare_plugin.core.snapshot`: one picture of a node."""

from typing import Any

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.snapshot import Snapshot
from tests.nodes import a_mig_node, a_node
from tests.snapshots import snapshot
from tests.unit.sharing.settings import memory, time_slicing

REPLICAS = {"name": "nvidia.com/gpu", "replicas": 2}


@pytest.mark.parametrize(
    ("sharing", "mode"),
    [
        (memory(), "memory"),
        (memory(isolation="mps"), "mps"),
        (time_slicing(REPLICAS), "time-slicing"),
        ({"mps": {"resources": [REPLICAS]}}, "mps"),
        ({"mps": {"sizes": [{"slices": [{"size": "2gb", "count": 2}]}]}}, "mps"),
        ({}, "exclusive"),
    ],
)
def test_every_way_of_sharing_has_a_mode_of_its_own(sharing: dict[str, Any], mode: str) -> None:
    """The mode follows from the units that are offered, and from MPS."""
    made = snapshot(sharing, 8192)
    assert made.mode(made.inventory.cards[0]) == mode


def test_a_gpu_that_is_not_offered_has_no_mode() -> None:
    """MPS or not, a GPU without units is not shared in any way."""
    inventory = a_node(8192)
    (gpu,) = inventory.cards
    made = Snapshot(inventory, under_mps=frozenset({gpu.uuid}))
    assert (made.mode(gpu), made.offers(gpu)) == (None, {})


def test_a_gpu_is_offered_in_every_resource_that_has_units_of_it() -> None:
    """Slices of two sizes are two resources, each with its own units of the GPU."""
    sizes = [{"slices": [{"size": "2gb", "count": 2}, {"size": "4gb"}]}]
    made = snapshot({"mps": {"sizes": sizes}}, 8192)
    offers = made.offers(made.inventory.cards[0])
    assert {name: len(units) for name, units in offers.items()} == {"nvidia.com/gpu-2gb": 2, "nvidia.com/gpu-4gb": 1}


def test_instances_are_offered_beside_their_card() -> None:
    """Under the strategy `mixed` instances have modes, and their card has none."""
    made = snapshot({}, inventory=a_mig_node(("1g.5gb",)), flags={"migStrategy": "mixed"})
    assert [made.mode(gpu) for gpu in made.inventory.gpus] == [None, "exclusive"]


def test_snapshots_of_equal_facts_are_equal() -> None:
    """Equal facts are equal snapshots, so that what has not changed is not sent again."""
    made = snapshot({}, 8192)
    assert replace(made, waiting={}) == made
    assert replace(made, notices=("a warning",)) != made
