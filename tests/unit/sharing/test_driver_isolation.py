"""Tests of what containers get where NVIDIA's driver limits memory."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.grant import Grant, Recipient
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.sharing.plan import plan
from gpushare_plugin.sharing.transition import Offer, WantedOffer, advance
from tests.nodes import a_gpu, a_node
from tests.unit.sharing.holders import confirmed
from tests.unit.sharing.settings import GPU_MEM, memory, settings, time_slicing

SOFT, HARD = "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"
PROMISED = Recipient(promised=True)


def resource_of(inventory: Inventory, sharing: object, *, agent: bool = False, **sections: object) -> Resource:
    """Return the one resource of a node whose CDI devices have the hook."""
    config = settings(sharing=sharing, **sections)
    found = plan(EffectiveConfig(config), inventory, driver_limits=DriverLimits(agent=agent))
    assert found.problems == ()
    (resource,) = found.resources
    return resource


def limits(grant: Grant) -> tuple[str | None, str | None]:
    """Return both variables that the hook reads."""
    return grant.environment.get(SOFT), grant.environment.get(HARD)


@given(st.integers(2048, 300_000), st.integers(1, 300), st.integers(0, 2048))
def test_both_limits_are_whole_mib_within_the_gpu(mib: int, units: int, added: int) -> None:
    """The hook takes no sign, blank or suffix; the driver takes no limit above the memory of the GPU."""
    extra: dict[str, Any] = {"driverLimits": {"additionalMemory": f"{added}MiB"}} if added else {}
    resource = resource_of(a_node(mib), memory(isolation="driver"), **extra)
    held = list(resource.units)[:units]
    soft, hard = limits(resource.allocate(held))
    assert soft == "0"
    assert hard == str(min(len(held) * 1024 + added, mib))


def test_equal_shares_on_several_gpus_have_one_limit() -> None:
    """The hook gives each GPU of a container the same limit, which is right for equal shares."""
    resource = resource_of(a_node(8192, 8192), memory(isolation="driver"))
    assert resource.single_gpu is False
    ids = [next(iter(units)).id for units in resource.units.by_gpu.values()]
    assert limits(resource.allocate(ids, PROMISED)) == ("0", "1024")


def test_different_limits_on_several_gpus_are_left_to_the_agent() -> None:
    """Variables would give all GPUs one limit; without an agent, nothing could set two, so the container is refused."""
    node, sharing = a_node(40960, 16000), time_slicing({"name": "nvidia.com/gpu", "replicas": 4, "isolation": "driver"})
    ids = [f"{a_gpu(0).uuid}::0", f"{a_gpu(1).uuid}::0"]
    grant = resource_of(node, sharing, agent=True).allocate(ids)
    assert limits(grant) == (None, None)
    assert grant.environment["GPUSHARE_MEMORY_LIMIT_MIB"] == "10240,4000"
    with pytest.raises(PlacementError, match=r"on the 2 GPUs of this container differ \(4000 MiB, 10240 MiB\)"):
        resource_of(node, sharing).allocate(ids)


def test_with_mps_on_several_gpus_there_is_no_list_to_drop() -> None:
    """A process that sees fewer GPUs than a list names drops all limits of MPS; those of the driver hold without."""
    resource = resource_of(a_node(8192, 8192), memory(isolation="driver+mps"))
    assert resource.single_gpu is False
    ids = [next(iter(units)).id for units in resource.units.by_gpu.values()]
    both, one = resource.allocate(ids, PROMISED), resource.allocate(ids[:1])
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in both.environment
    assert limits(both) == ("0", "1024")
    assert one.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1024M"


def test_mps_does_not_take_back_what_the_driver_allows() -> None:
    """A limit of MPS counts each process: it is as high as the hard limit, added memory and burst included."""
    more: dict[str, Any] = {"driverLimits": {"additionalMemory": "512MiB"}}
    resource = resource_of(a_node(40960), memory(isolation="driver+mps", burst=2), agent=True, **more)
    environment = resource.allocate(list(resource.units)[:4]).environment
    assert (environment[SOFT], environment[HARD]) == ("4096", str(2 * (4096 + 512)))
    assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={2 * (4096 + 512)}M"
    replicas = {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4, "isolation": "driver"}]}}
    found = plan(EffectiveConfig(settings(sharing=replicas, **more)), a_node(40960), driver_limits=DriverLimits())
    assert [each.memory_limit_mib for each in found.mps.gpus.values()] == [10240 + 512]


BOTH = a_node(40960, 81920)
EVERYTHING = a_node(40960)


@pytest.mark.parametrize(
    ("node", "sharing", "added", "notice"),
    [
        (
            EVERYTHING,
            memory(isolation="driver"),
            "40GiB",
            "driverLimits.additionalMemory: 40GiB makes the limit of each container of ",
        ),
        (
            EVERYTHING,
            memory(isolation="driver"),
            "39GiB",
            " as large as GPU 0 (40960 MiB), so nothing is limited there; set less",
        ),
        (EVERYTHING, memory(isolation="driver"), "38GiB", None),
        (EVERYTHING, memory(isolation="driver", unit="512MiB"), "39GiB", None),
        (
            BOTH,
            memory(isolation="driver+mps", burst="60GiB"),
            None,
            "burst is 60GiB, which lets each container use all of GPU 0 (40960 MiB), so nothing is limited there;",
        ),
        (BOTH, memory(isolation="driver", burst="90GiB"), None, "GPU 0 (40960 MiB), GPU 1 (81920 MiB), so nothing"),
        (BOTH, memory(isolation="driver", burst="39GiB"), None, None),
        (BOTH, memory(isolation="driver", burst=39), None, None),
        (EVERYTHING, memory(isolation="driver", burst=40), None, "burst is 40, which lets each container use all of"),
        (EVERYTHING, memory(isolation="driver", burst="40GiB"), None, "burst is 40GiB, which lets each container use"),
        (
            EVERYTHING,
            time_slicing({"name": "nvidia.com/gpu", "replicas": 4, "isolation": "driver", "burst": 4}),
            None,
            "burst is 4, which lets each container use all of GPU 0 (40960 MiB)",
        ),
        (
            EVERYTHING,
            time_slicing({"name": "nvidia.com/gpu", "replicas": 4, "isolation": "driver", "burst": 3.9}),
            None,
            None,
        ),
        (EVERYTHING, memory(isolation="driver", burst="50GiB"), "40GiB", "driverLimits.additionalMemory: 40GiB"),
        (
            EVERYTHING,
            time_slicing({"name": "nvidia.com/gpu", "replicas": 2, "isolation": "driver"}),
            "20GiB",
            "driverLimits.additionalMemory: 20GiB makes",
        ),
        (EVERYTHING, memory(isolation="driver", unit="40GiB"), "1GiB", None),
        (EVERYTHING, memory(isolation=["none"]), "40GiB", None),
    ],
)
def test_limits_as_large_as_the_gpu_are_told(
    node: Inventory, sharing: object, added: str | None, notice: str | None
) -> None:
    """No limit is above the memory of the GPU, so one that would be limits nothing, which is rarely meant."""
    extra: dict[str, Any] = {"driverLimits": {"additionalMemory": added}} if added else {}
    config = settings(sharing=sharing, **extra)
    found = plan(EffectiveConfig(config), node, driver_limits=DriverLimits(agent=True))
    assert found.problems == ()
    told = [each for each in found.notices if "nothing is limited" in each]
    assert len(told) == (1 if notice else 0)
    assert all(notice in each for each in told if notice)


@pytest.mark.parametrize(
    ("burst", "more", "idle"),
    [
        (1.0000001, {}, True),
        (1.0001, {}, False),
        (1.5, {"unit": "MiB"}, False),
        ("1GiB", {}, True),
        ("2GiB", {}, False),
    ],
)
def test_a_burst_that_gives_nothing_is_told(burst: object, more: dict[str, object], *, idle: bool) -> None:
    """Such a burst still ties the GPU to the agent, which nobody means."""
    config = settings(sharing=memory(isolation="driver", burst=burst, **more))
    found = plan(EffectiveConfig(config), EVERYTHING, driver_limits=DriverLimits(agent=True))
    told = [each for each in found.notices if "gives no share of GPU 0 (40960 MiB) a MiB more" in each]
    assert bool(told) is idle
    assert all("set a larger burst, or leave burst out" in each for each in told)


def wanted(sharing: object, *, agent: bool = True, **sections: object) -> WantedOffer:
    """Return what a node of one GPU should list."""
    found = plan(
        EffectiveConfig(settings(sharing=sharing, **sections)), a_node(8192), driver_limits=DriverLimits(agent=agent)
    )
    return WantedOffer(found.resources, found.modes)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (memory(), memory(isolation="driver")),
        (memory(isolation="driver"), memory()),
        (memory(isolation="mps"), memory(isolation="driver+mps")),
        (memory(isolation="driver"), memory(isolation="driver+mps")),
        (memory(isolation="hami-core"), memory(isolation="driver")),
        (
            time_slicing({"name": "nvidia.com/gpu", "replicas": 4, "isolation": "driver"}),
            time_slicing({"name": "nvidia.com/gpu", "replicas": 2, "isolation": "driver"}),
        ),
    ],
)
def test_a_gpu_goes_to_and_from_driver_limits_when_nobody_holds_it(before: object, after: object) -> None:
    """Containers with and without limits, or with other parts, are never side by side on a GPU."""
    offer, _ = advance(Offer(), wanted(before), confirmed(at=0), 0)
    held = next(iter(offer.resources.values())).units.by_id.keys()
    one = next(iter(held))
    offer, waiting = advance(offer, wanted(after), confirmed(one, at=10), 5)
    assert [each.gpu for each in waiting] == [a_gpu(0).uuid]
    offer, waiting = advance(offer, wanted(after), confirmed(at=20), 15)
    assert waiting == ()


def test_another_rule_changes_no_share_and_waits_for_nobody() -> None:
    """More memory for contexts, or another burst, counts for containers that start later; the units stay."""
    sharing = memory(isolation="driver", burst=1.5)
    offer, _ = advance(Offer(), wanted(sharing), confirmed(at=0), 0)
    one = next(iter(offer.resources[GPU_MEM].units))
    after = wanted(memory(isolation="driver", burst=2), driverLimits={"additionalMemory": "512MiB"})
    offer, waiting = advance(offer, after, confirmed(one, at=10), 5)
    assert waiting == ()
    resource = offer.resources[GPU_MEM]
    assert (len(resource.units), resource.retired) == (8, {})
    assert limits(resource.allocate([one])) == ("1024", "3072")
