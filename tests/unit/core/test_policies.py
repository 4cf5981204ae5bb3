"""Tests of `gpushare_plugin.core.policies`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.core.chooser import one_gpu
from gpushare_plugin.core.policies import POLICIES, Policy, UnitCounts
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


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_policy_separates_replicas_if_it_says_so(policy: Policy) -> None:
    """A GPU with a pod of the same owner costs more, or as much."""
    price = policy.price(0.5, 0.5, 0, 1)
    there = policy.price(0.5, 0.5, 1, 1)
    assert (price < there) == policy.separates_replicas
    assert price <= there
