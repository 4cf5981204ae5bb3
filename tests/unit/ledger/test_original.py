"""What Aliyun's and HAMi's schedulers get wrong, each as a test of the account.

The facts are in the sources of Aliyun's `gpushare-scheduler-extender` (`pkg/cache/nodeinfo.go`, `pkg/utils/pod.go`).
"""

from functools import partial

import pytest

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.pod import Pod, has_ended
from gpushare_plugin.ledger.verdicts import Fit, Misfit, NodeMisfit
from tests.unit.ledger.objects import account, container, free, memory, memory_node, pod, request, uuid


def test_init_containers_count_for_where_a_pod_fits() -> None:
    """An init container that needs more than the containers decides where the pod fits; the original ignores it."""
    asked = request(container("warm-up", "init", memory=10), container("main", memory=2))
    made = account(memory_node(8, 8))
    verdict = made.fit(asked, "node")
    assert isinstance(verdict, NodeMisfit)
    assert verdict.missing == 2
    made.put_node(memory_node(8, 12))
    made.put_pod(pod(asked, "node", on=uuid(1)))
    assert free(made) == [8, 2]


def test_cards_of_unequal_size_are_not_averaged() -> None:
    """A node of 8 and 24 units has a GPU of 24; the original takes both for GPUs of 16."""
    made = account(memory_node(8, 24))
    assert made.place(memory(20), "node").containers == {"main": {"aliyun.com/gpu-mem": {uuid(1): 20}}}
    assert isinstance(made.fit(memory(25), "node"), Misfit)
    made.put_pod(pod(memory(16), "node", on=uuid(1)))
    assert isinstance(made.fit(memory(9), "node"), Misfit)


def test_a_gpu_over_its_capacity_has_nothing_free() -> None:
    """A GPU whose pods hold more than it has now, after it shrank, has 0 free; the original's number wraps around."""
    made = account(memory_node(10, 10), pods=(pod(memory(8), "node", on=uuid(0)),))
    made.put_node(memory_node(5, 10))
    shrunk = made.account_of("node").resources["aliyun.com/gpu-mem"]
    assert (shrunk.free, shrunk.over) == ((0, 10), {uuid(0): 3, uuid(1): 0})
    assert [each.units for each in shrunk.by_gpu[uuid(0)]] == [8]
    assert made.place(memory(1), "node").containers["main"]["aliyun.com/gpu-mem"] == {uuid(1): 1}


def test_a_pod_that_terminates_holds_its_units() -> None:
    """A pod frees its units when its containers have stopped, not when it is told to; the original frees them at once.

    A pod that is being deleted is Running until its containers have stopped, and one that failed may have some left.
    """
    assert not has_ended("Running", lambda: True)
    assert not has_ended("Running", lambda: False)
    assert not has_ended("Failed", lambda: True)
    assert has_ended("Failed", lambda: False)
    made = account(memory_node(10))
    for phase, running, left in (("Running", True, 4), ("Failed", True, 4), ("Failed", False, 10)):
        made.put_pod(pod(memory(6), "node", on=uuid(0), ended=has_ended(phase, partial(bool, running))))
        assert free(made) == [left]


def test_gpus_that_are_added_removed_or_resized_are_seen_at_once() -> None:
    """The original never looks again."""
    made = account(memory_node(10))
    assert isinstance(made.fit(memory(12), "node"), Misfit)
    made.put_node(memory_node(10, 16))
    assert isinstance(made.fit(memory(12), "node"), Fit)
    made.put_node(memory_node(16))
    assert isinstance(made.fit(memory(12), "node"), Fit)
    made.put_node(memory_node(4))
    assert isinstance(made.fit(memory(12), "node"), Misfit)


def test_a_bound_pod_keeps_its_place() -> None:
    """A pod that is bound already is given no other place when its binding is asked for again; the original's is."""
    bound = pod(memory(6), "node", on=uuid(1))
    made = account(memory_node(10, 10), pods=(bound, pod(memory(5), "node", "other", on=uuid(0))))
    again = made.reserve(pod(memory(6)), "node")
    assert again.containers == {"main": {"aliyun.com/gpu-mem": {uuid(1): 6}}}
    assert (made.reservation("pod"), free(made)) == (None, [5, 4])
    with pytest.raises(PlacementError, match="already bound to node node"):
        made.reserve(pod(memory(6)), "elsewhere")


def test_two_pods_do_not_take_one_slot() -> None:
    """Of two pods for which filter found the same last slot, the second to be bound is refused; HAMi's gets it, too."""
    made = account(memory_node(10))
    first, second = (pod(memory(6), uid=uid) for uid in ("first", "second"))
    assert isinstance(made.fit(first.request, "node"), Fit)
    assert isinstance(made.fit(second.request, "node"), Fit)
    made.reserve(first, "node")
    with pytest.raises(PlacementError, match="2 missing: GPU 0 has 4 free of 10"):
        made.reserve(second, "node")
    assert free(made) == [4]


def test_a_burst_of_deletions_leaves_nothing_behind() -> None:
    """Hundreds of pods end and go at once, each reported several times."""
    made = account(memory_node(100, 100))
    pods = [pod(memory(1), "node", f"pod-{number}", on=uuid(number % 2)) for number in range(200)]
    for each in pods:
        made.put_pod(each)
    assert free(made) == [0, 0]
    forget(made, pods)
    forget(made, pods)
    assert free(made) == [100, 100]


def forget(made: ClusterAccount, pods: list[Pod]) -> None:
    """Report that pods are gone."""
    for each in pods:
        made.remove_pod(each.uid)
