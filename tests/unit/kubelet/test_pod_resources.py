"""Tests of `gpushare_plugin.kubelet.allocations.pod_resources`, against an embedded kubelet."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.holding import Holding, claimed_device_id
from gpushare_plugin.kubelet.allocations.pod_resources import PodResourcesError, healthy_devices, list_pods
from gpushare_plugin.kubelet.api import podresources_pb2 as api
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.kubelet.pod_resources import BURST
from tests.unit.kubelet.serving import answering_bytes, running, shared_memory

GPU_MEM = "aliyun.com/gpu-mem"


@asynccontextmanager
async def answering(folder: Path, *pods: api.PodResources) -> AsyncIterator[Path]:
    """Serve these pods and yield the socket."""
    async with answering_bytes(folder, api.ListPodResourcesResponse(pod_resources=pods).SerializeToString()) as socket:
        yield socket


async def test_every_container_that_holds_units_is_listed(kubelet: EmbeddedKubelet) -> None:
    """Each has all of its units, and a pod that is over holds nothing."""
    async with running(kubelet.plugin_directory, shared_memory(8)):
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 8)
        pod = Pod(
            "pod",
            [Container("one", {GPU_MEM: 3}), Container("none"), Container("two", {GPU_MEM: 1})],
            [Container("sidecar", {GPU_MEM: 2}, restartable=True)],
            namespace="team",
        )
        admitted = await kubelet.admit(pod)
        held = {name: each.device_ids.get(GPU_MEM, frozenset()) for name, each in admitted.containers.items()}
        holdings = (await list_pods(kubelet.pod_resources_socket)).holdings
        assert {len(ids) for ids in held.values()} == {0, 1, 2, 3}
        assert sorted(holdings, key=lambda holding: holding.container) == [
            Holding("team", "pod", name, GPU_MEM, held[name]) for name in ("one", "sidecar", "two")
        ]
        kubelet.delete(pod)
        assert (await list_pods(kubelet.pod_resources_socket)).holdings == ()


async def test_healthy_devices_can_be_allocated_or_are_held(kubelet: EmbeddedKubelet) -> None:
    """Devices that pods hold are among them, those of a failed GPU are not; and the question frees nothing."""
    resource = shared_memory(8)
    async with running(kubelet.plugin_directory, resource) as (session,):
        await kubelet.wait_for(lambda node: node.allocatable().get(GPU_MEM) == 8)
        pod = Pod("pod", [Container("one", {GPU_MEM: 3})])
        await kubelet.admit(pod)
        assert await healthy_devices(kubelet.pod_resources_socket) == {GPU_MEM: frozenset(resource.units)}
        kubelet.delete(pod)
        assert len(kubelet.allocated(GPU_MEM)) == 3
        await healthy_devices(kubelet.pod_resources_socket)
        assert len(kubelet.allocated(GPU_MEM)) == 3
        session.replace(replace(resource, unhealthy=dict.fromkeys(resource.gpus, "failed")))
        await kubelet.wait_for(lambda node: node.allocatable() == {GPU_MEM: 0})
        assert (await healthy_devices(kubelet.pod_resources_socket)).get(GPU_MEM, frozenset()) == frozenset()


async def test_a_kubelet_that_cannot_say_what_is_healthy_is_named(short_path: Path) -> None:
    """The error says which socket, and what was asked."""
    with pytest.raises(PodResourcesError, match=r"kubelet.sock does not exist: no kubelet"):
        await healthy_devices(short_path / "kubelet.sock")
    async with answering(short_path) as socket:
        with pytest.raises(PodResourcesError, match=r"cannot report which devices are healthy: UNIMPLEMENTED"):
            await healthy_devices(socket)


async def test_a_unit_that_is_listed_twice_counts_once(short_path: Path) -> None:
    """The kubelet lists a device once for each of its NUMA nodes, and a resource in many entries."""
    devices = [
        api.ContainerDevices(resource_name=name, device_ids=ids)
        for name, ids in (("a/b", ["1"]), ("a/b", ["1"]), ("a/b", ["2", "3"]), ("a/c", ["1"]))
    ]
    pod = api.PodResources(name="p", namespace="n", containers=[api.ContainerResources(name="c", devices=devices)])
    async with answering(short_path, pod) as socket:
        holdings = (await list_pods(socket)).holdings
    assert holdings == (Holding("n", "p", "c", "a/b", frozenset("123")), Holding("n", "p", "c", "a/c", frozenset("1")))


async def test_an_answer_can_be_longer_than_grpc_takes_by_default(short_path: Path) -> None:
    """A node full of pods has that much to tell."""
    ids = [f"{number:0100}" for number in range(100_000)]
    devices = [api.ContainerDevices(resource_name="a/b", device_ids=ids)]
    pod = api.PodResources(name="p", namespace="n", containers=[api.ContainerResources(name="c", devices=devices)])
    assert pod.ByteSize() > 8 * 1024 * 1024
    async with answering(short_path, pod) as socket:
        (holding,) = (await list_pods(socket)).holdings
    assert holding.ids == frozenset(ids)


@pytest.mark.parametrize("answer", [b"\xff\xff\xff", b"\x0a\x04\x0a\x02\xff\xfe"])
async def test_an_answer_that_is_no_message_is_told_in_words(
    short_path: Path, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that are no message, and names that are no text, are one error with words, and nothing else is printed."""
    async with answering_bytes(short_path, answer) as socket:
        with pytest.raises(PodResourcesError, match=f"{socket} returned an answer that is not a list of pods"):
            await list_pods(socket)
    # The thread of gRPC may still call the closed event loop of an earlier test, whose record is not of this answer.
    assert [each for each in caplog.records if "PollerCompletionQueue" not in each.getMessage()] == []


async def test_a_missing_socket_is_told_as_such(short_path: Path) -> None:
    """Where there is no kubelet the message says what is missing."""
    with pytest.raises(PodResourcesError, match=r"kubelet\.sock does not exist: no kubelet on this machine"):
        await list_pods(short_path / "kubelet.sock")


async def test_a_dead_socket_is_told_as_such(kubelet: EmbeddedKubelet) -> None:
    """A kubelet that was killed leaves its socket, which does not answer."""
    await kubelet.stop(graceful=False)
    with pytest.raises(PodResourcesError, match="UNAVAILABLE"):
        await list_pods(kubelet.pod_resources_socket)


async def test_a_kubelet_that_is_asked_too_often_says_so(short_path: Path) -> None:
    """The kubelet's own words reach the caller."""
    async with EmbeddedKubelet(short_path, clock=lambda: 0.0) as kubelet:
        for _ in range(int(BURST)):
            assert (await list_pods(kubelet.pod_resources_socket)).holdings == ()
        with pytest.raises(PodResourcesError, match="RESOURCE_EXHAUSTED: rejected by rate limit"):
            await list_pods(kubelet.pod_resources_socket)


async def test_a_claim_of_a_container_has_the_devices_of_all_dra_drivers(short_path: Path) -> None:
    """A share is not another share of the same device, and a device that is listed twice counts once."""
    devices = [
        api.ClaimResource(driver_name="gpu.example.com", pool_name="node", device_name="gpu-0", share_id="a"),
        api.ClaimResource(driver_name="gpu.example.com", pool_name="node", device_name="gpu-0", share_id="a"),
        api.ClaimResource(driver_name="net.example.com", pool_name="node", device_name="eth0"),
    ]
    claims = [api.DynamicResource(claim_name="gpu", claim_namespace="n", claim_resources=devices)]
    container = api.ContainerResources(name="c", dynamic_resources=claims)
    async with answering(short_path, api.PodResources(name="p", namespace="n", containers=[container])) as socket:
        listing = await list_pods(socket)
    assert listing.holdings == ()
    ids = frozenset(
        {
            claimed_device_id("gpu.example.com", "node", "gpu-0", "a"),
            claimed_device_id("net.example.com", "node", "eth0", None),
        }
    )
    assert listing.claims == (Holding("n", "p", "c", "claim:gpu", ids),)
