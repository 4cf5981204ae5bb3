"""Tests of `gpushare_plugin.claims.devices` and `capacities`."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.device import Capacity, SemanticVersion
from gpushare_plugin.claims.devices import device_name, node_devices
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.testing.claims import AllocationError
from tests.nodes import a_gpu, a_mig_node, a_node
from tests.unit.claims.node import FOUR, GIB, ClaimNode, request
from tests.unit.sharing.settings import memory, time_slicing

ENTRY = {"name": "nvidia.com/gpu", "replicas": 4}
IN_STEPS = Capacity(100, "number", 0, 0, 1)
CLIENTS = Capacity(48, "number", 1, 1, 1)
VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")

WAYS = {
    "memory": memory(),
    "memory under mps": memory(isolation="mps", unit="2GiB", compute="requested"),
    "memory, hami-core": memory(isolation="hami-core", compute=30),
    "large unit": memory(unit="40GiB"),
    "time slicing": time_slicing(ENTRY),
    "time slicing, hami-core": time_slicing({**ENTRY, "isolation": "hami-core"}),
    "mps replicas": {"mps": {"resources": [ENTRY]}},
    "slices": {"mps": {"sizes": [{"slices": [{"size": "20gb"}, {"size": "10gb", "count": 2}]}]}},
    "whole": {},
}


def test_memory_goes_in_units_and_all_of_it_where_nobody_asks() -> None:
    """Without an isolation, memory alone counts."""
    assert ClaimNode(sharing=memory(unit="2GiB")).device().capacities == {
        "memory": Capacity(40 * GIB, "bytes", 40 * GIB, 2 * GIB, 2 * GIB)
    }


@pytest.mark.parametrize(("default", "gib"), [("1MiB", 2), ("7GiB", 8), ("8GiB", 8), ("40GiB", 40), ("1024GiB", 40)])
def test_the_default_of_the_config_is_rounded_up_to_units(default: str, gib: int) -> None:
    """No GPU gives more than all of its memory; a default that is larger is told."""
    node = ClaimNode(sharing=memory(unit="2GiB"), dra={"default": default})
    assert node.device().capacities["memory"].default == gib * GIB
    told = (
        "dra.default is 1048576 MiB, and GPU 0, 1, 2, 3 has 40960 MiB at most: a claim without a size gets all memory"
    )
    assert [notice.startswith(told) for notice in node.listed.notices] == ([True] if default == "1024GiB" else [])


def test_a_unit_as_large_as_the_gpu_is_the_only_size() -> None:
    """The API server refuses steps that have no room."""
    node = ClaimNode(sharing=memory(unit="40GiB"))
    assert node.device().capacities["memory"] == Capacity(40 * GIB, "bytes", 40 * GIB, values=(40 * GIB,))
    assert node.objections == []


def test_under_mps_compute_can_be_asked_and_clients_count() -> None:
    """Compute that nobody asks for is 0, which leaves room for whoever asks."""
    capacities = ClaimNode(sharing=memory(isolation="mps")).device().capacities
    assert capacities == {
        "memory": Capacity(40 * GIB, "bytes", 40 * GIB, GIB, GIB),
        "compute": IN_STEPS,
        "shares": CLIENTS,
    }


def test_time_sliced_gpus_have_shares_and_memory_that_nobody_has_to_ask_for() -> None:
    """A claim takes one share and no memory."""
    assert ClaimNode(sharing=time_slicing(ENTRY)).device().capacities == {
        "memory": Capacity(40 * GIB, "bytes", 0, 0, MIB),
        "shares": Capacity(4, "number", 1, 1, 1),
    }


def test_replicas_that_are_limited_have_their_part_of_the_memory() -> None:
    """No claim can ask for another size, because no replica has another limit."""
    part = Capacity(40 * GIB, "bytes", 10 * GIB, values=(10 * GIB,))
    limited = ClaimNode(sharing=WAYS["time slicing, hami-core"]).device().capacities
    assert limited == {"memory": part, "shares": Capacity(4, "number", 1, 1, 1)}
    under_mps = ClaimNode(sharing=WAYS["mps replicas"]).device().capacities
    compute = Capacity(100, "number", 25, values=(25,))
    assert under_mps == {"memory": part, "compute": compute, "shares": Capacity(4, "number", 1, values=(1,))}


def test_slices_have_their_sizes_only_and_the_smallest_by_default() -> None:
    """Sizes are nominal, as the config names them."""
    node = ClaimNode(a_node(40448), sharing=WAYS["slices"])
    sizes = Capacity(40 * GIB, "bytes", 10 * GIB, values=(10 * GIB, 20 * GIB))
    assert node.device().capacities == {"memory": sizes, "shares": CLIENTS}


def test_more_sizes_than_a_capacity_can_name_are_left_out_and_told() -> None:
    """The ten smallest are offered."""
    slices = [{"size": f"{size}gb"} for size in range(1, 12)]
    node = ClaimNode(a_node(80 * 1024), sharing={"mps": {"sizes": [{"slices": slices}]}})
    assert node.device().capacities["memory"].values[-1] == 10 * GIB
    assert "nvidia.com/gpu-11gb" in node.listed.notices[0]
    assert node.objections == []


def test_whole_gpus_and_instances_have_what_claims_select_by() -> None:
    """An exclusive device has no rules; a MIG instance has its part of the card, in NVIDIA's names."""
    node = ClaimNode(a_mig_node(("1g.5gb",), None), flags={"migStrategy": "mixed"})
    instance, card = node.devices
    assert not instance.shared
    assert card.capacities == {"memory": Capacity(40 * GIB, "bytes")}
    assert instance.capacities["multiprocessors"] == Capacity(14)
    assert instance.attributes["type"] == "mig"
    assert instance.attributes["profile"] == "1g.5gb"
    assert instance.attributes["parentUUID"] == a_gpu(0).uuid
    assert card.attributes.keys() == instance.attributes.keys()


def test_gpus_with_unknown_roots_are_no_neighbours() -> None:
    """`matchAttribute` takes GPUs of one root complex; of a GPU whose root is unknown, nobody can say that."""
    first, second, *others = FOUR.cards
    apart = replace(FOUR, cards=(first, second, *(replace(each, pci_root="pci0000:00") for each in others)))
    node = ClaimNode(apart)
    near = [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]
    claim = node.allocate(request(count=2), constraints=near)
    assert {each.device for each in claim.devices} == {a_gpu(2).uuid.lower(), a_gpu(3).uuid.lower()}
    with pytest.raises(AllocationError):
        node.allocate(request(count=2), constraints=near)


def test_attributes_have_the_names_of_nvidia() -> None:
    """Selectors of NVIDIA's driver work with another domain."""
    node = ClaimNode(replace(FOUR, driver_version="535.161.08", cuda_version=(12, 4)), sharing=memory(isolation="mps"))
    assert node.device(1).attributes == {
        "type": "gpu",
        "uuid": a_gpu(1).uuid,
        "parentUUID": a_gpu(1).uuid,
        "profile": "",
        "productName": "NVIDIA A100-SXM4-40GB",
        "brand": "Unknown",
        "architecture": "Ampere",
        "cudaComputeCapability": SemanticVersion("8.0.0"),
        "driverVersion": SemanticVersion("535.161.8"),
        "cudaDriverVersion": SemanticVersion("12.4.0"),
        "resource.kubernetes.io/pciBusID": "0000:02:00.0",
        "way": "memory",
        "isolation": "mps",
    }


@pytest.mark.parametrize("sharing", WAYS.values(), ids=WAYS.keys())
def test_the_api_server_takes_every_way(sharing: dict[str, object]) -> None:
    """Whatever shares the GPUs, the ResourceSlice passes validation."""
    assert ClaimNode(sharing=sharing).objections == []


def test_a_uuid_of_an_old_driver_becomes_a_dns_label() -> None:
    """Old drivers name MIG instances with slashes."""
    uuid = "MIG-GPU-b1028956-cfa2-0990-bf4a-5da9abb51763/1/0"
    assert device_name(uuid) == "mig-gpu-b1028956-cfa2-0990-bf4a-5da9abb51763-1-0"


@given(
    sharing=st.sampled_from([*WAYS.values()]),
    mib=st.integers(1, 200_000),
    name=st.text(max_size=80),
    driver=st.one_of(st.text(max_size=80), st.from_regex(r"\d{3}\.\d{2,3}\.\d{2}", fullmatch=True)),
    capability=st.one_of(st.none(), st.tuples(st.integers(0, 99), st.integers(0, 9))),
    pci=st.text(max_size=80),
    default=st.integers(1, 300_000),
)
def test_whatever_a_driver_says_the_api_server_takes(  # noqa: PLR0913, PLR0917 - what a driver says
    sharing: dict[str, object],
    mib: int,
    name: str,
    driver: str,
    capability: tuple[int, int] | None,
    pci: str,
    default: int,
) -> None:
    """A config without problems makes devices that pass validation, all with the same attributes."""
    cards = tuple(
        a_gpu(index, size, name=name, compute_capability=capability, pci_bus_id=pci)
        for index, size in enumerate((mib, 40960))
    )
    try:
        node = ClaimNode(Inventory(cards, driver_version=driver), sharing=sharing, dra={"default": f"{default}MiB"})
    except AssertionError:
        return  # the plan has problems, for example with MPS on an unknown compute capability
    assert node.objections == []
    assert len({frozenset(each.attributes) for each in node.devices}) == 1
    for device in node.devices:
        versions = [each for each in device.attributes.values() if isinstance(each, SemanticVersion)]
        assert all(VERSION.fullmatch(each.text) for each in versions)


# ---------------------------------------------------------------------- the order


def indices(node: ClaimNode) -> list[int]:
    """Return the indices of the GPUs in the order of the devices."""
    return [node.by_claim[each.gpu].gpu.index for each in node.devices]


def test_binpack_keeps_the_order_of_the_node() -> None:
    """The first fit fills a GPU before the next, and nothing is written when claims come and go."""
    node = ClaimNode(sharing=memory())
    for _ in range(6):
        node.allocate("10Gi")
        assert indices(node) == [0, 1, 2, 3]


def test_without_spread_nobody_looks_at_claims() -> None:
    """However many claims there are, a further claim brings no work for them."""
    node = ClaimNode(sharing=memory(placement="binpack"))
    taken = iter([node.allocate("8Gi").devices[0]])
    assert node_devices(node.by_claim, node.inventory, taken).devices
    assert len([*taken]) == 1


def test_spread_puts_the_emptiest_first() -> None:
    """Claims go from GPU to GPU, and come back to a GPU that is free again."""
    node = ClaimNode(sharing=memory(placement="spread"))
    claims = [node.allocate("8Gi", name=f"claim-{number}") for number in range(4)]
    assert len({claim.devices[0].device for claim in claims}) == 4
    del node.claims["claim-2"]
    assert indices(node) == [2, 0, 1, 3]


def test_small_claims_do_not_change_the_order() -> None:
    """What claims have counts in tenths of a GPU: a bound on how often a ResourceSlice is written."""
    node = ClaimNode(sharing=memory(placement="spread"))
    node.allocate("1Gi")
    assert indices(node) == [0, 1, 2, 3]
    node.allocate("3Gi")
    assert indices(node) == [1, 2, 3, 0]


def test_access_for_administration_does_not_fill_a_gpu() -> None:
    """The order stays."""
    node = ClaimNode(sharing=memory(placement="spread"))
    node.allocate(request(adminAccess=True))
    assert indices(node) == [0, 1, 2, 3]


def test_a_request_for_memory_gets_a_share_before_a_whole_gpu() -> None:
    """On a whole GPU, a request is only a filter: the claim would get all of the GPU."""
    node = ClaimNode(sharing=memory(devices=[2, 3]))
    assert indices(node) == [2, 3, 0, 1]
    assert node.allocate("5Gi").devices[0].share_id is not None


def test_of_whole_gpus_the_smallest_comes_first() -> None:
    """Large GPUs stay free for claims that need one."""
    assert indices(ClaimNode(a_node(40960, 81920, 16384))) == [2, 0, 1]


def test_gpus_that_are_shared_alike_stay_together() -> None:
    """Two entries with different policies each have an order of their own."""
    sharing = {
        "memory": {
            "resources": [
                {"name": "aliyun.com/gpu-mem", "devices": [0, 2], "placement": "spread"},
                {"name": "example.com/gpu-mem", "devices": [1, 3]},
            ]
        }
    }
    node = ClaimNode(sharing=sharing)
    assert indices(node) == [0, 2, 1, 3]
    node.allocate("20Gi")
    assert indices(node) == [2, 0, 1, 3]


def test_the_allocator_rounds_as_the_capacities_say() -> None:
    """A claim takes whole units, at least one; more than there is fits nowhere."""
    node = ClaimNode(a_node(40960), sharing=memory(unit="2GiB"))
    assert node.allocate("1Gi").devices[0].consumed["memory"] == 2 * GIB
    assert node.allocate("3Gi").devices[0].consumed["memory"] == 4 * GIB
    with pytest.raises(AllocationError):
        node.allocate("35Gi")
