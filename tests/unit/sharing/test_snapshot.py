"""Tests of `gpushare_plugin.sharing.snapshot`: what a snapshot has of the config and the plan."""

import pytest

from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.holding import Unknown
from gpushare_plugin.ledger.node_record import record
from gpushare_plugin.sharing.plan import Plan, plan
from gpushare_plugin.sharing.snapshot import planned_snapshot
from tests.nodes import a_mig_node, a_node
from tests.unit.sharing.settings import memory, planned, settings, time_slicing


def test_a_snapshot_has_the_config_as_plain_values() -> None:
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


REPLICAS: dict[str, object] = {"name": "nvidia.com/gpu", "replicas": 4}


@pytest.mark.parametrize(
    ("sharing", "isolation", "share"),
    [
        (memory(), None, None),
        (memory(isolation="driver"), "driver", None),
        (time_slicing(REPLICAS), None, None),
        (time_slicing({**REPLICAS, "isolation": "hami-core"}), "hami-core", 2048),
        (time_slicing({**REPLICAS, "isolation": "driver"}), "driver", 2048),
        ({"mps": {"resources": [REPLICAS]}}, "mps", 2048),
        ({"mps": {"resources": [{**REPLICAS, "isolation": "driver"}]}}, "driver+mps", 2048),
        ({"mps": {"sizes": [{"slices": [{"size": "2gb"}]}]}}, "mps", None),
    ],
)
def test_containers_that_hold_a_gpu_have_the_limits_of_the_mode_in_use(
    sharing: dict[str, object], isolation: str | None, share: int | None
) -> None:
    """Whatever the config says now: the isolation by which containers hold the GPU, and the share of each replica."""
    node, means = a_node(8192), DriverLimits(agent=True)
    sections = {"sharing": sharing, "driverLimits": {"additionalMemory": "512MiB"}}
    held = plan(EffectiveConfig(settings(**sections)), node, driver_limits=means)
    made = planned_snapshot(settings(), node, planned(node), held.modes)
    uuid = node.cards[0].uuid
    assert (made.isolations_in_use.get(uuid), made.equal_shares_mib.get(uuid)) == (isolation, share)
    assert made.isolations == {}


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


@pytest.mark.parametrize(
    ("entries", "policy"),
    [
        ([{}], None),
        ([{"placement": "spread"}], "spread"),
        ([{"placement": "binpack"}], "binpack"),
        ([{"placement": "spread", "devices": [0]}, {"name": "example.com/gpu-mem", "devices": [1]}], "spread"),
        ([{"placement": "spread", "devices": [0]}, {"placement": "binpack", "devices": [1]}], None),
        (None, None),
    ],
)
def test_the_placement_is_the_one_that_the_config_names(
    entries: list[dict[str, object]] | None, policy: str | None
) -> None:
    """The default of the schema is no wish, and entries that differ say nothing of the node as a whole."""
    resources = [{"name": f"example.com/mem-{number}", **each} for number, each in enumerate(entries or ())]
    sharing: dict[str, object] = {"memory": {"resources": resources}} if entries else {}
    inventory = a_node(8192, 8192)
    made = planned_snapshot(settings(sharing=sharing), inventory, planned(inventory, sharing=sharing))
    assert made.policy == policy
    assert record(made).policy == policy


def test_a_node_without_gpus_needs_no_mps() -> None:
    """A config for many nodes starts no MPS on those that have no GPU."""
    sharing = memory(isolation="mps")
    assert not planned_snapshot(settings(sharing=sharing), Inventory(()), Plan()).needs_mps


def test_a_snapshot_offers_everything_planned() -> None:
    """Resources and warnings are those of the plan; what only a running node knows is empty."""
    inventory = a_node(8192)
    decided = planned(inventory, sharing=memory())
    made = planned_snapshot(settings(sharing=memory()), inventory, decided)
    assert (made.inventory, made.resources, made.notices) == (inventory, decided.resources, decided.notices)
    assert (dict(made.unhealthy), dict(made.waiting), dict(made.standings), made.holdings) == ({}, {}, {}, Unknown())
