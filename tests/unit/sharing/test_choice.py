"""Tests of the choice of an isolation: the first in the order of the config that a node has, and why not the others."""

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.core.driver_limits import DriverLimits, LimitRule
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.sharing.plan import Plan, plan
from gpushare_plugin.sharing.snapshot import planned_snapshot
from tests.nodes import a_gpu, a_mig_node, a_node
from tests.unit.sharing.settings import memory, settings, time_slicing

NODE = a_node(40960)
FIRST = a_gpu(0).uuid
OLD = DriverLimits(missing="NVIDIA's driver 580.95.05 limits no memory, which the driver does from 615 on")
HOOK = DriverLimits()
UNHOOKED = DriverLimits(hook="no CDI device has the hook")
AGENT = replace(UNHOOKED, agent=True)
REPLICAS: dict[str, object] = {"name": "nvidia.com/gpu", "replicas": 4}
SIZES: dict[str, object] = {"slices": [{"size": "10gb"}]}


def decided(sharing: object, node: DriverLimits | None, inventory: Inventory = NODE) -> Plan:
    """Return what a node with these means to limit memory would do."""
    return plan(EffectiveConfig(settings(sharing=sharing)), inventory, driver_limits=node)


def problems(found: Plan) -> list[str]:
    """Return the problems with the last keys of their places."""
    return [f"{each.path[-1]}: {each.message}" for each in found.problems]


@pytest.mark.parametrize(
    ("node", "chosen", "reasons"),
    [
        (HOOK, "driver", ()),
        (AGENT, "driver", ()),
        (OLD, "mps", (f"driver: {OLD.missing}",)),
        (
            UNHOOKED,
            "mps",
            (f"driver: {UNHOOKED.why_not(LimitRule())}",),
        ),
        (None, "mps", ("driver: nobody looked at whether the driver of this node can limit memory",)),
    ],
)
def test_the_first_isolation_that_the_node_has_is_chosen(
    node: DriverLimits | None, chosen: str, reasons: tuple[str, ...]
) -> None:
    """The driver limits memory where it can and a hook or an agent sets limits; else the next in the list does."""
    found = decided(memory(isolation=["driver", "mps", "none"]), node)
    assert problems(found) == []
    assert found.isolations == {FIRST: chosen}
    assert found.isolation_reasons == {FIRST: reasons}


@pytest.mark.parametrize(
    ("entry", "node", "lost"),
    [
        ({"isolation": ["driver", "none"], "burst": 2}, OLD, ["burst"]),
        ({"isolation": ["driver", "none"], "burst": 2}, AGENT, []),
        ({"isolation": ["driver+mps", "none"], "burst": 2, "compute": 50}, OLD, ["burst", "compute"]),
        ({"isolation": ["driver+mps", "mps"], "burst": 2, "compute": 50}, OLD, ["burst"]),
        ({"isolation": ["driver+mps", "none"]}, OLD, []),
    ],
)
def test_keys_that_the_chosen_isolation_ignores_are_told(
    entry: dict[str, object], node: DriverLimits, lost: list[str]
) -> None:
    """A node without the first isolation of a list does not keep silent about what the entry asks for."""
    told = [each for each in decided(memory(**entry), node).notices if "has no effect on this node" in each]
    assert [each.split(": ")[1].split()[0] for each in told] == lost


def test_a_gpu_in_mig_mode_or_too_old_for_mps_passes_both_over() -> None:
    """The choice is one for all GPUs of an entry: where one cannot be limited, the next isolation counts for all."""
    inventory = Inventory((*a_node(40960).cards, a_gpu(1, 16000, compute_capability=(3, 0))))
    found = decided(memory(isolation=["driver+mps", "none"]), HOOK, inventory)
    assert set(found.isolations.values()) == {"none"}
    (reason,) = found.isolation_reasons[FIRST]
    assert reason.startswith("driver+mps: GPU 1 (GPU-00000001")
    assert "compute capability 3.0" in reason


def test_time_sliced_mig_instances_are_shared_without_driver_limits() -> None:
    """The driver limits no MIG instance; a list that ends with none shares the instances all the same."""
    flags = {"migStrategy": "mixed"}
    entry = {"name": "nvidia.com/mig-1g.5gb", "replicas": 2, "isolation": ["driver", "none"]}
    found = plan(
        EffectiveConfig(settings(flags=flags, sharing=time_slicing(entry))), a_mig_node(("1g.5gb",)), driver_limits=HOOK
    )
    assert problems(found) == []
    (name,) = found.isolations.values()
    (reasons,) = found.isolation_reasons.values()
    assert (name, len(reasons)) == ("none", 1)
    assert "is a MIG instance, and the driver limits the memory of whole GPUs only" in reasons[0]


def test_gpus_of_unknown_memory_are_time_sliced_where_the_list_ends_with_none() -> None:
    """No isolation divides memory of unknown size; without one, the GPU is still shared."""
    found = decided(time_slicing({**REPLICAS, "isolation": ["driver", "none"]}), HOOK, a_node(0))
    assert found.isolations == {FIRST: "none"}
    assert "does not report its memory" in found.isolation_reasons[FIRST][0]
    assert decided(time_slicing({**REPLICAS, "isolation": "driver"}), HOOK, a_node(0)).isolations == {}


def test_a_single_isolation_that_the_node_lacks_is_a_problem_of_the_config() -> None:
    """No pod is promised a limit that nothing enforces; the message has the reason and a remedy."""
    (found,) = problems(decided(memory(isolation="driver"), OLD))
    assert found == (
        f"isolation: found driver, but {OLD.missing}; mend that, or let other isolations follow for such nodes, "
        "as in [driver, none]"
    )


@pytest.mark.parametrize(
    ("sharing", "written"),
    [
        (memory(isolation="driver+mps"), "driver+mps"),
        ({"mps": {"resources": [{**REPLICAS, "isolation": "driver"}]}}, "driver"),
    ],
)
def test_the_remedy_with_mps_is_a_list_that_the_config_accepts(sharing: object, written: str) -> None:
    """`sharing.mps` has no `none`: there, and beside MPS, the example of a list ends with mps.

    What was found is what people wrote.
    """
    (found,) = problems(decided(sharing, OLD))
    assert found.startswith(f"isolation: found {written}, but {OLD.missing}; mend that, or ")
    assert found.endswith("as in [driver+mps, mps]")


def test_a_list_without_any_isolation_of_the_node_is_a_problem_with_every_reason() -> None:
    """Each reason is in the message, in the order of the list."""
    (found,) = problems(decided(memory(isolation=["driver", "mps"]), OLD, a_node(16000, compute_capability=(3, 0))))
    assert found.startswith("isolation: found driver, mps, of which this node has none for the GPUs of ")
    driver, mps = found.index(OLD.missing), found.index("compute capability 3.0")
    assert driver < mps


def test_a_single_isolation_by_mps_is_refused_in_the_words_of_today() -> None:
    """The problem stands at `devices`, for each GPU that MPS cannot share."""
    (found,) = problems(decided(memory(isolation="mps"), HOOK, a_node(16000, compute_capability=(3, 0))))
    assert found.startswith("devices: GPU 0 (")


@pytest.mark.parametrize("isolation", ["driver", "driver+mps", ["driver", "driver+mps"]])
@pytest.mark.parametrize("section", ["resources", "sizes"])
def test_under_mps_the_driver_limits_beside_mps(section: str, isolation: object) -> None:
    """In `sharing.mps`, `driver` means both: a container gets the variables of MPS and of the hook."""
    entry = {"resources": REPLICAS, "sizes": SIZES}[section]
    found = decided({"mps": {section: [{**entry, "isolation": isolation}]}}, HOOK)
    assert problems(found) == []
    assert found.isolations == {FIRST: "driver+mps"}
    assert found.mps.gpus.keys() == {FIRST}
    (resource,) = found.resources
    environment = resource.allocate([next(iter(resource.units))]).environment
    assert {"CUDA_MPS_PIPE_DIRECTORY", "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"} <= environment.keys()


def test_a_node_that_can_have_no_driver_limits_falls_back_to_mps_alone() -> None:
    """The list of an entry under MPS ends with MPS."""
    found = decided({"mps": {"resources": [{**REPLICAS, "isolation": ["driver", "mps"]}]}}, OLD)
    assert (found.isolations, found.isolation_reasons) == ({FIRST: "mps"}, {FIRST: (f"driver+mps: {OLD.missing}",)})


@pytest.mark.parametrize(
    ("listed", "driver", "chosen"),
    [
        (["mps", "none"], "580.95.05", "none"),
        (["mps", "none"], "615.71.09", "mps"),
        (["mps", "none"], "", "mps"),
        (["mps", "hami-core"], "580.95.05", "hami-core"),
        (["driver+mps", "mps", "none"], "580.95.05", "none"),
    ],
)
def test_mps_is_passed_over_where_the_driver_lacks_its_protocol(listed: list[str], driver: str, chosen: str) -> None:
    """With `mpsProtocol: 3`, a list goes on after `mps` on a node with a driver before 615, and the reason says why."""
    config, node = (
        settings(sharing=memory(isolation=listed), flags={"mpsProtocol": 3}),
        replace(NODE, driver_version=driver),
    )
    found = plan(EffectiveConfig(config), node, driver_limits=OLD)
    assert problems(found) == []
    assert found.isolations == {FIRST: chosen}
    reason = f"mps: this node has driver {driver}, and MPS has protocol 3 from driver 615 on"
    assert (reason in found.isolation_reasons[FIRST]) is (chosen != "mps")
    assert planned_snapshot(config, node, found).needs_mps is (chosen == "mps")


@pytest.mark.parametrize(("node", "needed"), [(HOOK, False), (OLD, True)])
def test_mps_is_needed_only_where_it_is_chosen(node: DriverLimits, needed: bool) -> None:  # noqa: FBT001 - a case
    """`gpushare mps` runs on the nodes where an entry shares through it, also while no GPU answers."""
    config = settings(sharing=memory(isolation=["driver", "mps"]))
    found = plan(EffectiveConfig(config), NODE, driver_limits=node)
    assert planned_snapshot(config, NODE, found).needs_mps is needed


def test_a_snapshot_has_the_rules_of_gpus_with_driver_limits_only() -> None:
    """What the config adds to each share, and how far shares may burst, is in the rule of the GPU."""
    config = settings(
        driverLimits={"additionalMemory": "512MiB"},
        sharing={
            "memory": {
                "resources": [
                    {"name": "a.io/a", "devices": [0], "isolation": "driver", "burst": 1.5},
                    {"name": "a.io/b", "devices": [1], "isolation": "driver+mps", "burst": "20GiB"},
                    {"name": "a.io/c", "devices": [2], "isolation": "mps"},
                ]
            }
        },
    )
    inventory = a_node(40960, 40960, 40960)
    found = plan(EffectiveConfig(config), inventory, driver_limits=AGENT)
    rules = planned_snapshot(config, inventory, found).driver_limits
    assert rules == {
        a_gpu(0).uuid: LimitRule(512, burst=rules[a_gpu(0).uuid].burst),
        a_gpu(1).uuid: LimitRule(512, burst_mib=20480),
    }
    assert rules[a_gpu(0).uuid].burst == 1.5


def test_burst_needs_the_agent() -> None:
    """Only the agent removes the guaranteed part of a container that has ended, so the hook alone is not enough."""
    (found,) = problems(decided(memory(isolation="driver", burst=1.5), HOOK))
    assert "burst needs the agent of driver limits, and no agent sets limits here (start " in found
    assert "cluster.followPods); do so, or let other isolations follow" in found
    fallen = decided(memory(isolation=["driver", "none"], burst=1.5), HOOK)
    assert fallen.isolations == {FIRST: "none"}
    assert decided(memory(isolation="driver", burst=1.5), AGENT).isolations == {FIRST: "driver"}
