"""Tests of `gpushare_plugin.sharing.ways.replicas`."""

import pytest

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.core.resource import Resource
from tests.nodes import a_gpu, a_node
from tests.unit.sharing.settings import memory, only, planned, time_slicing, units_by_gpu

ENTRY = {"name": "nvidia.com/gpu", "replicas": 4}


def sliced(gpus: int, *, policy: str = "distributed", **options: object) -> Resource:
    """Return the time-sliced resource of a node with so many GPUs, four replicas each."""
    flags = {"plugin": {"sharedDevicesAllocationPolicy": policy}}
    return only(planned(a_node(*[40960] * gpus), sharing=time_slicing(ENTRY, **options), flags=flags))


def without(resource: Resource, used: dict[int, int]) -> list[str]:
    """Return the free IDs when so many replicas of each GPU, by index, are in use."""
    left = dict(used)
    free = []
    for unit in resource.units.values():
        index = resource.gpus[unit.gpu].index
        if left.get(index, 0):
            left[index] -= 1
        else:
            free.append(unit.id)
    return free


def test_every_gpu_is_advertised_as_often_as_it_has_replicas() -> None:
    """Replica IDs are the GPU's UUID and a number, as NVIDIA's plugin makes them."""
    uuid = a_gpu(0).uuid
    assert list(sliced(1).units) == [f"{uuid}::{number}" for number in range(4)]


@pytest.mark.parametrize(("policy", "expected"), [("distributed", {1: 1}), ("packed", {0: 1}), ("spread", {1: 1})])
def test_a_single_replica_goes_where_the_policy_says(policy: str, expected: dict[int, int]) -> None:
    """Distributed and spread take the least used GPU, packed the most used one."""
    resource = sliced(2, policy=policy)
    assert units_by_gpu(resource, resource.prefer(without(resource, {0: 2}), [], 1)) == expected


@pytest.mark.parametrize(("gpus", "replicas", "enough"), [(8, 2125, 14), (4, 276, 28), (16, 69, 7)])
def test_replicas_that_no_pods_can_use_are_noticed(gpus: int, replicas: int, enough: int) -> None:
    """The notice has number and bound, and a number that is enough, of which nothing is said; nothing is refused."""

    def said(replicas: int) -> tuple[str, ...]:
        plan = planned(a_node(*[40960] * gpus), sharing=time_slicing({**ENTRY, "replicas": replicas}))
        assert not plan.problems
        return plan.notices

    (notice,) = said(replicas)
    assert f"nvidia.com/gpu has {gpus * replicas:,} replicas on this node, more than its pods can use" in notice
    assert "a kubelet runs 110 pods unless its maxPods says otherwise" in notice
    assert f"set fewer replicas, such as {enough} for each GPU" in notice
    assert gpus * enough >= 110
    assert said(enough) == said(1100 // gpus) == ()


def test_units_of_which_a_pod_requests_many_are_not_noticed() -> None:
    """Memory in MiB has more units than any node has pods, and they are used."""
    assert planned(a_node(40960), sharing=memory(name="nvidia.com/gpumem", unit="1MiB")).notices == ()


@pytest.mark.parametrize(
    ("policy", "expected"), [("distributed", {1: 2, 2: 1}), ("packed", {0: 2, 1: 1}), ("spread", {0: 1, 1: 1, 2: 1})]
)
def test_several_replicas_come_from_the_gpus_of_the_policy(policy: str, expected: dict[int, int]) -> None:
    """Only `spread` gives a container as many GPUs as it can."""
    resource = sliced(3, policy=policy)
    assert units_by_gpu(resource, resource.prefer(without(resource, {0: 2}), [], 3)) == expected


def test_the_gpu_of_an_included_replica_counts_as_used() -> None:
    """A GPU the container already has a replica of is used by it."""
    resource = sliced(2)
    first = next(iter(resource.units))
    chosen = resource.prefer(list(resource.units), [first], 2)
    assert chosen[0] == first
    assert units_by_gpu(resource, chosen) == {0: 1, 1: 1}


def test_too_few_replicas_are_refused() -> None:
    """The error says how many were asked for and how many are left."""
    resource = sliced(1)
    with pytest.raises(PlacementError, match="5 replicas requested, 4 free"):
        resource.prefer(list(resource.units), [], 5)


def test_a_container_sees_each_gpu_once() -> None:
    """Several replicas of one GPU make it visible once; no memory limit is promised."""
    resource = sliced(2)
    environment = resource.allocate(list(resource.units)).environment
    assert environment == {"NVIDIA_VISIBLE_DEVICES": f"{a_gpu(0).uuid},{a_gpu(1).uuid}"}


def test_requests_for_more_than_one_fail_where_that_is_set() -> None:
    """FailRequestsGreaterThanOne refuses two replicas, even of two GPUs, and allows one."""
    resource = sliced(2, failRequestsGreaterThanOne=True)
    ids = list(resource.units)
    with pytest.raises(PlacementError, match="failRequestsGreaterThanOne"):
        resource.allocate([ids[0], ids[-1]])
    assert resource.allocate(ids[:1]).environment


def test_free_replicas_are_taken_lowest_number_first() -> None:
    """Lists of them stay readable."""
    resource = sliced(1)
    ids = list(resource.units)
    assert resource.prefer(ids[1:], [], 2) == ids[1:3]
