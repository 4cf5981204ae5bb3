"""Tests of `gpushare_plugin.core.chooser`."""

from collections import Counter
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.core.chooser import Request
from gpushare_plugin.core.policies import UnitCounts
from gpushare_plugin.core.resource import Resource
from tests.nodes import a_node
from tests.unit.sharing.settings import memory, planned, time_slicing

SIZES = {"slices": [{"size": "1gb", "count": 3}]}
WAYS = {
    "memory": memory(),
    "spread memory": memory(placement="spread"),
    "replicas": time_slicing({"name": "nvidia.com/gpu", "replicas": 3}),
    "replicas and whole GPUs": time_slicing({"name": "nvidia.com/gpu", "replicas": 3, "devices": [1]}),
    "slices": {"mps": {"sizes": [SIZES]}},
    "whole GPUs": {},
}


def advertised(way: str) -> Resource:
    """Return the resource of a node with three GPUs that are shared in one way."""
    (resource,) = planned(a_node(3 * 1024, 5 * 1024, 4 * 1024), sharing=WAYS[way]).resources
    return resource


def answer(ask: Callable[[], Counter[str]]) -> Counter[str] | str:
    """Return what is chosen, or the words of the refusal."""
    try:
        return ask()
    except PlacementError as refusal:
        return str(refusal)


@given(st.sampled_from(list(WAYS)), st.data())
def test_counts_alone_decide_as_the_node_does(way: str, data: st.DataObject) -> None:
    """A scheduler that has no units chooses the GPUs that the node prefers, and is refused in the same words."""
    resource = advertised(way)
    ids = st.lists(st.sampled_from(sorted(resource.units)), unique=True, max_size=8)
    free = data.draw(ids)
    must = [id_ for id_ in free if data.draw(st.integers(0, 3)) == 0]
    size = data.draw(st.integers(max(1, len(must)), 8))

    def counts(units: list[str]) -> Counter[str]:
        return Counter(resource.units[id_].gpu for id_ in units)

    gpus = {
        uuid: UnitCounts(gpu.index, counts(free)[uuid], len(resource.units.by_gpu[gpu]))
        for uuid, gpu in resource.gpus.items()
    }
    request = Request(resource.name, size, gpus, counts(must))
    chosen = answer(lambda: Counter(resource.chooser.choose(request)))
    assert chosen == answer(lambda: counts(resource.prefer(free, must, size)))
