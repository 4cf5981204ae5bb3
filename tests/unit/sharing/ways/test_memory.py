"""Tests of `gpushare_plugin.sharing.ways.memory`."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.errors import PlacementError, RequestError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import MOST_MEMORY_MIB
from gpushare_plugin.core.grant import Recipient
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.core.unit import KUBELET_MESSAGE_LIMIT, short_uuids
from gpushare_plugin.sharing.ways.memory import list_size, smallest_unit
from tests.nodes import a_node
from tests.unit.sharing.settings import GPU_MEM, memory, only, planned, units_by_gpu


def shared(*memory_gib: int, **entry: object) -> Resource:
    """Return the memory resource of a node with GPUs of these sizes."""
    return only(planned(a_node(*(size * 1024 for size in memory_gib)), sharing=memory(**entry)))


def on(resource: Resource, index: int) -> list[str]:
    """Return the IDs of all units of one GPU."""
    return [unit.id for unit in resource.units.values() if resource.gpus[unit.gpu].index == index]


def test_a_gpu_is_cut_into_whole_units_of_usable_memory() -> None:
    """Cards of different sizes have as many units as really fit, the remainder is not allocated."""
    resource = only(planned(a_node(40960, 15095), sharing=memory()))
    assert [len(on(resource, index)) for index in (0, 1)] == [40, 14]


@pytest.mark.parametrize(("placement", "expected"), [("binpack", 1), ("spread", 0)])
def test_a_request_goes_to_one_gpu_by_placement(placement: str, expected: int) -> None:
    """Binpack fills the fuller GPU, spread takes the emptier one; all units sit on it."""
    resource = shared(10, 8, placement=placement)
    chosen = resource.prefer(list(resource.units), [], 5)
    assert units_by_gpu(resource, chosen) == {expected: 5}


def test_units_that_must_be_included_decide_the_gpu() -> None:
    """Units taken over from an init container bind the request to their GPU, whatever the placement."""
    resource = shared(10, 8)
    kept = on(resource, 0)[3:5]
    chosen = resource.prefer(list(resource.units), kept, 6)
    assert units_by_gpu(resource, chosen) == {0: 6}
    assert set(kept) <= set(chosen)


def test_a_request_no_gpu_can_hold_is_refused_with_what_would_fit() -> None:
    """The error names the request, the free units of each GPU, and the largest request that fits."""
    resource = shared(10, 8)
    free = on(resource, 0)[:4] + on(resource, 1)[:6]
    with pytest.raises(PlacementError, match=r"7 units \(7168 MiB\)") as refusal:
        resource.prefer(free, [], 7)
    for fact in (r"GPU 0 \(GPU-00000000\S+\): 4", r"GPU 1 \(GPU-00000001\S+\): 6", "up to 6 units would fit", GPU_MEM):
        assert re.search(fact, str(refusal.value))


def test_a_request_bound_to_a_full_gpu_says_why() -> None:
    """When included units bind the request to a GPU that is too full, the error says so."""
    resource = shared(10, 10)
    free = on(resource, 0)[:3] + on(resource, 1)
    with pytest.raises(PlacementError, match="already on GPU 0"):
        resource.prefer(free, free[:1], 5)


def test_included_units_on_two_gpus_are_refused() -> None:
    """No choice can put memory of two cards into one container."""
    resource = shared(4, 4)
    with pytest.raises(PlacementError, match="2 GPUs"):
        resource.prefer(list(resource.units), [on(resource, 0)[0], on(resource, 1)[0]], 3)


def test_allocated_units_on_two_gpus_are_refused() -> None:
    """The kubelet fills in at random what was not preferred; a set that spans cards is never granted."""
    resource = shared(4, 4)
    with pytest.raises(PlacementError, match="2 GPUs"):
        resource.allocate([on(resource, 0)[0], on(resource, 1)[0]])


def test_a_container_learns_its_limits() -> None:
    """Seed 004's request, 5 units of 1 GiB: one card by UUID, Aliyun's variables in units, ours in MiB."""
    resource = shared(15, 40)
    environment = resource.allocate(on(resource, 1)[:5]).environment
    assert environment == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-00000001-0000-4000-8000-000000000001",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "5",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "5",
        "ALIYUN_COM_GPU_MEM_DEV": "40",
        "GPUSHARE_MEMORY_LIMIT_MIB": "5120",
        "GPUSHARE_GPU_MEMORY_MIB": "40960",
    }


@pytest.mark.parametrize(
    ("units", "container", "device"), [((3, 3), "3", "15"), ((2, 4), "2", "40"), ((4, 2), "2", "40")]
)
def test_aliyuns_variables_speak_of_one_of_several_gpus(units: tuple[int, int], container: str, device: str) -> None:
    """As in ACK. Where parts or GPUs differ, `_CONTAINER / _DEV` is more than the container's part of none of them."""
    resource = shared(15, 15 if units == (3, 3) else 40)
    ids = [*on(resource, 0)[: units[0]], *on(resource, 1)[: units[1]]]
    environment = resource.allocate(ids, Recipient(pod_units=6, promised=True)).environment
    assert environment["ALIYUN_COM_GPU_MEM_POD"] == "6"
    assert environment["ALIYUN_COM_GPU_MEM_CONTAINER"] == container
    assert environment["ALIYUN_COM_GPU_MEM_DEV"] == device


def test_units_of_an_unhealthy_gpu_are_not_handed_out() -> None:
    """They are neither preferred nor granted, even when the kubelet still thinks them free."""
    resource = shared(10, 10)
    resource = replace(resource, unhealthy={resource.units[on(resource, 0)[0]].gpu: "XID 79"})
    assert units_by_gpu(resource, resource.prefer(list(resource.units), [], 4)) == {1: 4}
    with pytest.raises(PlacementError, match=r"GPU 0 .* cannot be allocated: XID 79"):
        resource.allocate(on(resource, 0)[:2])


@pytest.mark.parametrize(
    ("available", "must", "size", "message"),
    [
        (["nonsense"], [], 1, "not units of this resource: 'nonsense'"),
        (["0"] * 5, [], 1, "not units of this resource"),
        ([], [], 0, "allocation size 0 found"),
        ([], [], -3, "allocation size -3 found"),
    ],
)
def test_senseless_preferences_are_refused(available: list[str], must: list[str], size: int, message: str) -> None:
    """Unknown IDs and sizes below one get an error that says what is wrong."""
    with pytest.raises(RequestError, match=message):
        shared(4).prefer(available, must, size)


def test_included_units_that_are_not_available_are_refused() -> None:
    """What must be included has to be among what is available, and no more than is asked for."""
    resource = shared(4)
    ids = on(resource, 0)
    with pytest.raises(RequestError, match="not among the available"):
        resource.prefer(ids[:2], ids[2:3], 2)
    with pytest.raises(RequestError, match="3 must-include units"):
        resource.prefer(ids, ids[:3], 2)


def test_senseless_allocations_are_refused() -> None:
    """Unknown, doubled and missing IDs get an error that says what is wrong; long lists are shortened in it."""
    resource = shared(4)
    first = on(resource, 0)[0]
    with pytest.raises(RequestError, match="more than once"):
        resource.allocate([first, first])
    with pytest.raises(RequestError, match="no device ID"):
        resource.allocate([])
    with pytest.raises(RequestError, match="and 9997 more") as refusal:
        resource.allocate([f"x{number}" for number in range(10_000)])
    assert len(str(refusal.value)) < 500


@given(st.lists(st.integers(1, 98_304), min_size=1, max_size=8))
def test_the_smallest_unit_fits_and_no_smaller_one_does(memory_mib: list[int]) -> None:
    """The unit named in an error is right: it fits the kubelet's limit, and none of fewer MiB does."""
    gpus = a_node(*memory_mib).cards
    short = short_uuids(gpu.uuid for gpu in gpus)
    unit = smallest_unit(gpus, short)
    assert list_size(gpus, short, unit) <= KUBELET_MESSAGE_LIMIT
    assert all(list_size(gpus, short, smaller) > KUBELET_MESSAGE_LIMIT for smaller in range(1, unit))


def test_the_smallest_unit_may_be_a_whole_gib_that_no_amount_near_it_can_follow() -> None:
    """An ID states GiB in fewer characters than MiB, so 1 GiB can fit where 1025 MiB does not."""
    gpus = a_node(*[MOST_MEMORY_MIB] * 7, 15_468_543).cards  # as much as fits in units of 1 GiB
    short = short_uuids(gpu.uuid for gpu in gpus)
    assert smallest_unit(gpus, short) == 1024
    assert list_size(gpus, short, 1025) > KUBELET_MESSAGE_LIMIT


def test_the_smallest_unit_for_absurd_amounts_is_found_at_once() -> None:
    """However much memory a card is said to have, finding the unit takes a number of steps, not of MiB."""
    gpus = a_node(2**44, 2**60).cards
    short = short_uuids(gpu.uuid for gpu in gpus)
    unit = smallest_unit(gpus, short)
    assert list_size(gpus, short, unit) <= KUBELET_MESSAGE_LIMIT < list_size(gpus, short, unit // 2)


@given(st.data())
def test_a_preference_is_always_usable(data: st.DataObject) -> None:
    """Whatever is free, included and asked for: a preferred set is granted as it is, and what fits is not refused."""
    resource = shared(3, 5, placement=data.draw(st.sampled_from(["binpack", "spread"])))
    free = data.draw(st.lists(st.sampled_from(sorted(resource.units)), unique=True))
    bound = data.draw(st.sampled_from([0, 1]))
    must = [id_ for id_ in free if id_ in on(resource, bound) and data.draw(st.booleans())]
    size = data.draw(st.integers(max(1, len(must)), 6))
    room = units_by_gpu(resource, free)
    fits = size <= (room[bound] if must else max(room.values(), default=0))
    try:
        chosen = resource.prefer(free, must, size)
    except PlacementError:
        assert not fits
        return
    assert fits
    assert len(chosen) == size == len(set(chosen))
    assert set(must) <= set(chosen) <= set(free)
    assert resource.allocate(chosen).environment["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(size)
