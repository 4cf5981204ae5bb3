"""Shares of GPUs by claim: what a container gets, in each way and with each isolation, and what comes back."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpushare_plugin.testing.claims import AllocationError
from tests.node.claims.node import claim_node

HAMI = "{memory: {resources: [{name: aliyun.com/gpu-mem, isolation: hami-core}]}}"
MPS = "{memory: {resources: [{name: aliyun.com/gpu-mem, isolation: mps}]}}"
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"

WAYS: Mapping[str, tuple[str, dict[str, str] | None, Mapping[str, str | None]]] = {
    "a share by memory": (HAMI, {"memory": "10Gi"}, {LIMIT: "10240m", "CUDA_DEVICE_SM_LIMIT": "12"}),
    "a share with percent": (
        HAMI, {"memory": "10Gi", "compute": "50"}, {LIMIT: "10240m", "CUDA_DEVICE_SM_LIMIT": "50"},
    ),
    "a share of which no size is asked": (HAMI, None, {LIMIT: "81920m"}),
    "a share under MPS": (
        MPS,
        {"memory": "10Gi"},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10240M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12"},
    ),
    "a replica in time slices": (
        "{timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4, isolation: hami-core}]}}",
        None,
        {LIMIT: "20480m"},
    ),
    "a replica under MPS": (
        "{mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}",
        None,
        {"CUDA_MPS_PIPE_DIRECTORY": "/mps/pipe"},
    ),
    "a slice under MPS": (
        "{mps: {sizes: [{slices: [{size: 10gb, count: 1}, {size: 20gb, count: 2}]}]}}",
        {"memory": "15Gi"},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M"},
    ),
    "a whole GPU": ("{}", None, {LIMIT: None}),
}  # fmt: skip
"""The config of `sharing`, what a claim asks for, and variables of the container."""


@pytest.mark.parametrize("way", WAYS)
async def test_a_container_has_exactly_its_share(short_path: Path, way: str) -> None:
    """The variables come from the CDI device of the claim; the env of the pod changes none; nothing is left over."""
    sharing, capacity, expected = WAYS[way]
    async with claim_node(short_path) as node, node.serving(sharing, mps="mps" in sharing) as daemon:
        (device,) = await node.devices(daemon, 1)
        assert device.get("allowMultipleAllocations", False) is ("whole" not in way)
        pod = node.pod("pod", capacity)
        node.scheduler.schedule(pod)
        started = (await node.kubelet.admit(pod)).containers["main"]
        own = dict.fromkeys(expected, "the pod's")
        found = node.environment_of(started, own)
        assert {name: found[name] for name in expected} == {
            name: "the pod's" if value is None else value for name, value in expected.items()
        }
        assert found["NVIDIA_VISIBLE_DEVICES"] == node.nvml.gpus[0].uuid
        await node.kubelet.end(pod)
        assert node.left == set()


async def test_shares_fit_until_the_gpu_is_full_and_come_back(short_path: Path) -> None:
    """A claim for more than is left is not allocated, and gets its share once another one has ended."""
    async with claim_node(short_path) as node, node.serving(HAMI) as daemon:
        await node.devices(daemon, 1)
        first, second = node.pod("first", {"memory": "10Gi"}), node.pod("second", {"memory": "71Gi"})
        node.scheduler.schedule(first)
        with pytest.raises(AllocationError):
            node.scheduler.schedule(second)
        await node.kubelet.admit(first)
        await node.kubelet.end(first)
        node.scheduler.release(first)
        node.scheduler.schedule(second)
        await node.kubelet.admit(second)


async def test_two_containers_on_one_card_have_two_limits(short_path: Path) -> None:
    """Each container names its request, and gets the limit of that alone."""
    async with claim_node(short_path) as node, node.serving(HAMI) as daemon:
        await node.devices(daemon, 1)
        pod = node.pod_of_requests("pod", {"small": "10Gi", "large": "20Gi"})
        node.scheduler.schedule(pod)
        started = (await node.kubelet.admit(pod)).containers
        assert {name: node.environment_of(each)[LIMIT] for name, each in started.items()} == {
            "small": "10240m",
            "large": "20480m",
        }


async def test_memory_promised_twice_waits_for_the_container_that_will_not_die(short_path: Path) -> None:
    """A forced deletion frees the memory in the API only: the next pod waits, is refused in words, and runs at last."""
    async with claim_node(short_path) as node, node.serving(HAMI) as daemon:
        await node.devices(daemon, 1)
        first, second = node.pod("first", {"memory": "70Gi"}), node.pod("second", {"memory": "70Gi"})
        node.scheduler.schedule(first)
        await node.kubelet.admit(first)
        node.scheduler.release(first)
        node.scheduler.schedule(second)
        refusal = await node.refused(second)
        assert "default/first" in refusal
        await daemon.logged("claim_refused", kind="no-room")
        await node.kubelet.end(first)
        await node.kubelet.admit(second)


async def test_what_became_of_a_claim_is_in_its_status(short_path: Path) -> None:
    """People who read the claim see GPU and limit."""
    async with claim_node(short_path) as node, node.serving(HAMI) as daemon:
        await node.devices(daemon, 1)
        pod = node.pod("pod", {"memory": "10Gi"})
        node.scheduler.schedule(pod)
        await node.kubelet.admit(pod)
        await daemon.until(lambda: node.claim(pod)["status"].get("devices"), "the status of the claim")
        (entry,) = node.claim(pod)["status"]["devices"]
        assert entry["data"]["uuid"] == node.nvml.gpus[0].uuid
        assert entry["data"]["limit"] == {"memory": "10Gi", "compute": 12}
