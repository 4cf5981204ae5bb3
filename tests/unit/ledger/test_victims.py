"""Tests of `gpushare_plugin.ledger.victims`: what is freed is on one GPU, by the fewest pods."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings

from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.request import PodRequest
from gpushare_plugin.ledger.victims import EvictionCosts, VictimCandidates
from tests.unit.ledger.evictions import RUNS, Case, cases
from tests.unit.ledger.objects import account, container, kind_node, memory, memory_node, pod, request, uuid


def victims(
    made: ClusterAccount, asked: PodRequest, others: Sequence[str], certain: Sequence[str] = (), **more: Any
) -> list[str] | None:
    """Return the UIDs of the victims for a request; `certain` go in any case."""
    pods = {each.uid: each for each in made.account_of("node").pods}
    candidates = VictimCandidates([pods[uid] for uid in certain], [pods[uid] for uid in others])._replace(**more)
    found = made.victims(pod(asked, uid="asked"), "node", candidates)
    return None if found is None else [each.uid for each in found]


def test_victims_are_on_one_gpu() -> None:
    """Of pods on two GPUs that have enough units together, those of one GPU go, and none that can stay."""
    made = account(
        memory_node(10, 10),
        pods=(
            pod(memory(5), "node", "a", on=uuid(0)),
            pod(memory(5), "node", "b", on=uuid(1)),
            pod(memory(4), "node", "c", on=uuid(1)),
            pod(memory(1), "node", "d", on=uuid(1)),
        ),
    )
    assert victims(made, memory(5), ["a", "b", "c", "d"]) == []
    assert victims(made, memory(8), ["a", "b", "c", "d"]) == ["a"]
    assert victims(made, memory(8), ["b", "c", "d"]) == ["b", "c"]
    assert victims(made, memory(8), ["d"]) is None
    assert victims(made, memory(11), ["a", "b", "c", "d"]) is None
    assert victims(made, memory(8), []) is None
    assert made.victims(pod(memory(1)), "unknown", VictimCandidates((), ())) is None


def test_the_fewest_and_least_important_pods_are_the_victims() -> None:
    """One pod goes rather than two, and of two that are each enough the less important pod."""
    made = account(
        memory_node(10, 10, 10),
        pods=(
            pod(memory(10), "node", "high", on=uuid(0), priority=10),
            pod(memory(5), "node", "low", on=uuid(1), priority=1),
            pod(memory(5), "node", "lower", on=uuid(1), priority=0),
            pod(memory(10), "node", "highest", on=uuid(2), priority=20),
        ),
    )
    assert victims(made, memory(10), ["highest", "high", "low", "lower"]) == ["high"]
    assert victims(made, memory(4), ["highest", "high", "low", "lower"]) == ["lower"]


def test_pods_are_added_only_if_given_victims_are_not_enough() -> None:
    """Beside victims that do not make room on one GPU, one pod is added where one is enough."""
    made = account(
        memory_node(10, 10, 10),
        pods=(
            pod(memory(5), "node", "a", on=uuid(0)),
            pod(memory(5), "node", "b", on=uuid(0)),
            pod(memory(5), "node", "c", on=uuid(1)),
            pod(memory(5), "node", "kept", on=uuid(1), priority=9),
            pod(memory(10), "node", "d", on=uuid(2)),
        ),
    )
    assert victims(made, memory(10), ["c", "d"], certain=["a", "b"]) == []
    assert victims(made, memory(10), ["b", "d"], certain=["a", "c"]) == ["b"]
    assert victims(made, memory(10), ["d"], certain=["a", "c"]) == ["d"]


def test_given_victims_use_up_their_budget() -> None:
    """Of two pods that are each enough the one goes whose budget still allows it, although it is more important."""
    made = account(
        memory_node(10, 10, 10),
        pods=(
            pod(memory(4), "node", "certain", on=uuid(0)),
            pod(memory(6), "node", "kept", on=uuid(0)),
            pod(memory(10), "node", "same", on=uuid(1)),
            pod(memory(10), "node", "other", on=uuid(2), priority=1),
        ),
    )
    costs = EvictionCosts(violations=lambda pods: max(0, len({"certain", "same"} & {each.uid for each in pods}) - 1))
    assert victims(made, memory(10), ["same", "other"], certain=["certain"], costs=costs) == ["other"]
    assert victims(made, memory(10), ["same", "other"], costs=costs) == ["same"]


def test_a_request_for_several_gpus_takes_pods_of_several_gpus() -> None:
    """A request for two whole GPUs, or a share of two, takes the pods of both; those on unknown GPUs go, too."""
    asked = request(container("main", gpu=1))
    made = account(kind_node("nvidia.com/gpu", "gpus", 1, 1))
    for number in range(2):
        made.put_pod(pod(asked, "node", f"pod-{number}", on=uuid(number)))
    assert victims(made, request(container("main", gpu=2)), ["pod-0", "pod-1"]) == ["pod-0", "pod-1"]
    made.put_pod(pod(asked, "node", "anywhere"))
    assert victims(made, asked, ["pod-0", "pod-1", "anywhere"]) == ["pod-0", "anywhere"]


def test_the_place_of_a_pod_that_is_ahead_is_not_given_away() -> None:
    """A pod that others are evicted for gets its GPU first; who comes after it needs victims of their own."""
    made = account(
        memory_node(10, 10),
        pods=(
            pod(memory(10), "node", "ending", on=uuid(0), ending=True),
            pod(memory(10), "node", "b", on=uuid(1)),
        ),
    )
    ahead = pod(memory(10), uid="ahead", nominated="node", priority=10)
    assert victims(made, memory(10), ["b"], certain=["ending"]) == []
    assert victims(made, memory(10), ["b"], certain=["ending"], ahead=[ahead]) == ["b"]


@pytest.mark.parametrize("units", [1, 2])
def test_few_sets_are_tried_among_many_pods(units: int) -> None:
    """Of a thousand pods on eight GPUs the fewest are found although no more than a few sets may be tried."""
    pods = tuple(
        pod(memory(units), "node", f"p{number}", on=uuid(number % 8), priority=number % 5) for number in range(1000)
    )
    made = account(memory_node(*[units * 125] * 8), pods=pods)
    found = victims(made, memory(units * 40), [each.uid for each in pods], most=10)
    assert found is not None
    assert len(found) == 40


@settings(max_examples=RUNS, deadline=None)
@given(cases())
def test_victims_are_enough_and_the_fewest(case: Case) -> None:
    """Of all sets that are enough they harm least, and fewest comes first; or nothing is enough.

    `GPUSHARE_PREEMPTION_RUNS` sets how many cases are tried.
    """
    made = account(case.node, pods=case.pods)
    candidates = VictimCandidates(case.proposed, case.others, costs=case.disruptions.costs)
    found = made.victims(pod(case.asked, uid="asked"), "node", candidates)
    if found is None:
        assert case.best is None
        return
    assert case.enough(found)
    assert set(found) <= set(case.others)
    assert case.cost(found) == case.best
