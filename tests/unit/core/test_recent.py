"""Tests of `gpushare_plugin.core.recent`: what the kubelet may offer although a container has it."""

from collections.abc import Set as AbstractSet

import pytest

from gpushare_plugin.core.recent import RecentAllocations
from gpushare_plugin.core.resource import Resource
from tests.unit.kubelet.serving import shared_memory


@pytest.fixture(scope="module")
def resource() -> Resource:
    """Return the memory of two GPUs with 4 units each."""
    return shared_memory(4, 4)


def ids(resource: Resource, gpu: int, *numbers: int) -> set[str]:
    """Return the IDs of some units of a GPU."""
    units = list(resource.units.by_gpu.values())[gpu]
    return {units[number].id for number in numbers}


def given(resource: Resource, *allocations: set[str]) -> RecentAllocations:
    """Return what is remembered after these were allocated, one after the other."""
    recent = RecentAllocations()
    for each in allocations:
        with recent.call(resource.name, allocates=True):
            recent.allocated(resource.name, each)
    return recent


def held(resource: Resource, held_ids: set[str]) -> set[tuple[str, str]]:
    """Return IDs as they are read from the kubelet."""
    return {(resource.name, id_) for id_ in held_ids}


def state(recent: RecentAllocations) -> tuple[bool, AbstractSet[str]]:
    """Return whether the kubelet is answered, and what it has not written down."""
    return recent.answering, recent.unwritten


def test_an_id_that_is_not_offered_beside_others_of_its_gpu_is_counted(resource: Resource) -> None:
    """From then on the kubelet offers it only when it is free; another GPU, and NUMA's own choice, say nothing."""
    recent, mine, other = given(resource, ids(resource, 0, 0, 1)), ids(resource, 0, 0, 1), ids(resource, 0, 2, 3)
    assert recent.doubtful(resource, ids(resource, 1, 0, 1, 2, 3), ()) == set()
    assert recent.doubtful(resource, mine | other, ()) == mine
    assert recent.doubtful(resource, other, other) == set()
    assert recent.doubtful(resource, mine | other, ()) == mine
    assert recent.doubtful(resource, other, ()) == set()
    assert recent.doubtful(resource, mine | other, ()) == set()


def test_units_that_a_pod_uses_again_are_not_in_doubt(resource: Resource) -> None:
    """Units of its init container must be included: they are held, by this pod."""
    mine = ids(resource, 0, 0, 1)
    assert given(resource, mine).doubtful(resource, ids(resource, 0, 0, 1, 2), mine) == set()


def test_units_that_nobody_holds_are_forgotten_once_that_is_certain(resource: Resource) -> None:
    """Answers from before the kubelet went on say nothing of what it was just allocating; what was held, does."""
    first, second = ids(resource, 0, 0), ids(resource, 0, 1)
    everything = ids(resource, 0, 0, 1, 2, 3)
    recent = given(resource, first, second)
    recent.learn(set(), recent.now)
    assert recent.doubtful(resource, everything, ()) == second
    recent.learn(held(resource, second), recent.now)
    assert recent.doubtful(resource, everything, ()) == second
    recent.learn(set(), recent.now)
    assert recent.doubtful(resource, everything, ()) == set()


def test_units_that_are_no_longer_listed_are_forgotten(resource: Resource) -> None:
    """Never more is remembered than the resource lists: a config with another unit changes all IDs."""
    recent = given(resource, {"11111111-2Gi-0"})
    assert recent.doubtful(resource, ids(resource, 0, 0), ()) == set()
    assert recent.doubtful(resource, {"11111111-2Gi-0"}, ()) == set()


def test_the_kubelet_is_not_asked_while_it_allocates(resource: Resource) -> None:
    """From the question what is preferred until the checkpoint shows what was allocated then, or nobody waits."""
    recent = RecentAllocations()
    with recent.call(resource.name, allocates=False):
        assert state(recent) == (True, set())
    assert state(recent) == (True, set())
    with recent.call(resource.name, allocates=True):
        recent.allocated(resource.name, ["a"])
        assert state(recent) == (True, {"a"})
    assert state(recent) == (False, {"a"})
    recent.written()
    assert state(recent) == (False, set())
    with pytest.raises(ValueError, match="refused"), recent.call(resource.name, allocates=False):
        raise ValueError("refused")
    assert state(recent) == (False, set())
