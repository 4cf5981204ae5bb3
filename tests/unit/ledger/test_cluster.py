"""Tests of `gpushare_plugin.ledger.cluster`: events and reservations. `test_life` has random ones."""

import gc
import weakref
from collections.abc import Callable

import pytest

from gpushare_plugin.base import structs
from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.ledger.annotations import PROMISE
from gpushare_plugin.ledger.cluster_wide import MOST_REQUESTS
from gpushare_plugin.ledger.node import GPU_MEMORY, plain_node, unreadable_node
from gpushare_plugin.ledger.request import ContainerRequest
from gpushare_plugin.ledger.verdicts import Fit, Misfit
from gpushare_plugin.ledger.victims import VictimCandidates
from tests.unit.ledger.objects import (
    account,
    container,
    free,
    kind_node,
    memory,
    memory_node,
    pod,
    request,
    uuid,
)


def test_a_reservation_holds_until_the_pod_is_bound() -> None:
    """What is promised is not free; once the pod is seen on the node, it is counted there, once."""
    made = account(memory_node(10))
    made.reserve(pod(memory(6)), "node")
    placed = made.account_of("node").resources[GPU_MEMORY].by_gpu[uuid(0)]
    assert ([(each.pod.uid, each.source) for each in placed], free(made)) == ([("pod", "reservation")], [4])
    made.put_pod(pod(memory(6), "node", on=uuid(0)))
    placed = made.account_of("node").resources[GPU_MEMORY].by_gpu[uuid(0)]
    assert ([(each.pod.uid, each.source) for each in placed], free(made)) == ([("pod", "allocation")], [4])
    assert made.reservation("pod") is None


def test_a_reservation_that_ends_leaves_no_trace() -> None:
    """A reservation ends when it is released, or with its pod."""
    made = account(memory_node(10))
    ends: list[Callable[[], None]] = [
        lambda: made.release("pod"),
        lambda: made.remove_pod("pod"),
        lambda: made.put_pod(pod(memory(6), "elsewhere")),
    ]
    for end in ends:
        made.reserve(pod(memory(6)), "node")
        end()
        assert free(made) == [10]
        made.remove_pod("pod")


def test_a_pod_that_is_reserved_twice_on_a_node_has_one_gpu() -> None:
    """The same question has the same answer, and none on another node."""
    made = account(memory_node(10, 6), memory_node(10, name="other"))
    first = made.reserve(pod(memory(6)), "node")
    assert made.reserve(pod(memory(6)), "node") == first
    assert free(made) == [10, 0]
    with pytest.raises(PlacementError, match="is being bound to node node"):
        made.reserve(pod(memory(6)), "other")
    assert free(made, "other") == [10]


def test_older_events_change_nothing() -> None:
    """A pod once seen bound, or ended, stays so when the watch delivers what was before."""
    made = account(memory_node(10), pods=(pod(memory(6), "node", on=uuid(0)), pod(memory(6))))
    assert free(made) == [4]
    made.put_pod(pod(memory(6), "node", on=uuid(0), ended=True))
    made.put_pod(pod(memory(6), "node", on=uuid(0)))
    assert free(made) == [10]
    with pytest.raises(PlacementError, match="has ended"):
        made.reserve(pod(memory(6)), "node")


def test_pods_may_be_known_before_their_node() -> None:
    """Nodes and pods are listed one after the other; a node that comes back finds its pods."""
    made = account(pods=(pod(memory(6), "node", on=uuid(0)),))
    verdict = made.fit(memory(1), "node")
    assert isinstance(verdict, Misfit)
    assert verdict.reason == "node node is not known to gpushare yet"
    with pytest.raises(PlacementError, match="not known"):
        made.reserve(pod(memory(1), uid="new"), "node")
    made.put_node(memory_node(10))
    assert free(made) == [4]
    made.remove_node("node")
    made.remove_node("node")
    assert isinstance(made.fit(memory(1), "node"), Misfit)
    assert made.victims(pod(memory(1)), "node", VictimCandidates((), ())) is None
    assert not made.nodes
    made.put_node(memory_node(12))
    assert free(made) == [6]


def test_a_cluster_knows_which_pods_concern_it() -> None:
    """Aliyun's resources always; any other while the record of some node names it."""
    made = account()
    gpu = request(container("main", gpu=1))
    assert made.concerns(memory(1))
    assert not made.concerns(gpu)
    assert not made.concerns(request(container("main")))
    made.put_node(kind_node("nvidia.com/gpu", "gpus", 1))
    assert made.concerns(gpu)
    made.remove_node("node")
    assert not made.concerns(gpu)


def test_a_node_without_the_resource_is_no_place_for_the_pod() -> None:
    """What neither the record of a node nor its kubelet has is not there; another device plugin may serve the rest."""
    made = account(memory_node(8), plain_node("plain", 0, 0))
    gpu = request(container("main", gpu=1))
    assert made.fit(gpu, "node") == Fit(0)
    made.put_node(kind_node("nvidia.com/gpu", "gpus", 1))
    made.put_node(memory_node(8, name="other"))
    verdict = made.fit(gpu, "other")
    assert isinstance(verdict, Misfit)
    assert verdict.reason == "the node does not offer nvidia.com/gpu"
    made.put_node(structs.replace(memory_node(8, name="other"), allocatable={"nvidia.com/gpu": 2}))
    assert made.fit(gpu, "other") == made.fit(gpu, "plain") == Fit(0)


def test_an_unreadable_record_hides_gpus_only() -> None:
    """Nobody knows what GPUs such a node has; what is not of GPUs is no matter of its record, whoever names it."""
    made = account(kind_node("nvidia.com/gpu", "gpus", 1), unreadable_node("later", "version 2 found"))
    made.put_node(structs.replace(kind_node("rdma/hca", "replicas", 1), name="hostile"))
    verdict = made.fit(request(container("main", gpu=1)), "later")
    assert isinstance(verdict, Misfit)
    assert verdict.reason == "the record of the node cannot be read: version 2 found"
    assert made.fit(request(ContainerRequest("main", "app", (("rdma/hca", 1),))), "later") == Fit(0)


def test_kept_verdicts_are_bounded_in_number() -> None:
    """However many different pods there are, only the verdicts for the last requests take memory."""
    made = account(memory_node(1000))
    for size in range(1, 3 * MOST_REQUESTS):
        assert isinstance(made.fits(memory(size), ["node"])["node"], Fit)
    assert len(made._search._verdicts._recent) == MOST_REQUESTS  # noqa: SLF001 # memory has no other outside
    assert isinstance(made.fit(memory(1), "node"), Fit)


def test_an_account_goes_with_its_last_reference() -> None:
    """Nothing in it refers to itself, so no garbage collector has to find it: an extender has one for each term."""
    made = account(memory_node(10), pods=(pod(memory(6), "node", on=uuid(0)),))
    made.reserve(pod(memory(2), uid="reserved"), "node")
    assert isinstance(made.fit(memory(1), "node", "owner"), Fit)
    gone = weakref.ref(made)
    gc.disable()
    try:
        del made
        assert gone() is None
    finally:
        gc.enable()


def test_promises_in_annotations_count_once_bound() -> None:
    """A promise moves the pod's own units; on a pod that is not bound it means nothing."""
    made = account(memory_node(10, 10))
    promise = '{"version":1,"node":"node","time":"","containers":{"main":{"aliyun.com/gpu-mem":{"GPU-node-1":6}}}}'
    made.put_pod(pod(memory(6), annotations={PROMISE: promise}))
    assert free(made) == [10, 10]
    made.put_pod(pod(memory(6), "node", annotations={PROMISE: promise}))
    assert free(made) == [10, 4]
    assert made.pods["pod"] == pod(memory(6), "node", annotations={PROMISE: promise})
