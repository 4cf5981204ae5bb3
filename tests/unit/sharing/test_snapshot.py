"""Tests of `gpushare_plugin.sharing.snapshot`: what a snapshot has of the config and the plan."""

import pytest

from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.sharing.plan import Plan
from gpushare_plugin.sharing.snapshot import planned_snapshot
from tests.nodes import a_mig_node, a_node
from tests.unit.sharing.settings import memory, planned, settings


def test_the_config_is_there_as_plain_values() -> None:
    """MIG strategy, whether MPS is configured, and the names of whole GPUs: all that projections need."""
    sections = {
        "flags": {"migStrategy": "mixed"},
        "resources": {"gpus": [{"pattern": "*", "name": "example.com/gpu"}]},
        "sharing": {"mps": {"sizes": [{"slices": [{"size": "2gb"}], "devices": [1]}]}},
    }
    inventory = a_mig_node(("1g.5gb",), None)
    made = planned_snapshot(settings(**sections), inventory, planned(inventory, **sections))
    assert (made.mig_strategy, made.needs_mps) == ("mixed", True)
    assert made.unshared_names == {"nvidia.com/gpu", "example.com/gpu", "nvidia.com/mig-1g.5gb"}
    assert made.under_mps == {inventory.cards[1].uuid}


@pytest.mark.parametrize(
    ("sharing", "needed"),
    [
        (memory(), False),
        (memory(isolation="hami-core"), False),
        (memory(isolation="mps"), True),
        ({"mps": {"sizes": [{"slices": [{"size": "2gb"}]}]}}, True),
        ({"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}, False),
    ],
    ids=["memory", "memory under HAMi-core", "memory under MPS", "slices", "time slicing"],
)
def test_mps_is_needed_where_the_config_shares_through_it(*, sharing: dict[str, object], needed: bool) -> None:
    """Memory units under MPS need it as much as the replicas and slices of `sharing.mps` do."""
    inventory = a_node(8192)
    assert (
        planned_snapshot(settings(sharing=sharing), inventory, planned(inventory, sharing=sharing)).needs_mps is needed
    )


def test_a_node_without_gpus_needs_no_mps() -> None:
    """A config for many nodes starts no MPS on those that have no GPU."""
    sharing = memory(isolation="mps")
    assert not planned_snapshot(settings(sharing=sharing), Inventory(()), Plan()).needs_mps


def test_everything_planned_is_offered() -> None:
    """Resources and warnings are those of the plan; what only a running node knows is empty."""
    inventory = a_node(8192)
    decided = planned(inventory, sharing=memory())
    made = planned_snapshot(settings(sharing=memory()), inventory, decided)
    assert (made.inventory, made.resources, made.notices) == (inventory, decided.resources, decided.notices)
    assert (dict(made.unhealthy), dict(made.waiting), dict(made.standings), made.holdings) == ({}, {}, {}, None)
