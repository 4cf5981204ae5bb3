"""What people read of the claims of a pod: as kube-scheduler would decide by capacities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.claims.device import Capacity
from gpushare_plugin.claims.outlook import AskedDevice, GpuForClaims, HeldByClaim, PodClaim, consumed, outlook
from gpushare_plugin.testing.claims import AllocationError
from tests.unit.claims.node import GIB, ClaimNode
from tests.unit.claims.node import request as asked_for
from tests.unit.sharing.settings import memory

CARD = ("node", "gpu-0")
SHARED = GpuForClaims(
    CARD,
    shared=True,
    capacities={
        "memory": Capacity(40 * GIB, "bytes", default=40 * GIB, least=GIB, step=GIB),
        "compute": Capacity(100, default=0, least=0, step=1),
    },
)
WHOLE = GpuForClaims(("node", "gpu-1"), shared=False, capacities={"memory": Capacity(40 * GIB, "bytes")})


def said(asked: AskedDevice, *gpus: GpuForClaims, taken: tuple[HeldByClaim, ...] = ()) -> list[str]:
    """Return what is said of a claim with one request that is not allocated."""
    return list(outlook([PodClaim("team/mine", (asked,))], gpus, taken))


@pytest.mark.parametrize(
    ("amounts", "reason"),
    [
        ({"memory": 10 * GIB}, "9216 MiB of 40960 MiB memory free, 10240 MiB wanted; held by team/other"),
        ({"memory": 9 * GIB}, "has room"),
        ({}, "9216 MiB of 40960 MiB memory free, 40960 MiB wanted; held by team/other"),
        ({"memory": 9 * GIB, "compute": 50}, "40 of 100 compute free, 50 wanted; held by team/other"),
        ({"memory": 41 * GIB}, "no claim can have 41984 MiB of memory there"),
        ({"cores": 1}, "has no capacity cores"),
    ],
)
def test_each_gpu_says_why_a_request_does_not_fit(amounts: dict[str, int], reason: str) -> None:
    """What is free, what is wanted, and who has the rest; a capacity that the GPU lacks is named."""
    taken = HeldByClaim(CARD, "team/other", {"memory": 31 * GIB, "compute": 60})
    head, request, line, *_ = said(AskedDevice("gpu", "shares", amounts), SHARED, taken=(taken,))
    assert head == "Claim team/mine: not allocated"
    assert request.startswith("  Request gpu of DeviceClass shares: ")
    assert line == f"    node gpu-0: {reason}"


def test_a_whole_gpu_is_free_or_not() -> None:
    """The size that a request names is a filter there; a taint closes any GPU."""
    asked = AskedDevice("gpu", "whole", {"memory": GIB})
    assert said(asked, WHOLE)[2] == "    node gpu-1: has room"
    taken = HeldByClaim(WHOLE.place, "team/other")
    assert said(asked, WHOLE, taken=(taken,))[2] == "    node gpu-1: is whole, and team/other has it"
    tainted = GpuForClaims(WHOLE.place, shared=False, capacities=WHOLE.capacities, taints=("gpushare/fault",))
    assert said(asked, tainted)[2] == "    node gpu-1: has the taint gpushare/fault"


def test_a_claim_that_is_allocated_or_unknown_says_so() -> None:
    """Where the GPUs are, or why the claim cannot be read."""
    claims = [PodClaim("team/mine", allocated=(CARD,)), PodClaim("team/gone", unknown="does not exist")]
    assert list(outlook(claims, [], [])) == [
        "Claim team/mine: allocated: gpu-0 of node",
        "Claim team/gone: does not exist",
    ]


def test_many_gpus_are_counted() -> None:
    """The answer stays short on a cluster with many GPUs, and says where there is room nevertheless."""
    gpus = [GpuForClaims(("node", f"gpu-{number}"), shared=False, capacities=WHOLE.capacities) for number in range(30)]
    lines = said(AskedDevice("gpu", "whole"), *gpus)
    assert "    … and 10 more GPUs, 30 of all GPUs have room" in lines
    assert "    No ResourceSlice has a GPU that gpushare gives by claim" in said(AskedDevice("gpu", "whole"))


@given(asked=st.none() | st.integers(0, 45), unit=st.sampled_from(["GiB", "2GiB", "4GiB"]))
def test_what_a_claim_takes_is_what_the_scheduler_counts(asked: int | None, unit: str) -> None:
    """Rounded as kube-scheduler rounds, or nothing at all where no claim can have so much."""
    node = ClaimNode(sharing=memory(unit=unit))
    capacity = node.device().capacities["memory"]
    try:
        wanted = {} if asked is None else {"memory": f"{asked}Gi"}
        taken: int | None = node.allocate(asked_for(**wanted)).devices[0].consumed["memory"]
    except AllocationError:
        taken = None
    assert consumed(None if asked is None else asked * GIB, capacity) == taken
