"""Tests of `gpushare_plugin.ledger.occupancy` and `node`: which annotation is believed, and how far."""

from dataclasses import replace

import pytest

from gpushare_plugin.base import structs
from gpushare_plugin.ledger.annotations import ACK_ALLOCATION, annotated_shares, write_allocation
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.node import GPU_CORES, GPU_MEMORY, OfferedGpu, plain_node, recorded_node
from gpushare_plugin.ledger.node_record import GpuRecord, NodeRecord, ResourceRecord
from gpushare_plugin.ledger.occupancy import Placed, node_account
from gpushare_plugin.ledger.pod import Share
from gpushare_plugin.ledger.request import ContainerRequest
from tests.unit.ledger.objects import (
    account,
    container,
    cores_node,
    free,
    gpu_record,
    kind_node,
    memory,
    memory_node,
    pod,
    request,
    uuid,
)

GPU = "nvidia.com/gpu"


def holding(made: ClusterAccount, resource: str = GPU_MEMORY) -> list[tuple[str, int, str]]:
    """Return where the pods of a node have units of a resource, and who says so."""
    return [(each.gpu, each.units, each.source) for each in made.account_of("node").resources[resource].holdings]


def test_the_allocation_of_the_daemon_is_believed_first() -> None:
    """The allocation has priority over the promise, the promise over indexes."""
    made = account(memory_node(10, 10, 10))
    both = structs.replace(
        pod(memory(4), "node", on=uuid(1)),
        promise=(Share("main", GPU_MEMORY, uuid(0), 4),),
        indexes=(Share("main", GPU_MEMORY, "2", 4),),
    )
    for each, expected in (
        (both, (uuid(1), 4, "allocation")),
        (structs.replace(both, allocation=None), (uuid(0), 4, "promise")),
        (structs.replace(both, allocation=None, promise=None), (uuid(2), 4, "indexes")),
    ):
        made.put_pod(each)
        assert holding(made) == [expected]


def test_units_that_nothing_places_count_against_every_gpu() -> None:
    """Such units are on one of the GPUs, so none can be sure to have them; of a pod on two GPUs, half is on any one."""
    made = account(memory_node(10, 10, 3), pods=(pod(memory(4), "node"),))
    assert free(made) == [6, 6, 0]
    assert made.account_of("node").resources[GPU_MEMORY].anywhere == 4
    made.put_pod(pod(memory(4, gpus="2"), "node"))
    assert free(made) == [8, 8, 1]
    assert made.account_of("node").resources[GPU_MEMORY].anywhere == 2


def test_the_promise_places_what_the_allocation_does_not_show() -> None:
    """pod-resources shows no init containers and no container that has not started."""
    asked = request(container("init", "init", gpu=2), container("main", gpu=1))
    main = Share("main", GPU, uuid(0), 1)
    promise = (Share("init", GPU, uuid(0), 1), Share("init", GPU, uuid(1), 1), main)
    made = account(kind_node(GPU, "gpus", 1, 1, 1))
    made.put_pod(structs.replace(pod(asked, "node"), allocation=(main,), promise=promise))
    assert free(made, resource=GPU) == [0, 0, 1]
    elsewhere = (main._replace(gpu=uuid(2)),)
    made.put_pod(structs.replace(pod(asked, "node"), allocation=elsewhere, promise=promise))
    assert free(made, resource=GPU) == [0, 0, 0]
    assert [each.units for each in made.account_of("node").resources[GPU].unplaced] == [1]


def test_all_memory_of_a_pod_is_on_the_same_gpus() -> None:
    """Memory that nothing places is where the rest of it is, also what an init container had."""
    asked = request(container("init", "init", memory=6), container("main", memory=4))
    shown = (Share("main", GPU_MEMORY, uuid(1), 4),)
    made = account(memory_node(10, 10), pods=(structs.replace(pod(asked, "node"), allocation=shown),))
    assert holding(made) == [(uuid(1), 6, "allocation")]


def test_a_gpu_that_is_not_offered_any_more_is_held() -> None:
    """The daemon may say that a pod has units of a GPU that left the resource; they count against no other GPU."""
    node = memory_node(10, 10)
    offer = node.offers[GPU_MEMORY]
    made = account(node, pods=(pod(memory(4), "node", on=uuid(1)),))
    made.put_node(structs.replace(node, offers={GPU_MEMORY: replace(offer, gpus=offer.gpus[:1])}))
    assert free(made) == [10]
    shrunk = made.account_of("node").resources[GPU_MEMORY]
    gone = OfferedGpu(uuid(1), -1, 0, reason="not offered any more")
    assert (shrunk.gpus, shrunk.over) == ((offer.gpus[0], gone), {uuid(0): 0, uuid(1): 4})
    made.put_node(structs.replace(node, offers={}))
    left = made.account_of("node").resources[GPU_MEMORY]
    assert (left.gpus, left.over) == ((gone,), {uuid(1): 4})
    assert left.by_gpu == {uuid(1): [Placed(made.account_of("node").pods[0], uuid(1), 4, "allocation")]}


def test_an_index_names_one_gpu_or_none() -> None:
    """MIG instances have the index of their card: then the index says nothing."""
    twins = NodeRecord(
        gpus=(gpu_record(0, 4, uuid="MIG-a"), gpu_record(0, 4, uuid="MIG-b")),
        resources=(ResourceRecord(name=GPU_MEMORY, kind="memory"),),
    )
    asked = pod(memory(2), "node", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"})
    assert free(account(recorded_node("node", twins), pods=(asked,))) == [2, 2]
    assert free(account(memory_node(4, 4), pods=(asked,))) == [2, 4]
    assert free(account(plain_node("node", 8, 2), pods=(asked,))) == [2, 4]


def test_a_plain_node_is_understood_as_by_aliyun() -> None:
    """The units of its capacity, divided by its GPUs; what makes no sense offers nothing."""
    node = plain_node("node", 31, 2, "spread", cordoned={"1": "cordoned"})
    made = account(node)
    assert (free(made), node.policy) == ([15, 0], "spread")
    assert made.place(memory(4), "node").containers["main"][GPU_MEMORY] == {"0": 4}
    for units, count in ((8, 0), (8, -1), (-8, 2), (8, 10**9)):
        assert plain_node("node", units, count).offers == {}


def test_an_unknown_policy_of_a_node_is_told() -> None:
    """The label is ignored, and remembered for people."""
    assert memory_node(8, policy="tetris").policy is None
    assert memory_node(8, policy="tetris").ignored == (
        "label ack.node.gpu.placement: 'tetris' found, binpack or spread or packing expected",
    )


def test_gpus_without_a_described_resource_are_known_and_not_offered() -> None:
    """GPUs without a resource, or in one that the record does not describe, are known and not offered."""
    record = NodeRecord(
        gpus=(
            gpu_record(0, 8),
            gpu_record(1, 8, resource="example.com/new"),
            GpuRecord(index=2, uuid="GPU-2", memory_mib=1),
        ),
        resources=(ResourceRecord(name=GPU_MEMORY, kind="memory", policy="spread"),),
    )
    node = recorded_node("node", record, allocatable={GPU_MEMORY: 7})
    assert [gpu.name for gpu in node.offers[GPU_MEMORY].gpus] == [uuid(0)]
    assert node.gpus == {uuid(0), uuid(1), "GPU-2"}
    assert node.allocatable == {GPU_MEMORY: 7}
    assert node.offers[GPU_MEMORY].unit_mib == 1024


def test_an_allocation_of_too_much_is_not_believed() -> None:
    """More than a container asks for, or units of a container that the pod does not have, cannot be its own."""
    asked = request(container("init", "init", memory=2), container("main", memory=2))
    for shares in (
        (Share("main", GPU_MEMORY, uuid(0), 3),),
        (Share("other", GPU_MEMORY, uuid(0), 2),),
        (Share("main", GPU_MEMORY, "GPU-unknown", 2),),
        (Share("init", GPU_MEMORY, uuid(0), 2), Share("main", GPU_MEMORY, uuid(1), 2)),
    ):
        texts = {"gpushare/allocation": write_allocation(shares)}
        assert annotated_shares(texts, asked, "node").allocation == shares
        assert free(account(memory_node(10, 10), pods=(pod(asked, "node", annotations=texts),))) == [8, 8]


@pytest.mark.parametrize(
    ("gpus", "asked", "texts", "expected"),
    [
        (None, container("main", memory=4, cores=30), {"ALIYUN_COM_GPU_MEM_IDX": "1"}, {uuid(1): 30}),
        (None, container("main", memory=4, cores=30), {ACK_ALLOCATION: '{"0":{"1":4}}'}, {uuid(1): 30}),
        (
            "2",
            container("main", memory=4, cores=30),
            {ACK_ALLOCATION: '{"0":{"0":2,"1":2}}'},
            {uuid(0): 15, uuid(1): 15},
        ),
        (None, container("main", memory=4, cores=30), {"ALIYUN_COM_GPU_MEM_IDX": "7"}, {}),
        (None, container("main", cores=30), {"ALIYUN_COM_GPU_MEM_IDX": "1"}, {}),
    ],
)
def test_compute_is_where_aliyuns_annotations_say_that_memory_is(
    gpus: str | None, asked: ContainerRequest, texts: dict[str, str], expected: dict[str, int]
) -> None:
    """They name GPUs of memory alone, and compute is on the same ones; without memory, or such GPUs, nobody knows."""
    node = cores_node(16, 16)
    found = pod(request(asked, gpus=gpus), "node", annotations=texts)
    cores = node_account(node, [found]).resources[GPU_CORES]
    assert {each.gpu: each.units for each in cores.holdings} == expected
    assert sum(each.units for each in cores.unplaced) == (0 if expected else 30)
    assert cores.free == tuple(100 - expected.get(uuid(index), 0) - (0 if expected else 30) for index in range(2))
