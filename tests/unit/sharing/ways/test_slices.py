"""Tests of `gpushare_plugin.sharing.ways.slices`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.resource import Resource
from tests.nodes import a_gpu, a_node
from tests.unit.sharing.settings import planned


def sliced(*slices: tuple[str, int], **entry: object) -> dict[str, object]:
    """Return a `sharing` section that cuts GPUs into so many slices of each size."""
    return {"mps": {"sizes": [{"slices": [{"size": size, "count": count} for size, count in slices], **entry}]}}


def resources(inventory: Inventory, sharing: dict[str, object]) -> dict[str, Resource]:
    """Return the resources of a node without problems by name."""
    decided = planned(inventory, sharing=sharing)
    assert decided.problems == ()
    return {resource.name: resource for resource in decided.resources}


def test_every_size_is_a_resource_of_its_own_on_every_gpu() -> None:
    """The names are those of nos; one GPU belongs to several resources."""
    found = resources(a_node(40960, 40960), sliced(("10gb", 2), ("20gb", 1)))
    assert {name: len(resource.units) for name, resource in found.items()} == {
        "nvidia.com/gpu-10gb": 4,
        "nvidia.com/gpu-20gb": 2,
    }
    assert all(len(resource.gpus) == 2 for resource in found.values())


def test_ids_say_gpu_and_size_and_are_unique_on_the_node() -> None:
    """An ID that a pod still holds never means another slice, whatever the settings become."""
    found = resources(a_node(40960, 40960), sliced(("10gb", 2), ("20gb", 1)))
    ids = [id_ for resource in found.values() for id_ in resource.units]
    assert ids == [
        *("00000000-10gb-0", "00000000-10gb-1", "00000001-10gb-0", "00000001-10gb-1"),
        *("00000000-20gb-0", "00000001-20gb-0"),
    ]


def test_two_halves_fit_a_card_whose_usable_memory_is_a_little_less() -> None:
    """An A100 of 40 GB has less than 40 GiB to use; two slices of 20gb are its two halves, as users expect."""
    (resource,) = resources(a_node(40326), sliced(("20gb", 2))).values()
    assert [unit.mib for unit in resource.units.values()] == [20163, 20163]


def test_entries_can_cut_gpus_differently_into_the_same_size() -> None:
    """Slices of one size are one resource, wherever they come from."""
    sizes = [
        {"devices": [0], "slices": [{"size": "10gb", "count": 4}]},
        {"devices": [1], "slices": [{"size": "10gb"}, {"size": "30gb"}]},
    ]
    found = resources(a_node(40960, 40960), {"mps": {"sizes": sizes}})
    assert {name: len(resource.units) for name, resource in found.items()} == {
        "nvidia.com/gpu-10gb": 5,
        "nvidia.com/gpu-30gb": 1,
    }


def test_a_slice_goes_to_the_fuller_gpu() -> None:
    """Whole GPUs stay free as long as they can; a slice kept from an init container is kept."""
    (resource,) = resources(a_node(40960, 40960), sliced(("10gb", 4))).values()
    free = [id_ for id_ in resource.units if id_ != "00000001-10gb-0"]
    assert resource.prefer(free, [], 1) == ["00000001-10gb-1"]
    assert resource.prefer(free, ["00000000-10gb-3"], 1) == ["00000000-10gb-3"]


def test_a_container_gets_one_slice() -> None:
    """Slices are not joined: a larger request is for a larger size."""
    (resource,) = resources(a_node(40960), sliced(("10gb", 4))).values()
    for refused in (lambda ids: resource.prefer(ids, [], 2), lambda ids: resource.allocate(ids[:2])):
        with pytest.raises(PlacementError, match="request one larger slice"):
            refused(list(resource.units))


def test_a_request_without_a_free_slice_is_refused() -> None:
    """The message names the resource."""
    (resource,) = resources(a_node(40960), sliced(("10gb", 4))).values()
    with pytest.raises(PlacementError, match=r"nvidia\.com/gpu-10gb: 1 slice requested.*GPU 0 .*: XID 79"):
        replace(resource, unhealthy={a_gpu(0).uuid: "XID 79"}).prefer(list(resource.units), [], 1)


@given(st.integers(1025, 300_000), st.dictionaries(st.integers(1, 60), st.integers(1, 12), min_size=1, max_size=4))
def test_slices_beyond_the_nominal_memory_are_refused_and_no_others(mib: int, sizes: dict[int, int]) -> None:
    """Whatever adds up to the rounded-up memory fits, and its slices add up to no more than is usable."""
    decided = planned(a_node(mib), sharing=sliced(*((f"{size}gb", count) for size, count in sizes.items())))
    total, nominal = sum(size * count for size, count in sizes.items()), -(-mib // 1024)
    if total > nominal:
        (problem,) = decided.problems
        assert f"= {total}gb found" in problem.message
        assert f"{nominal}gb" in problem.message
    elif sum(sizes.values()) <= 48:
        assert decided.problems == ()
        assert sum(unit.mib for resource in decided.resources for unit in resource.units.values()) <= mib


@pytest.mark.parametrize(
    ("compute", "percentages"),
    [
        ("proportional", ["25", "50"]),
        ("equal", ["33", "33"]),
        (40, ["40", "40"]),
        ("unlimited", [None, None]),
    ],
)
def test_slices_have_the_part_of_the_compute_that_is_configured(compute: object, percentages: list[str | None]) -> None:
    """In proportion to the size, equal for all slices of a GPU as nos has it, a percentage, or all."""
    found = resources(a_node(40960), sliced(("10gb", 2), ("20gb", 1), compute=compute))
    granted = [resource.allocate(list(resource.units)[:1]).environment for resource in found.values()]
    assert [each.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") for each in granted] == percentages
    assert [each["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for each in granted] == ["0=10240M", "0=20480M"]


def test_every_gpu_has_the_compute_of_its_entry() -> None:
    """Slices of one size can have another part of the compute on another GPU."""
    sizes = [
        {"devices": [0], "slices": [{"size": "10gb", "count": 4}], "compute": "unlimited"},
        {"devices": [1], "slices": [{"size": "10gb", "count": 2}], "compute": "equal"},
    ]
    (resource,) = resources(a_node(40960, 40960), {"mps": {"sizes": sizes}}).values()
    granted = [resource.allocate([f"0000000{gpu}-10gb-0"]).environment for gpu in (0, 1)]
    assert [each.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") for each in granted] == [None, "50"]
