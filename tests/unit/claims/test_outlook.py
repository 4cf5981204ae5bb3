"""What people read of the claims of a pod: as kube-scheduler would decide by capacities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.asked import AskedDevice, PodClaim
from gpushare_plugin.claims.claim import AllocatedDevice
from gpushare_plugin.claims.cluster import GpuForClaims, HeldByClaim, HeldGpu
from gpushare_plugin.claims.device import Capacity, Device, DeviceTaint
from gpushare_plugin.claims.outlook import claims_verdict, consumed, outlook
from gpushare_plugin.core.prepared_claim import ClaimId
from gpushare_plugin.testing.claims import AllocationError
from tests.unit.claims.node import DRIVER, GIB, NODE, ClaimNode
from tests.unit.claims.node import request as asked_for
from tests.unit.sharing.settings import memory

SHARED = Device(
    "gpu-0",
    "GPU-0",
    shared=True,
    capacities={
        "memory": Capacity(40 * GIB, "bytes", default=40 * GIB, least=GIB, step=GIB),
        "compute": Capacity(100, default=0, least=0, step=1),
    },
)
WHOLE = Device("gpu-1", "GPU-1", shared=False, capacities={"memory": Capacity(40 * GIB, "bytes")})


def held(device: Device, *amounts: dict[str, int]) -> HeldGpu:
    """Return a GPU of which the claim team/other has these amounts, once for each."""
    other = ClaimId("team", "other", "uid")
    claims = (HeldByClaim(DRIVER, other, AllocatedDevice("gpu", NODE, device.name, consumed=each)) for each in amounts)
    return HeldGpu(GpuForClaims(DRIVER, NODE, device), tuple(claims))


def said(asked: AskedDevice, *gpus: HeldGpu) -> list[str]:
    """Return what is said of a claim with one request that is not allocated."""
    return list(outlook([PodClaim("team/mine", (asked,))], gpus))


@pytest.mark.parametrize(
    ("amounts", "reason"),
    [
        ({"memory": 10 * GIB}, "9216 MiB of 40960 MiB memory free, 10240 MiB wanted; held by team/other"),
        ({"memory": 9 * GIB}, "has room"),
        ({}, "9216 MiB of 40960 MiB memory free, 40960 MiB wanted; held by team/other"),
        ({"memory": 9 * GIB, "compute": 50}, "40 of 100 compute free, 50 wanted; held by team/other"),
        ({"memory": 41 * GIB}, "no claim can have 41984 MiB of memory there"),
        ({"memory": 41 * GIB + 10}, f"no claim can have {41 * GIB + 10} bytes of memory there"),
        ({"cores": 1}, "has no capacity cores"),
    ],
)
def test_each_gpu_says_why_a_request_does_not_fit(amounts: dict[str, int], reason: str) -> None:
    """What is free, what is wanted, and who has the rest; a capacity that the GPU lacks is named."""
    taken = held(SHARED, {"memory": 31 * GIB, "compute": 60})
    head, request, *lines = said(AskedDevice("gpu", "shares", amounts), taken)
    assert head == "Claim team/mine: not allocated"
    assert request.startswith("  Request gpu of DeviceClass shares: ")
    assert [line for line in lines if line.startswith("    node ")] == [f"    node gpu-0: {reason}"]


def test_a_whole_gpu_is_free_or_not() -> None:
    """The size that a request names is a filter there; a taint closes any GPU."""
    asked = AskedDevice("gpu", "whole", {"memory": GIB})
    assert said(asked, held(WHOLE))[2] == "    node gpu-1: has room"
    assert said(asked, held(WHOLE, {}))[3] == "    node gpu-1: is whole, and team/other has it"
    tainted = replace(WHOLE, taints=(DeviceTaint("gpushare/fault", "", "NoSchedule"),))
    assert said(asked, held(tainted))[3] == "    node gpu-1: has the taint gpushare/fault"


def test_a_claim_that_is_allocated_or_unknown_says_so() -> None:
    """Where the GPUs are, or why the claim cannot be read."""
    claims = [
        PodClaim("team/mine", allocated=((DRIVER, NODE, "gpu-0"),)),
        PodClaim("team/gone", unknown="does not exist"),
    ]
    assert list(outlook(claims, [])) == [
        "Claim team/mine: allocated: gpu-0 of node",
        "Claim team/gone: does not exist",
    ]


TAINTED = replace(WHOLE, name="gpu-2", taints=(DeviceTaint("gpushare/fault", "", "NoSchedule"),))


@pytest.mark.parametrize(
    ("amounts", "gpus", "verdict"),
    [
        ({}, [held(TAINTED)], "Every GPU has a taint, which keeps claims away until the reason is gone"),
        (
            {"memory": 41 * GIB},
            [held(SHARED), held(replace(WHOLE, capacities={"memory": Capacity(30 * GIB, "bytes")}))],
            "No GPU without a taint has more than 40960 MiB of memory; ask for that at most",
        ),
        ({"cores": 1}, [held(SHARED)], "No GPU without a taint has a capacity cores; leave cores out of the request"),
        (
            {"memory": 20 * GIB},
            [held(SHARED, {"memory": 30 * GIB}), held(TAINTED)],
            "No GPU has room now; the request fits when the claims that hold GPUs have ended",
        ),
    ],
)
def test_what_keeps_a_request_from_all_gpus_comes_first(
    amounts: dict[str, int], gpus: list[HeldGpu], verdict: str
) -> None:
    """Of a thousand GPUs nobody reads the lines; where one has room there is no such sentence."""
    asked = AskedDevice("gpu", "shares", amounts)
    assert said(asked, *gpus)[2] == f"    {verdict}"
    assert f"    {verdict}" not in said(AskedDevice("gpu", "shares", {"memory": GIB}), held(SHARED))


def test_a_missing_device_class_is_all_there_is_to_say() -> None:
    """Whatever GPUs there are: kube-scheduler looks at none of them."""
    assert said(AskedDevice("gpu", "shared.gpu", no_class=True), held(WHOLE))[2:] == [
        "    There is no DeviceClass shared.gpu: `kubectl get deviceclasses` lists those that exist"
    ]


def test_an_allocated_gpu_that_no_node_offers_is_named() -> None:
    """The node's driver is away, or the GPU is no more given by claim: the pod waits for that."""
    place = (DRIVER, NODE, "gpu-0")
    head, *lines = outlook([PodClaim("team/mine", allocated=(place,), gone=(place,))], [])
    assert head == "Claim team/mine: allocated: gpu-0 of node"
    assert lines[0] == f"  No ResourceSlice has gpu-0 now: the DRA driver {DRIVER} does not run on node, or no more"


def test_many_gpus_are_counted() -> None:
    """The answer stays short on a cluster with many GPUs, and says where there is room nevertheless."""
    gpus = [held(replace(WHOLE, name=f"gpu-{number}")) for number in range(30)]
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


@pytest.mark.parametrize(
    ("claim", "gpus", "verdict"),
    [
        (PodClaim("team/a", unknown="does not exist"), [held(SHARED)], "Claim team/a: does not exist"),
        (
            PodClaim("team/a", allocated=((DRIVER, NODE, "gpu-0"),), gone=((DRIVER, NODE, "gpu-0"),)),
            [],
            "A GPU that claim team/a was allocated is in no ResourceSlice now",
        ),
        (PodClaim("team/a", allocated=((DRIVER, NODE, "gpu-0"),)), [], "All claims of the pod are allocated"),
        (PodClaim("team/a", (AskedDevice("gpu", "x", no_class=True),)), [held(SHARED)], "There is no DeviceClass x"),
        (
            PodClaim("team/a", (AskedDevice("gpu", "x"),)),
            [],
            "No ResourceSlice has a GPU that gpushare gives by claim",
        ),
        (
            PodClaim("team/a", (AskedDevice("gpu", "x", {"memory": 50 * GIB}),)),
            [held(SHARED)],
            "No GPU without a taint has more than 40960 MiB of memory; ask for that at most",
        ),
        (
            PodClaim("team/a", (AskedDevice("gpu", "x", {"memory": GIB}, count=2),)),
            [held(SHARED)],
            "Request gpu is for 2 GPUs, and 1 have room now",
        ),
        (
            PodClaim("team/a", (AskedDevice("gpu", "x", {"memory": GIB}),)),
            [held(SHARED)],
            "GPUs have room for the claims of the pod, which waits for another reason of kube-scheduler",
        ),
    ],
)
def test_claims_have_a_verdict_in_one_sentence(claim: PodClaim, gpus: list[HeldGpu], verdict: str) -> None:
    """What keeps the pod waiting comes before what is well."""
    assert claims_verdict([PodClaim("team/b", allocated=()), claim], gpus) == verdict
