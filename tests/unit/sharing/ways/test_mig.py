"""Tests of `gpushare_plugin.sharing.ways.mig`, and of what the other ways of sharing make of MIG instances."""

import pytest

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import FailedGpu, Inventory
from tests.nodes import a_gpu, a_mig_node
from tests.unit.sharing.settings import memory, only, planned, time_slicing

SEVEN = ("1g.5gb",) * 7
A100 = ("1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
H100 = ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
A30 = ("1g.6gb", "1g.6gb+me", "2g.12gb", "2g.12gb+me", "4g.24gb")
PARTS = ("1c.3g.20gb", "2c.3g.20gb", "1g.24gb-me", "1g.24gb+me.all", "2g.48gb+gfx")


def offered(node: Inventory, strategy: str, **sections: object) -> dict[str, list[str]]:
    """Return which GPUs each resource of a node without problems is made of."""
    decided = planned(node, flags={"migStrategy": strategy}, **sections)
    assert decided.problems == ()
    return {resource.name: [gpu.label for gpu in resource.gpus.values()] for resource in decided.resources}


@pytest.mark.parametrize(
    ("layouts", "strategy", "resources"),
    [
        ((None, None), "none", {"nvidia.com/gpu": ["0", "1"]}),
        ((None, None), "single", {"nvidia.com/gpu": ["0", "1"]}),
        ((None, None), "mixed", {"nvidia.com/gpu": ["0", "1"]}),
        ((SEVEN, None), "none", {"nvidia.com/gpu": ["0", "1"]}),
        ((("3g.20gb",) * 2, ("3g.20gb",)), "none", {"nvidia.com/gpu": ["0", "1"]}),
        ((("3g.20gb",) * 2, ("3g.20gb",)), "single", {"nvidia.com/gpu": ["0:0", "0:1", "1:0"]}),
        ((("3g.20gb",) * 2, ("3g.20gb",)), "mixed", {"nvidia.com/mig-3g.20gb": ["0:0", "0:1", "1:0"]}),
        (
            (("3g.20gb", "1g.5gb"), None, ("1g.5gb",)),
            "mixed",
            {"nvidia.com/mig-3g.20gb": ["0:0"], "nvidia.com/mig-1g.5gb": ["0:1", "2:0"], "nvidia.com/gpu": ["1"]},
        ),
        (((), None), "mixed", {"nvidia.com/gpu": ["1"]}),
        (((), ()), "mixed", {}),
    ],
)
def test_every_strategy_advertises_as_nvidias_plugin_does(
    layouts: tuple[tuple[str, ...] | None, ...], strategy: str, resources: dict[str, list[str]]
) -> None:
    """Strategies offer whole cards, instances as GPUs, or each instance by its profile."""
    assert offered(a_mig_node(*layouts), strategy) == resources


@pytest.mark.parametrize("profile", [*A100, *H100, *A30, *PARTS])
def test_every_profile_has_a_resource(profile: str) -> None:
    """A plus sign cannot stand in a name, so it is a dot; compute instances smaller than theirs are offered as well."""
    name = f"nvidia.com/mig-{profile.replace('+', '.')}"
    assert offered(a_mig_node((profile,)), "mixed") == {name: ["0:0"]}
    sharing = time_slicing({"name": name, "replicas": 3})
    assert len(only(planned(a_mig_node((profile,)), flags={"migStrategy": "mixed"}, sharing=sharing)).units) == 3


@pytest.mark.parametrize(
    ("layouts", "reasons"),
    [
        ((SEVEN, None), ["GPU 0 ({0}) has 7 x 1g.5gb", "GPU 1 ({1}) is not in MIG mode"]),
        ((SEVEN, ()), ["GPU 0 ({0}) has 7 x 1g.5gb", "GPU 1 ({1}) has no MIG instance"]),
        ((("3g.20gb", "1g.5gb", "1g.5gb"),), ["GPU 0 ({0}) has 1 x 3g.20gb, 2 x 1g.5gb"]),
        ((("3g.20gb",), ("4g.20gb",)), ["GPU 0 ({0}) has 1 x 3g.20gb", "GPU 1 ({1}) has 1 x 4g.20gb"]),
    ],
)
def test_single_is_refused_with_the_reason_per_gpu(
    layouts: tuple[tuple[str, ...] | None, ...], reasons: list[str]
) -> None:
    """A mixed or half-enabled node under `single` is one mistake, and each GPU is reported as it is."""
    decided = planned(a_mig_node(*layouts), flags={"migStrategy": "single"})
    (problem,) = decided.problems
    assert problem.path == ("flags", "migStrategy")
    for reason in reasons:
        assert reason.format(a_gpu(0).uuid, a_gpu(1).uuid) in problem.message
    assert decided.resources == ()


def test_an_instance_that_does_not_answer_is_no_reason_to_refuse() -> None:
    """The other instances serve under `single`, and nothing is said of the settings."""
    node = replace(a_mig_node(SEVEN, ()), failed=(FailedGpu(1, "Unknown Error", number=0),))
    assert offered(node, "single") == {"nvidia.com/gpu": [f"0:{number}" for number in range(7)]}


def test_a_card_without_instances_is_noticed() -> None:
    """It is not advertised until it has instances, which is a warning."""
    decided = planned(a_mig_node((), SEVEN), flags={"migStrategy": "mixed"})
    assert any(a_gpu(0).uuid in notice for notice in decided.notices)
    assert not any(a_gpu(1).uuid in notice for notice in decided.notices)


def test_patterns_rename_by_profile() -> None:
    """The first pattern that fits the profile gives the name, and sharing refers to it."""
    node = a_mig_node(("1g.5gb", "1g.5gb+me", "3g.20gb"), None)
    resources = {
        "migs": [{"pattern": "1g.*", "name": "small"}, {"pattern": "*", "name": "mig"}],
        "gpus": [{"pattern": "*A100*", "name": "a100"}],
    }
    sharing = time_slicing({"name": "nvidia.com/small", "replicas": 2})
    names = {"nvidia.com/small": ["0:0", "0:1"], "nvidia.com/mig": ["0:2"], "nvidia.com/a100": ["1"]}
    assert offered(node, "mixed", resources=resources) == names
    assert offered(node, "mixed", resources=resources, sharing=sharing) == names
    alike = a_mig_node(("1g.5gb",) * 2)
    assert offered(alike, "single", resources=resources) == {"nvidia.com/small": ["0:0", "0:1"]}


def test_memory_is_never_shared_on_a_card_in_mig_mode() -> None:
    """Cards without MIG share their memory, instances are offered beside them, and that is said."""
    node = a_mig_node(("3g.20gb",), None)
    assert offered(node, "mixed", sharing=memory()) == {"aliyun.com/gpu-mem": ["1"], "nvidia.com/mig-3g.20gb": ["0:0"]}
    decided = planned(node, flags={"migStrategy": "mixed"}, sharing=memory())
    assert "GPU 0 is in MIG mode and cannot be shared by memory; usable: 1" in decided.notices
    assert not planned(node, flags={"migStrategy": "mixed"}).notices
    assert not planned(node, flags={"migStrategy": "mixed"}, sharing=memory(devices=[1])).notices


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (
            [0],
            (
                "GPU 0 is in MIG mode and cannot be shared by memory; usable: 1. Name other GPUs in devices, or "
                "disable MIG mode on it"
            ),
        ),
        (
            ["0:0"],
            (
                "GPU 0:0 is a MIG instance and cannot be shared by memory; usable: 1. Name GPUs in devices, and share "
                "MIG instances with sharing.timeSlicing"
            ),
        ),
        (
            2,
            (
                "2 GPUs requested, but this node has 1 to choose from; GPU 0 is in MIG mode and cannot be shared by "
                "memory"
            ),
        ),
    ],
    ids=["card", "instance", "count"],
)
def test_memory_of_a_card_in_mig_mode_is_refused_with_mig_as_the_reason(devices: object, message: str) -> None:
    """Who names such a card or instance is told that it is MIG that does not suit, what does, and what to do."""
    node = a_mig_node(("3g.20gb",), None)
    (problem,) = planned(node, flags={"migStrategy": "mixed"}, sharing=memory(devices=devices)).problems
    assert problem.message == message


def test_the_message_says_none_if_every_card_is_in_mig_mode() -> None:
    """Where every card is in MIG mode, the message says that none is left."""
    (problem,) = planned(a_mig_node(("3g.20gb",)), sharing=memory(devices=[0])).problems
    assert "GPU 0 is in MIG mode and cannot be shared by memory; usable: none." in problem.message


@pytest.mark.parametrize(
    ("name", "usable"), [("nvidia.com/gpu", "1"), ("nvidia.com/mig-3g.20gb", "0:0")], ids=["card", "instances"]
)
def test_replicas_of_a_card_in_mig_mode_are_refused_with_mig_as_the_reason(name: str, usable: str) -> None:
    """Where its instances are offered, the card is not; the message says which devices the resource has."""
    sharing = time_slicing({"name": name, "devices": [0], "replicas": 2})
    node = a_mig_node(("3g.20gb",), None)
    (problem,) = planned(node, flags={"migStrategy": "mixed"}, sharing=sharing).problems
    assert problem.message == (
        f"GPU 0 is in MIG mode and cannot be shared as {name}; usable: {usable}. Name MIG instances in devices, such "
        'as "0:0", in an entry with the name of their resource'
    )


@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_instances_are_sliced_by_label_or_uuid(strategy: str) -> None:
    """Replicas of an instance are `MIG-…::<n>`; the instances that are not named stay whole."""
    node = a_mig_node(("1g.5gb",) * 3, ("1g.5gb",))
    name = {"single": "nvidia.com/gpu", "mixed": "nvidia.com/mig-1g.5gb"}[strategy]
    uuid = node.instances[3].uuid
    entry = {"name": name, "rename": "example.com/slice", "devices": ["0:1", uuid], "replicas": 2}
    decided = planned(node, flags={"migStrategy": strategy}, sharing=time_slicing(entry))
    sliced, whole = decided.resources
    assert decided.problems == ()
    assert (sliced.name, list(sliced.units)) == (
        "example.com/slice",
        [f"{node.instances[1].uuid}::0", f"{node.instances[1].uuid}::1", f"{uuid}::0", f"{uuid}::1"],
    )
    assert (whole.name, list(whole.units)) == (name, [node.instances[0].uuid, node.instances[2].uuid])


def test_a_device_that_no_instance_has_is_refused_with_those_there_are() -> None:
    """The message names the instances by label and UUID."""
    node = a_mig_node(("1g.5gb",) * 2)
    sharing = time_slicing({"name": "nvidia.com/mig-1g.5gb", "devices": ["0:2"], "replicas": 2})
    (problem,) = planned(node, flags={"migStrategy": "mixed"}, sharing=sharing).problems
    assert f"GPU 0:0 ({node.instances[0].uuid}), GPU 0:1 ({node.instances[1].uuid})" in problem.message


def test_units_have_the_numa_node_of_the_card() -> None:
    """Whole instances and their replicas alike."""
    node = a_mig_node(("1g.5gb",))
    node = replace(node, instances=tuple(replace(gpu, numa_node=1) for gpu in node.instances))
    flags = {"migStrategy": "mixed"}
    sharing = time_slicing({"name": "nvidia.com/mig-1g.5gb", "replicas": 2})
    for decided in (planned(node, flags=flags), planned(node, flags=flags, sharing=sharing)):
        assert {unit.numa_node for unit in only(decided).units.values()} == {1}


def test_several_instances_come_from_one_card_first() -> None:
    """A request for two fills the first card; a card's own instances are nobody's neighbours on another."""
    resource = only(planned(a_mig_node(("1g.5gb",) * 2, ("1g.5gb",) * 2), flags={"migStrategy": "single"}))
    chosen = resource.prefer(list(resource.units), [], 2)
    assert [resource.gpus[uuid].label for uuid in chosen] == ["0:0", "0:1"]


def test_replicas_spread_over_instances() -> None:
    """The least used instance comes first, as for cards."""
    sharing = time_slicing({"name": "nvidia.com/mig-1g.5gb", "replicas": 2})
    node = a_mig_node(("1g.5gb",) * 2)
    resource = only(planned(node, flags={"migStrategy": "mixed"}, sharing=sharing))
    free = [id_ for id_ in resource.units if id_ != f"{node.instances[0].uuid}::0"]
    assert resource.prefer(free, [], 1) == [f"{node.instances[1].uuid}::0"]


def test_an_unhealthy_instance_is_not_handed_out() -> None:
    """Its neighbours on the card are."""
    node = a_mig_node(("1g.5gb",) * 2)
    resource = replace(
        only(planned(node, flags={"migStrategy": "mixed"})), unhealthy={node.instances[0].uuid: "XID 79"}
    )
    assert resource.prefer(list(resource.units), [], 1) == [node.instances[1].uuid]
    with pytest.raises(PlacementError, match=node.instances[0].uuid):
        resource.allocate([node.instances[0].uuid])
