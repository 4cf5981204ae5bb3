"""Tests of `gpushare_plugin.partition.words`: what people read of the decisions."""

from gpushare_plugin.partition import words
from gpushare_plugin.partition.nodes import PartitionNode
from gpushare_plugin.slices.memory import MemoryRoom
from tests.unit.partition.objects import after, decided, gpu, node, pod
from tests.unit.partition.simulation import A100


def test_a_slice_that_is_made_names_gpu_and_node() -> None:
    """The words say whether the slice is made, or is there already."""
    nodes = [node(gpu(0, "10gb"), gpu(1))]
    found = decided(nodes, pod("p", "10gb"), pod("q", "20gb", age=-1))
    assert words.assignment(found.assigned["p"]) == (
        "slice nvidia.com/gpu-10gb is idle and kept for the pod on GPU 0 of a"
    )
    assert words.assignment(found.assigned["q"]) == "slice nvidia.com/gpu-20gb is being made on GPU 0 of a"
    later = decided(after(nodes, found), pod("p", "10gb"))
    assert words.assignment(later.assigned["p"]) == "slice nvidia.com/gpu-10gb is kept for the pod on GPU 0 of a"


def test_the_words_say_why_a_slice_was_taken_back_and_what_follows() -> None:
    """The slice that is not kept any longer is named."""
    nodes = [node(gpu())]
    found = decided(after(nodes, decided(nodes, pod("p", "10gb"))), pod("p", "10gb"), seconds=60)
    assert words.taken_back(found.taken_back[0]) == (
        "nvidia.com/gpu-10gb on GPU 0 of a is no longer kept for the pod: the pod did not take it within 60 seconds; "
        "other nodes are tried first"
    )
    gone = [PartitionNode("a", (gpu(1),), after(nodes, decided(nodes, pod("p", "10gb")))[0].wanted)]
    assert words.taken_back(decided(gone, pod("p", "10gb"), seconds=1).taken_back[0]) == (
        "nvidia.com/gpu-10gb on GPU-a-0 of a is no longer kept for the pod: the node does not have GPU-a-0 any more; "
        "the pod is considered again"
    )


def test_a_gpu_of_unknown_memory_is_not_the_largest() -> None:
    """Nobody is told to request a slice of 0 GiB, where no GPU of the cluster reports its memory."""
    nodes = [node(gpu(0, room=MemoryRoom(0)))]
    assert words.refusal(decided(nodes, pod("p", "4gb")).refused["p"]) == (
        "no GPU of the cluster is partitioned by MPS, so nvidia.com/gpu-4gb cannot be made; gpushare inspect shows the "
        "warnings of each node"
    )


def test_a_size_larger_than_any_gpu_is_said_at_once_with_the_largest() -> None:
    """No node is named: none can ever have it. The largest partitioned GPU is."""
    nodes = [node(gpu(0), gpu(1, room=MemoryRoom(80))), node(gpu(0, room=A100, node="b"), name="b")]
    assert words.refusal(decided(nodes, pod("p", "96gb")).refused["p"]) == (
        "nvidia.com/gpu-96gb is larger than any partitioned GPU: 96 GiB requested, the largest one, A100, has 80, 16 "
        "missing; request 80gb or less"
    )
    assert words.refusal(decided(nodes, pod("p", "1g.20gb")).refused["p"]) == (
        "no partitioned GPU has the MIG profile 1g.20gb; there are 1g.5gb, 1g.10gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb"
    )
    assert words.refusal(decided(nodes[:1], pod("p", "1g.5gb")).refused["p"]) == (
        "no GPU of the cluster is partitioned by MIG, so nvidia.com/mig-1g.5gb cannot be made; gpushare inspect shows "
        "the warnings of each node"
    )


def test_the_words_count_nodes_by_cause_and_describe_the_nearest() -> None:
    """Nodes where least is missing are described GPU by GPU, with the number."""
    nodes = [
        node(gpu(0, "20gb 5gb", "20gb 5gb"), gpu(1, reason="unhealthy: XID 79")),
        node(gpu(0, "30gb", "30gb", node="b"), name="b"),
        node(gpu(0, room=A100, node="c"), name="c"),
        *(node(gpu(0, node=name), name=name) for name in "defgh"),
    ]
    found = decided(
        nodes, pod("p", "20gb"), runs_on=lambda _pod, name, _beside: "the node is cordoned" if name > "c" else None
    )
    assert words.refusal(found.refused["p"]) == (
        "no slice can be made for nvidia.com/gpu-20gb: "
        "5 nodes: the node is cordoned (d, e, f and 2 more); "
        "3 nodes: no GPU has room for nvidia.com/gpu-20gb (a, b, c); "
        "a: GPU 0 has 15 of 40 GiB left, 5 missing, GPU 1: unhealthy: XID 79; "
        "b: GPU 0 has 10 of 40 GiB left, 10 missing"
    )


def test_a_gpu_with_as_many_slices_as_mps_serves_has_no_room_whatever_is_left() -> None:
    """Where it is the number of slices that is too large, no GiB are said to be missing."""
    nodes = [node(gpu(0, "1gb 1gb", "1gb 1gb", room=MemoryRoom(40, 2)))]
    assert words.refusal(decided(nodes, pod("p", "1gb")).refused["p"]) == (
        "no slice can be made for nvidia.com/gpu-1gb: 1 node: no GPU has room for nvidia.com/gpu-1gb (a); "
        "a: GPU 0 has 38 of 40 GiB left, and pods have or get all 2 slices that MPS serves"
    )
