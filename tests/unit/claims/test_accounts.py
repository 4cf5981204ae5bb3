"""Tests of `gpushare_plugin.claims.accounts`."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.claim import ClaimRefusedError
from gpushare_plugin.core.prepared_claim import PreparedClaim
from gpushare_plugin.testing.claims import AllocationError
from tests.nodes import a_gpu
from tests.unit.claims.node import GIB, ClaimNode, request, share
from tests.unit.claims.test_devices import WAYS
from tests.unit.sharing.settings import memory, time_slicing

ENTRY = {"name": "nvidia.com/gpu", "replicas": 2}


def holding(node: ClaimNode, name: str, **consumed: int) -> PreparedClaim:
    """Return a claim that holds this much of the first GPU."""
    return node.prepared(share(name, name, consumed=consumed))


def refusal(node: ClaimNode, claim: PreparedClaim, *others: PreparedClaim) -> str:
    """Return the message with which a claim is refused for want of room."""
    with pytest.raises(ClaimRefusedError) as caught:
        node.check(claim, others)
    assert caught.value.reason == "no-room"
    return str(caught.value)


def test_memory_that_is_still_held_is_told_with_its_holders() -> None:
    """The message names the claims that hold the memory, and what happens next."""
    node = ClaimNode(sharing=memory())
    first, second, third = (holding(node, name, memory=15 * GIB) for name in ("a", "b", "c"))
    node.check(second, [first])
    assert refusal(node, third, first, second) == (
        f"claim default/c: 15360 MiB of memory of GPU 0 ({a_gpu(0).uuid}) allocated, which has 40960 in all, and 30720 "
        "are still held by default/a (15360), default/b (15360); the kubelet tries again, and the pod starts once the "
        "containers that use them have ended"
    )


def test_more_than_the_gpu_has_is_not_waited_for() -> None:
    """No other claim holds what is missing, so the claim has a reason of its own, for which nothing waits."""
    node = ClaimNode(sharing=memory(isolation="mps"))
    claim = node.prepared(node.allocate(request("a", memory="20Gi", compute="60"), request("b", memory="20Gi")))
    first, second = claim.devices
    for more, words in (
        (replace(second, memory_mib=40960), "61440 MiB of memory of GPU 0"),
        (replace(second, percent=60), "120 percent of compute of GPU 0"),
    ):
        with pytest.raises(ClaimRefusedError) as caught:
            node.check(replace(claim, devices=(first, more)), [])
        assert caught.value.reason == "beyond-gpu"
        assert words in str(caught.value)
        assert "delete the pod" in str(caught.value)


def test_a_claim_that_is_prepared_again_does_not_count_twice() -> None:
    """The record of the claim itself is no other claim."""
    node = ClaimNode(sharing=memory())
    claim = holding(node, "a", memory=30 * GIB)
    node.check(claim, [claim])


def test_two_requests_of_one_claim_count_together() -> None:
    """A claim can have two shares of one GPU."""
    node = ClaimNode(sharing=memory())
    claim = node.prepared(node.allocate(request("a", memory="20Gi"), request("b", memory="20Gi")))
    node.check(claim, [])
    assert "default/x (1024)" in refusal(node, claim, holding(node, "x", memory=GIB))


def test_shares_count_where_the_way_has_shares() -> None:
    """A third claim has no place among two replicas."""
    node = ClaimNode(sharing=time_slicing(ENTRY))
    first, second, third = (holding(node, name, memory=0, shares=1) for name in ("a", "b", "c"))
    node.check(second, [first])
    assert "1 shares of GPU 0" in refusal(node, third, first, second)


def test_compute_counts_where_it_was_asked_for() -> None:
    """Compute that nobody asked for is a ceiling and leaves room."""
    node = ClaimNode(sharing=memory(isolation="mps"))
    first = holding(node, "a", memory=GIB, compute=60, shares=1)
    node.check(holding(node, "b", memory=GIB, compute=0, shares=1), [first])
    node.check(holding(node, "b", memory=GIB, compute=40, shares=1), [first])
    found = refusal(node, holding(node, "b", memory=GIB, compute=41, shares=1), first)
    assert "41 percent of compute" in found
    assert "default/a (60)" in found


def test_a_whole_gpu_is_not_shared() -> None:
    """Not even with a claim that holds no memory, as on a time-sliced GPU before the config changed."""
    whole, sliced = ClaimNode(), ClaimNode(sharing=time_slicing(ENTRY))
    claim = whole.prepared(share(share_id=None))
    replica = holding(sliced, "a", memory=0, shares=1)
    assert "by default/a" in refusal(whole, claim, replica)
    assert "by default/claim" in refusal(sliced, replica, claim)


def test_access_for_administration_does_not_count() -> None:
    """Neither as the claim that comes, nor as one that is there."""
    node = ClaimNode(sharing=memory())
    full, admin = holding(node, "a", memory=40 * GIB), node.prepared(share("admin", "admin", admin_access=True))
    node.check(admin, [full])
    node.check(full, [admin])


def test_many_holders_are_counted_and_not_all_named() -> None:
    """The message stays short."""
    node = ClaimNode(sharing=memory())
    others = [holding(node, f"holder-{number}", memory=GIB) for number in range(40)]
    assert "default/holder-4 (1024) and 35 more" in refusal(node, holding(node, "late", memory=GIB), *others)


def test_another_gpu_does_not_count() -> None:
    """Only claims on the same GPU hold its memory."""
    node = ClaimNode(sharing=memory())
    full = holding(node, "a", memory=40 * GIB)
    (device,) = full.devices
    other = replace(full, id=full.id._replace(uid="b"), devices=(replace(device, gpu=a_gpu(1).uuid),))
    node.check(full, [other])


@settings(deadline=None)
@given(
    sharing=st.sampled_from([*WAYS.values()]),
    steps=st.lists(
        st.one_of(
            st.integers(0, 9),
            st.fixed_dictionaries(
                {},
                optional={
                    "memory": st.sampled_from(["1Mi", "3Gi", "10Gi", "20Gi", "40Gi"]),
                    "compute": st.sampled_from(["0", "30", "100"]),
                    "shares": st.sampled_from(["1", "2"]),
                    "count": st.sampled_from([1, 2]),
                    "adminAccess": st.booleans(),
                },
            ),
        ),
        max_size=20,
    ),
)
def test_what_kube_scheduler_allocates_fits(sharing: dict[str, object], steps: list[int | dict[str, Any]]) -> None:
    """As long as the API promises nothing twice, no claim is refused for want of room, and no GPU is exceeded.

    A number ends a claim. A claim that is refused for another reason, such as limits on several GPUs, still holds.
    """
    node = ClaimNode(sharing=sharing)
    prepared: dict[str, PreparedClaim] = {}
    for step in steps:
        if isinstance(step, int):
            if name := next(iter([*prepared][step:]), None):
                del prepared[name], node.claims[name]
            continue
        try:
            allocated = node.allocate(request(**step))
        except AllocationError:
            continue
        claim = node.prepared(allocated)
        node.check(claim, prepared.values())
        prepared[claim.id.name] = claim
        for uuid, gpu in node.by_claim.items():
            memory_mib = sum(each.memory_mib for one in prepared.values() for each in one.devices if each.gpu == uuid)
            assert memory_mib <= gpu.gpu.memory_mib
