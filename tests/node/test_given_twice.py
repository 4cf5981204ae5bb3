"""No unit is given twice where somebody lists pod-resources while the kubelet allocates."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from itertools import count

import pytest

from gpushare_plugin.core.recent import RecentAllocations
from gpushare_plugin.kubelet.allocations.pod_resources import list_pods
from gpushare_plugin.kubelet.allocations.quiet import QuietLister
from gpushare_plugin.kubelet.allocations.reader import READ_EVERY, HoldingsReader
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.unit.kubelet.serving import running, shared_memory
from tests.waiting import PATIENCE, until

RESOURCE = "aliyun.com/gpu-mem"


def pod(name: str, units: int) -> Pod:
    """Return a pod that asks for units of memory."""
    return Pod(name, [Container("main", {RESOURCE: units})])


@pytest.fixture
def recent() -> RecentAllocations:
    """Return what the node remembers."""
    return RecentAllocations()


@pytest.fixture
async def kubelet(kubelet: EmbeddedKubelet, recent: RecentAllocations) -> AsyncIterator[EmbeddedKubelet]:
    """Run a kubelet with two GPUs of 8 units."""
    async with running(kubelet.plugin_directory, shared_memory(8, 8), recent=recent):
        await kubelet.wait_for(lambda view: view.allocatable().get(RESOURCE) == 16)
        yield kubelet


async def admitted(kubelet: EmbeddedKubelet, name: str, units: int) -> frozenset[str]:
    """Admit a pod, and return the IDs that it has."""
    return (await kubelet.admit(pod(name, units))).containers["main"].device_ids[RESOURCE]


async def lost(kubelet: EmbeddedKubelet, units: int) -> frozenset[str]:
    """Admit a pod whose units the kubelet does not count: another ended meanwhile, and pod-resources was listed."""
    ending = pod("ending", 1)
    await kubelet.admit(ending)
    before = kubelet.calls["Allocate"]
    async with asyncio.TaskGroup() as group, kubelet.before_recording():
        admission = group.create_task(admitted(kubelet, "lost", units))
        await kubelet.wait_for(lambda view: view.calls["Allocate"] > before)
        kubelet.delete(ending)
        await list_pods(kubelet.pod_resources_socket)
    held = await admission
    assert held <= kubelet.held(RESOURCE)
    assert not held & kubelet.allocated(RESOURCE)
    return held


async def test_units_that_the_kubelet_does_not_count_are_not_given_again(kubelet: EmbeddedKubelet) -> None:
    """The kubelet offers them as available; while there are others, no pod gets them."""
    held = await lost(kubelet, 3)
    for name in ("a", "b"):
        more = await admitted(kubelet, name, 3)
        assert not held & more
        held |= more


async def test_a_pod_is_admitted_nevertheless_where_no_other_units_are_left(kubelet: EmbeddedKubelet) -> None:
    """Only the kubelet knows for certain what is free: what it offers is used, other units first."""
    held = await lost(kubelet, 3)
    await admitted(kubelet, "a", 8)
    last = await admitted(kubelet, "b", 6)
    assert len(last - held) == 5


async def test_units_of_a_pod_that_ended_are_given_again(kubelet: EmbeddedKubelet, recent: RecentAllocations) -> None:
    """Once it was read that nobody holds them, they are as good as others."""
    ended = pod("ended", 3)
    before = (await kubelet.admit(ended)).containers["main"].device_ids[RESOURCE]
    minutes = partial(next, count(step=READ_EVERY))
    reader = HoldingsReader(kubelet.plugin_directory, kubelet.pod_resources_socket, minutes, recent)
    await reader.read()
    kubelet.delete(ended)
    await reader.read()
    assert await admitted(kubelet, "next", 3) == before


async def test_the_daemon_does_not_list_while_the_kubelet_allocates(
    kubelet: EmbeddedKubelet, recent: RecentAllocations
) -> None:
    """It waits until the checkpoint shows what was allocated, so its list shows that, too."""
    lister = QuietLister(kubelet.plugin_directory, kubelet.pod_resources_socket, recent, PATIENCE)
    await admitted(kubelet, "first", 1)
    async with asyncio.TaskGroup() as group:
        async with kubelet.before_recording():
            admission = group.create_task(admitted(kubelet, "second", 2))
            await until(lambda: len(recent.unwritten) == 2)
            listing = group.create_task(lister.list())
        second = await admission
    assert second in {each.ids for each in (await listing).holdings}


async def test_a_list_waits_for_the_checkpoint_only_so_long(
    kubelet: EmbeddedKubelet, recent: RecentAllocations
) -> None:
    """An allocation that another plugin refuses is never written there: after a while, the kubelet is asked."""
    await admitted(kubelet, "first", 1)
    recent.allocated(RESOURCE, ["never-written"])
    lister = QuietLister(kubelet.plugin_directory, kubelet.pod_resources_socket, recent, 0.01)
    assert len((await lister.list()).holdings) == 1
    assert not recent.unwritten


async def test_a_resource_is_known_to_be_served_while_its_plugin_is_there(
    kubelet: EmbeddedKubelet, recent: RecentAllocations
) -> None:
    """Whatever pods hold of it; without an answer of the kubelet, nothing is known."""
    reader = HoldingsReader(kubelet.plugin_directory, kubelet.pod_resources_socket, recent=recent)
    await admitted(kubelet, "first", 1)
    assert await reader.healthy() == frozenset({RESOURCE})
    await kubelet.stop()
    assert await reader.healthy() is None
