"""Tests of `gpushare_plugin.claims.strangers`: who seems to use a claim that was prepared for others."""

import pytest

from gpushare_plugin.claims.strangers import strangers
from gpushare_plugin.core.prepared_claim import PreparedDevice
from gpushare_plugin.core.usage import ContainerUsage, GpuUsage, Owner, Process, Usage
from tests.snapshots import snapshot
from tests.unit.core.claimed import claim, device
from tests.unit.sharing.settings import memory

NODE = snapshot(memory(isolation="mps"), 8192, 8192, dra={})
MINE, OTHER = device(NODE, 2048, request="mine"), device(NODE, 2048, request="other", gpu=1)
CLAIMS = (claim("mine", MINE, users=("a",)), claim("other", OTHER, users=("b",)))
OF_MINE, OF_OTHER = (each.id.uid for each in CLAIMS)


def use(pod: str, uid: str, held: PreparedDevice) -> ContainerUsage:
    """Return the usage of a container that holds a device."""
    return ContainerUsage("default", pod, "main", uid, held.gpu, "claim:mine", 1, claimed=(held,))


def gpu(held: PreparedDevice, *uids: str, program: str = "python") -> GpuUsage:
    """Return the usage of the GPU of a device, with a process of each pod."""
    return GpuUsage(held.gpu, processes=tuple(Process(7, program, owner=Owner(uid)) for uid in uids))


HOLDERS = (use("a", "uid-a", MINE), use("b", "uid-b", OTHER))


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (Usage((gpu(MINE, "uid-a"), gpu(OTHER, "uid-b", "")), HOLDERS), {}),
        (Usage((gpu(MINE, "uid-a", "uid-c"),), HOLDERS), {OF_MINE: {"uid-c"}}),
        (Usage((gpu(MINE, "uid-b"),), HOLDERS), {OF_MINE: {"uid-b"}}),
        (Usage((), (*HOLDERS, use("c", "", OTHER))), {OF_OTHER: {"default/c"}}),
        (Usage((), (*HOLDERS, use("c", "uid-c", OTHER))), {OF_OTHER: {"default/c"}}),
        (Usage((gpu(MINE, "uid-of-mps", program="nvidia-cuda-mps"),), HOLDERS), {}),
        (Usage((GpuUsage(MINE.gpu, processes=None),), HOLDERS), {}),
    ],
    ids=[
        "all are known",
        "a process",
        "a pod of another GPU",
        "a container",
        "a container of a followed pod",
        "the server of MPS",
        "nothing is known",
    ],
)
def test_who_is_not_known_to_have_a_claim(usage: Usage, expected: dict[str, set[str]]) -> None:
    """By the container that the kubelet shows, or by a process on the GPU; processes of the host are nobody's."""
    assert strangers(CLAIMS, usage) == expected
