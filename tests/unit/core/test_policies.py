"""Tests of `gpushare_plugin.core.policies`."""

from collections import Counter
from itertools import cycle, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.core.chooser import one_gpu
from gpushare_plugin.core.policies import POLICIES, Policy, UnitCounts
from gpushare_plugin.packing.costs import ShareCosts
from gpushare_plugin.packing.pod_kind import PodKind, percent_of_units
from gpushare_plugin.packing.policy import Packing
from gpushare_plugin.packing.rows import NodeKind, NodeRows, Spot
from gpushare_plugin.packing.seen import FIRST_LESSON
from gpushare_plugin.packing.values import part_values
from tests.unit.ledger.objects import account, memory, memory_node, uuid


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@given(st.data())
def test_prices_rank_nodes_from_0_to_1(policy: Policy, data: st.DataObject) -> None:
    """Whatever a node has, the first number of a price becomes a score of kube-scheduler."""
    largest = data.draw(st.integers(1, 100))
    units = data.draw(st.integers(largest, 800))
    left = data.draw(st.integers(0, largest))
    node_left = data.draw(st.integers(left, units))
    replicas = data.draw(st.integers(0, 9))
    node_replicas = replicas + data.draw(st.integers(0, 9))
    price = policy.price(left / largest, node_left / units, replicas, node_replicas)
    assert 0 <= price[0] <= 1


@pytest.mark.parametrize("policy", ["binpack", "spread"])
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 9))
def test_the_cluster_chooses_the_gpu_that_the_node_would_choose(policy: str, sizes: list[int], size: int) -> None:
    """Without replicas, a policy of the cluster picks the GPU that the same policy picks on the node."""
    gpus = {uuid(index): UnitCounts(index, units, units) for index, units in enumerate(sizes)}
    expected = one_gpu(gpus, size, "binpack" if policy == "binpack" else "spread")
    made = account(memory_node(*sizes), policy=policy)
    if expected is not None:
        assert made.place(memory(size), "node").containers["main"]["aliyun.com/gpu-mem"] == {expected: size}


@given(
    free=st.lists(st.integers(0, 100), min_size=1, max_size=8),
    percent=st.integers(1, 99),
    sizes=st.lists(st.integers(1, 99), min_size=1, max_size=5),
)
def test_a_node_packs_as_the_cluster_would(free: list[int], percent: int, sizes: list[int]) -> None:
    """By the same table, a node takes the GPU that the policy `packing` of a cluster takes on this node."""
    rows = NodeRows([NodeKind(cpu=64_000, memory=262_144, gpus=len(free), model="T4")])
    policy = Packing(rows)
    seen = Counter(islice(cycle(sizes), FIRST_LESSON))
    for size in seen.elements():
        policy.see(PodKind(1_000, 1_024, 1, size))
    for gpu, piece in enumerate(free):
        rows.take(PodKind(0, 0, 1, 100 - piece), Spot(0, (gpu,)))
    policy.changed(0)
    spot = policy.choose(PodKind(1_000, 1_024, 1, percent))
    gpus = {uuid(index): UnitCounts(index, piece, 100) for index, piece in enumerate(free)}
    chosen = one_gpu(gpus, percent, "packing", part_values(seen))
    assert chosen == (None if spot is None else uuid(spot.gpus[0]))


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(0, 200)), min_size=1, max_size=8),
    st.integers(1, 150),
    st.dictionaries(st.integers(1, 99), st.integers(1, 99), max_size=5),
)
def test_units_cost_the_same_on_a_node_and_in_a_cluster(
    gpus: list[tuple[int, int]], size: int, seen: dict[int, int]
) -> None:
    """Whatever the number of units of each GPU, both round requests and free pieces alike."""
    values = part_values(seen)
    counts = {uuid(index): UnitCounts(index, min(free, total), total) for index, (total, free) in enumerate(gpus)}
    free, total = (np.array([getattr(gpu, each) for gpu in counts.values()]) for each in ("free", "total"))
    costs = ShareCosts(values).of_units(size, free, total)
    expected = uuid(int(costs.argmin())) if np.isfinite(costs).any() else None
    assert one_gpu(counts, size, "packing", values) == expected


@given(st.integers(1, 200), st.integers(1, 200))
def test_as_many_shares_fit_by_percent_as_by_units(size: int, units: int) -> None:
    """Rounding leaves room for all shares of a size, unless the shares are smaller than 1 percent."""
    units = max(size, units)
    assert 100 // percent_of_units(size, units) == min(100, units // size)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_policy_separates_replicas_if_it_says_so(policy: Policy) -> None:
    """A GPU with a pod of the same owner costs more, or as much."""
    price = policy.price(0.5, 0.5, 0, 1)
    there = policy.price(0.5, 0.5, 1, 1)
    assert (price < there) == policy.separates_replicas
    assert price <= there
