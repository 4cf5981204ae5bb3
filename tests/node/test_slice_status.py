"""Tests of the slices in the status of a Node whose kubelet writes it only when a test has it do so.

A scheduler goes by that status alone.
"""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from gpushare_plugin.kubelet.allocations.trust import TrustDelays
from gpushare_plugin.testing.cluster.server import Refusal
from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from tests.clock import Clock
from tests.node.partitioned import SLICE, PartitionedNode, partitioned
from tests.nodes import a_node
from tests.unit.kube.cluster import NODE
from tests.waiting import until

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
async def node(kubelet: EmbeddedKubelet, short_path: Path) -> AsyncIterator[PartitionedNode]:
    """Return a node with one GPU of 40 GiB, whose pods are followed, and whose time stands still."""
    async with partitioned(kubelet, short_path, a_node(40960)) as made:
        made.follow_pods = True
        made.clock = Clock()
        yield made


def bind(node: PartitionedNode, name: str, size: str, phase: str = "Pending") -> None:
    """Create a pod that is bound to the node, as kube-scheduler leaves it."""
    container = {"name": "main", "resources": {"limits": {SLICE.format(size): "1"}}}
    body = {"metadata": {"name": name, "uid": name}, "spec": {"nodeName": NODE, "containers": [container]}}
    node.server.store.create(PODS, {**body, "status": {"phase": phase}})


async def later(node: PartitionedNode, seconds: float) -> None:
    """Let time go on for the daemon, and have it ask the kubelet what pods hold."""
    assert isinstance(node.clock, Clock)
    node.clock.now += seconds
    await (await node.served()).ask_kubelet()


async def hidden(node: PartitionedNode, *ids: str) -> None:
    """Wait until exactly these slices are withdrawn, and the daemon knows that its Node does not show them."""
    served = await node.served()
    expected = {f"00000000-{id_}" for id_ in ids}
    await until(lambda: served.withdrawals.hidden == expected, lambda: str(served.withdrawals.hidden))


async def is_followed(node: PartitionedNode, name: str) -> None:
    """Wait until the daemon has heard of a pod."""
    phase = node.serving
    assert phase.pods is not None
    watched = phase.pods.watched
    await until(lambda: any(pod.name == name for pod in watched.in_order))


@pytest.fixture
async def cut(node: PartitionedNode) -> PartitionedNode:
    """Return the node with two slices of 20gb, which it shows."""
    node.want({"20gb": 2})
    await node.start()
    await node.shows(_20gb=2)
    return node


async def test_slices_are_visible_as_soon_as_the_kubelet_confirms_them(
    node: PartitionedNode, kubelet: EmbeddedKubelet
) -> None:
    """The kubelet writes nothing here; and what it writes later is the same."""
    await node.start()
    node.want({"10gb": 2, "5gb": 1})
    await node.shows(_10gb=2, _5gb=1)
    assert {name: str(count) for name, count in kubelet.allocatable().items()} == {
        SLICE.format(size): count for size, count in node.allocatable.items()
    }
    node.tick()
    assert node.allocatable == {"10gb": "2", "5gb": "1"}


async def test_a_slice_is_hidden_before_it_is_retired(cut: PartitionedNode, kubelet: EmbeddedKubelet) -> None:
    """It can be allocated for a second more, which is when other slices come that need its room."""
    cut.want({"20gb": 1, "10gb": 2})
    await hidden(cut, "20gb-1")
    assert cut.allocatable == {"20gb": "1"}
    assert len(kubelet.healthy(SLICE.format("20gb"))) == 2
    await later(cut, 0.9)
    assert len(kubelet.healthy(SLICE.format("20gb"))) == 2
    await later(cut, 0.2)
    await kubelet.wait_for(lambda seen: len(seen.healthy(SLICE.format("20gb"))) == 1)
    assert len(kubelet.devices(SLICE.format("20gb"))) == 2
    await later(cut, 2.1)
    await cut.shows(_20gb=1, _10gb=2)


async def test_a_pod_bound_a_moment_ago_gets_a_withdrawn_slice(cut: PartitionedNode, kubelet: EmbeddedKubelet) -> None:
    """kube-scheduler had not seen yet that it goes: the pod is admitted, and keeps the slice."""
    cut.want({"10gb": 4})
    await hidden(cut, "20gb-0", "20gb-1")
    bind(cut, "late", "20gb")
    await is_followed(cut, "late")
    await later(cut, 5.0)
    assert len(kubelet.healthy(SLICE.format("20gb"))) == 2
    started = await cut.runs("20gb", "late")
    assert started.device_ids == {SLICE.format("20gb"): {"00000000-20gb-0"}}
    await later(cut, 2.1)
    await later(cut, 2.1)
    await cut.shows(_20gb=1, _10gb=2)
    assert kubelet.healthy(SLICE.format("20gb")) == {"00000000-20gb-0"}


async def test_a_pod_that_is_never_admitted_holds_a_slice_back_for_ten_seconds(
    cut: PartitionedNode, kubelet: EmbeddedKubelet
) -> None:
    """Pods that have ended, or ask for another size, hold nothing back."""
    bind(cut, "other", "5gb")
    bind(cut, "ended", "20gb", "Failed")
    bind(cut, "stuck", "20gb")
    await is_followed(cut, "stuck")
    cut.want({})
    await hidden(cut, "20gb-0", "20gb-1")
    await later(cut, 9.0)
    assert len(kubelet.healthy(SLICE.format("20gb"))) == 2
    await later(cut, 1.1)
    await kubelet.wait_for(lambda seen: not seen.healthy(SLICE.format("20gb")))


async def test_the_stale_number_of_the_kubelet_is_corrected(cut: PartitionedNode, kubelet: EmbeddedKubelet) -> None:
    """It counts a withdrawn slice, which is healthy. The second begins anew, since a pod may have been bound to it."""
    cut.want({"20gb": 1})
    await hidden(cut, "20gb-1")
    await later(cut, 0.9)
    cut.tick()
    await cut.shows(_20gb=1)
    await hidden(cut, "20gb-1")
    await later(cut, 0.9)
    assert len(kubelet.healthy(SLICE.format("20gb"))) == 2
    await later(cut, 0.2)
    await kubelet.wait_for(lambda seen: len(seen.healthy(SLICE.format("20gb"))) == 1)


async def test_a_withdrawn_slice_that_is_wanted_again_is_shown_again(
    cut: PartitionedNode, kubelet: EmbeddedKubelet
) -> None:
    """It was never unhealthy, and the kubelet was sent no other list."""
    lists = kubelet.devices(SLICE.format("20gb"))
    cut.want({"20gb": 1})
    await hidden(cut, "20gb-1")
    cut.want({"20gb": 2})
    await cut.shows(_20gb=2)
    await hidden(cut)
    await later(cut, 20.0)
    assert kubelet.devices(SLICE.format("20gb")) == lists
    assert cut.allocatable == {"20gb": "2"}


async def test_slices_that_fit_beside_a_withdrawn_slice_do_not_wait(cut: PartitionedNode) -> None:
    """Only the rest needs its room; the GPU never has slices of more than 40gb."""
    cut.want({"20gb": 1})
    await hidden(cut, "20gb-1")
    await later(cut, 1.1)
    await later(cut, 2.1)
    cut.want({"10gb": 3})
    await cut.shows(_10gb=2)
    await hidden(cut, "20gb-0")
    await later(cut, 1.1)
    await later(cut, 2.1)
    await cut.shows(_10gb=3)


async def test_a_daemon_that_starts_corrects_what_the_node_shows(
    cut: PartitionedNode, kubelet: EmbeddedKubelet
) -> None:
    """An idle slice that was wanted when it ended is gone from the Node at once, and for good after its time."""
    await cut.runs("20gb", "one")
    await cut.stop()
    assert cut.allocatable == {"20gb": "2"}
    cut.want({"10gb": 2})
    await cut.start()
    await cut.shows(_20gb=1)
    await hidden(cut, "20gb-1")
    assert kubelet.allocatable() == {SLICE.format("20gb"): 2}
    await later(cut, 1.1)
    await later(cut, 2.1)
    await cut.shows(_20gb=1, _10gb=2)
    assert kubelet.allocatable() == {SLICE.format("20gb"): 1, SLICE.format("10gb"): 2}


async def test_slices_go_although_the_kubelet_is_not_trusted_yet(node: PartitionedNode) -> None:
    """Its record shows what is free, with each question; what is withdrawn is not shown again in between."""
    node.trust_delays = TrustDelays(unknown=1e9)
    node.want({"20gb": 2})
    await node.start()
    await node.shows(_20gb=2)
    node.want({"20gb": 1, "10gb": 2})
    await hidden(node, "20gb-1")
    for _ in range(9):
        await later(node, 0.6)
        assert node.allocatable["20gb"] == "1"
    await node.shows(_20gb=1, _10gb=2)


async def test_a_node_that_cannot_be_written_retires_at_once(
    node: PartitionedNode, log: list[Mapping[str, object]]
) -> None:
    """As without a cluster: nobody would see that a slice is withdrawn. The log names what follows."""
    node.server.refusals.append(Refusal(403, "patch", resource="nodes/status"))
    node.want({"20gb": 2})
    await node.start()
    await node.offers(_20gb=2)
    await until(lambda: any("writes the status of this Node" in str(each.get("consequence")) for each in log))
    node.want({})
    await node.offers()
    assert node.allocatable == {}
