"""Tests of `gpushare_plugin.model.account.search.victims`: what is freed is on one GPU, and no more than needed."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.model.account.search.verdicts import Fit
from tests.unit.model.account.objects import account, container, kind_node, memory, memory_node, pod, request, uuid


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
    assert made.victims(memory(5), "node", ["a", "b", "c", "d"]) == []
    assert made.victims(memory(8), "node", ["a", "b", "c", "d"]) == ["a"]
    assert made.victims(memory(8), "node", ["b", "c", "d"]) == ["b", "c"]
    assert made.victims(memory(8), "node", ["d"]) is None
    assert made.victims(memory(11), "node", ["a", "b", "c", "d"]) is None
    assert made.victims(memory(8), "node", []) is None


def test_the_least_important_go() -> None:
    """Two pods of low priority go rather than one of a higher."""
    made = account(
        memory_node(10, 10),
        pods=(
            pod(memory(10), "node", "high", on=uuid(0), priority=10),
            pod(memory(5), "node", "low", on=uuid(1), priority=1),
            pod(memory(5), "node", "lower", on=uuid(1), priority=0),
        ),
    )
    assert made.victims(memory(10), "node", ["high", "low", "lower"]) == ["lower", "low"]
    assert made.victims(memory(4), "node", ["high", "low", "lower"]) == ["lower"]


def test_several_gpus_need_pods_of_several() -> None:
    """A request for two whole GPUs, or a share of two, takes the pods of both; those on unknown GPUs go, too."""
    asked = request(container("main", gpu=1))
    made = account(kind_node("nvidia.com/gpu", "gpus", 1, 1))
    for number in range(2):
        made.put_pod(pod(asked, "node", f"pod-{number}", on=uuid(number)))
    assert made.victims(request(container("main", gpu=2)), "node", ["pod-0", "pod-1"]) == ["pod-0", "pod-1"]
    made.put_pod(pod(asked, "node", "anywhere"))
    assert made.victims(asked, "node", ["pod-0", "pod-1", "anywhere"]) == ["pod-0", "anywhere"]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6), st.integers(0, 3)), max_size=7), st.integers(1, 12))
def test_victims_suffice_and_none_is_too_many(held: list[tuple[int, int, int]], size: int) -> None:
    """With the victims gone the pod fits; with any one of them back it does not."""
    pods = tuple(
        pod(memory(units), "node", f"pod-{number}", on=uuid(gpu), priority=priority)
        for number, (gpu, units, priority) in enumerate(held)
    )
    made = account(memory_node(10, 10, 10), pods=pods)
    victims = made.victims(memory(size), "node", [each.uid for each in pods])
    if victims is None:
        assert size > 10
        return
    for back in [None, *victims]:
        left = tuple(each for each in pods if each.uid not in victims or each.uid == back)
        fits = isinstance(account(memory_node(10, 10, 10), pods=left).fit(memory(size), "node"), Fit)
        assert fits == (back is None)
