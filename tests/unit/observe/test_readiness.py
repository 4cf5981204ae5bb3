"""Tests of `gpushare_plugin.observe.readiness`: what makes a node not ready to share its GPUs."""

from gpushare_plugin.base.structs import replace
from gpushare_plugin.observe.readiness import readiness
from tests.nodes import a_gpu
from tests.snapshots import snapshot
from tests.unit.sharing.settings import memory

TWO = snapshot(memory(), 8192, 8192)
FIRST, SECOND = a_gpu(0).uuid, a_gpu(1).uuid


def said(given: object) -> tuple[str, str]:
    """Return status and reason."""
    return given.status, given.reason  # type: ignore[attr-defined]


def test_a_node_whose_gpus_can_all_be_allocated_is_ready() -> None:
    """Every GPU that is offered can be allocated."""
    found = readiness(TWO, [], [])
    assert (found.status, found.reason, found.message) == ("True", "GpusUsable", "2 of 2 GPUs can be allocated")


def test_a_node_with_one_usable_gpu_is_ready() -> None:
    """Though another GPU is faulty or cordoned; the message names that one."""
    faulty = readiness(replace(TWO, unhealthy={FIRST: "XID 79"}), [], [])
    assert said(faulty) == ("True", "SomeGpusUnusable")
    assert faulty.message == f"1 of 2 GPUs can be allocated; GPU 0 ({FIRST}): XID 79"
    assert said(readiness(replace(TWO, cordoned={SECOND: "cordoned"}), [], [])) == ("True", "SomeGpusUnusable")


def test_a_node_without_a_usable_gpu_is_not_ready() -> None:
    """Faults and cordons together take every GPU out."""
    found = readiness(replace(TWO, unhealthy={FIRST: "XID 79"}, cordoned={SECOND: "cordoned"}), [], [])
    assert said(found) == ("False", "NoUsableGpu")
    assert "XID 79" in found.message
    assert "cordoned" in found.message


def test_a_resource_that_is_not_registered_cannot_be_requested() -> None:
    """The kubelet does not know it."""
    found = readiness(TWO, ["aliyun.com/gpu-mem: not registered with the kubelet"], [])
    assert said(found) == ("False", "NotRegistered")
    assert found.message == "aliyun.com/gpu-mem: not registered with the kubelet"


def test_a_node_that_offers_nothing_is_not_ready() -> None:
    """A config that shares no GPU of this node offers nothing to request."""
    assert said(readiness(replace(TWO, resources=()), [], [])) == ("False", "NothingOffered")


def test_the_readiness_of_a_daemon_that_fails_is_unknown() -> None:
    """Whatever it offered before."""
    assert said(readiness(TWO, [], ["the driver was upgraded"])) == ("Unknown", "DaemonFailing")


def test_a_rejected_config_leaves_a_node_ready() -> None:
    """The config before it stays in effect, and pods get their GPUs."""
    assert said(readiness(replace(TWO, notices=("configuration rejected: x",)), [], [])) == ("True", "GpusUsable")


def test_a_node_whose_slices_are_not_made_yet_is_ready() -> None:
    """Slices are made once pods request them: a healthy node that waits for the first pod can share its GPUs."""
    waiting = replace(TWO, resources=(), partitioning="mps")
    assert said(readiness(waiting, [], [])) == ("True", "NoSlicesYet")
    one_left = replace(waiting, unhealthy={FIRST: "XID 79"})
    assert said(readiness(one_left, [], [])) == ("True", "NoSlicesYet")
    found = readiness(replace(one_left, unsuitable={SECOND: "MIG mode is on"}), [], [])
    assert said(found) == ("False", "NoUsableGpu")
    assert "MIG mode is on" in found.message
    assert said(readiness(replace(waiting, inventory=replace(TWO.inventory, cards=())), [], [])) == (
        "False",
        "NothingOffered",
    )


def test_gpus_without_slices_count_beside_those_with_slices() -> None:
    """A fault of the only GPU that has slices leaves the other, which can be divided for the next pod."""
    (resource,) = snapshot(memory(devices=[0]), 8192, 8192).resources[:1]
    divided = replace(TWO, resources=(resource,), partitioning="mps")
    assert readiness(divided, [], []).message == "2 of 2 GPUs can be allocated"
    assert said(readiness(replace(divided, unhealthy={FIRST: "XID 79"}), [], [])) == ("True", "SomeGpusUnusable")


def test_mps_that_serves_no_gpu_is_a_reason_of_its_own() -> None:
    """Nothing is wrong with the GPUs: what serves them has to be started, and the message says how."""
    reason = "not served by MPS: gpushare mps does not run on this node"
    unserved = replace(TWO, unhealthy={FIRST: reason, SECOND: reason}, unserved={FIRST: reason, SECOND: reason})
    found = readiness(unserved, [], [])
    assert said(found) == ("False", "MpsNotServing")
    assert reason in found.message
    assert said(readiness(replace(unserved, unserved={FIRST: reason}), [], [])) == ("False", "NoUsableGpu")
