"""Tests of the driver limits that the daemon orders for containers, with an agent in the hands of the test."""

import dataclasses
from collections.abc import AsyncIterator, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.base.files.lock import lock
from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.driver_limits import DriverLimits, LimitRule
from gpushare_plugin.driver_limits.exchange import DriverLimitsRoot, DriverLimitsStatus, GpuStatus, LimitOrder
from gpushare_plugin.gpus.exchange import read_message, write_message
from gpushare_plugin.node.news.news import News
from gpushare_plugin.node.pods.limits import NodeLimits
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.node.promises import FollowedNode, a_pod, followed, in_api, path
from tests.nodes import a_gpu
from tests.unit.driver_limits.conftest import container_id
from tests.waiting import until

DRIVER = "sharing: {memory: {resources: [{name: aliyun.com/gpu-mem, isolation: driver}]}}\n"
REPLICAS = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4, isolation: driver}]}}\n"
UNLIMITED = REPLICAS.replace(", isolation: driver", "")
MORE = f"driverLimits: {{additionalMemory: 512MiB}}\n{DRIVER}"


@pytest.fixture
def root(short_path: Path) -> Iterator[DriverLimitsRoot]:
    """Return the root of an agent that has proven that both GPUs take limits."""
    root = DriverLimitsRoot(short_path / "driver-limits")
    root.path.mkdir()
    gpus = tuple(GpuStatus(uuid=a_gpu(index).uuid, proven=True) for index in range(2))
    write_message(root.status, DriverLimitsStatus(gpus=gpus))
    with lock(root.lock):
        yield root


@pytest.fixture
async def node(kubelet: EmbeddedKubelet, short_path: Path, root: DriverLimitsRoot) -> AsyncIterator[FollowedNode]:
    """Run a node of two GPUs of 8 GiB whose driver limits memory."""
    async with (
        ApiServer() as server,
        followed(server, kubelet, short_path, 8, 8, settings=DRIVER, limits_root=root.path) as node,
    ):
        yield node


def shown(pod: Pod, *numbers: int) -> dict[str, Any]:
    """Return a pod as the API server has it; the IDs of its containers, init containers first, have these numbers."""
    names = [each.name for each in (*pod.init_containers, *pod.containers)]
    statuses = [
        {"name": name, "containerID": f"containerd://{container_id(number)}"}
        for name, number in zip(names, numbers, strict=True)
    ]
    split = len(pod.init_containers)
    status = {"initContainerStatuses": statuses[:split], "containerStatuses": statuses[split:]}
    return in_api(pod) | {"status": {"phase": "Running", **status}}


def ordered(root: DriverLimitsRoot) -> dict[str, list[int | None]]:
    """Return the ordered hard limits in MiB, by the ID of the container."""
    order = read_message(root.wanted, LimitOrder) or LimitOrder()
    return {each.container_id: [gpu.hard_mib for gpu in each.gpus] for each in order.containers}


async def test_each_container_of_a_pod_has_limits_of_its_own(node: FollowedNode, root: DriverLimitsRoot) -> None:
    """Init containers count, too; a pod that is gone is no longer ordered."""
    pod = a_pod("pod", 2, 3, init=(1,))
    node.server.store.create(path(pod), shown(pod, 1, 2, 3))
    await node.kubelet.admit(pod)
    expected = {container_id(1): [1024], container_id(2): [2048], container_id(3): [3072]}
    await until(lambda: ordered(root) == expected, lambda: f"{ordered(root)}")
    node.server.store.delete(path(pod), pod.name)
    node.kubelet.delete(pod)
    await until(lambda: ordered(root) == {}, lambda: f"{ordered(root)}")


async def test_containers_of_a_static_pod_have_limits(node: FollowedNode, root: DriverLimitsRoot) -> None:
    """The kubelet runs a static pod by a UID of its own, which names the cgroup; the API server has a mirror pod."""
    pod, uid = a_pod("static", 2), "8f6a44fc62e8cb075753c843896568ca"
    mirror = shown(pod, 1)
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": uid, "kubernetes.io/config.source": "file"}
    node.server.store.create(path(pod), mirror)
    await node.kubelet.admit(dataclasses.replace(pod, uid=uid))
    await until(lambda: ordered(root) == {container_id(1): [2048]}, lambda: f"{ordered(root)}")
    order = read_message(root.wanted, LimitOrder)
    assert order is not None
    assert [each.pod_uid for each in order.containers] == [uid]


async def test_another_rule_counts_for_containers_that_start_later(node: FollowedNode, root: DriverLimitsRoot) -> None:
    """A container keeps the limits of its start, over a restart of the daemon, too; a restarted one has new limits."""
    pod = a_pod("pod", 2)
    node.server.store.create(path(pod), shown(pod, 1))
    await node.kubelet.admit(pod)
    await until(lambda: ordered(root) == {container_id(1): [2048]}, lambda: f"{ordered(root)}")
    await node.stop()
    node.settings = MORE
    await node.start()
    later = a_pod("later", 2)
    node.server.store.create(path(later), shown(later, 2))
    await node.kubelet.admit(later)
    expected = {container_id(1): [2048], container_id(2): [2560]}
    await until(lambda: ordered(root) == expected, lambda: f"{ordered(root)}")
    node.server.store.replace(path(pod), shown(pod, 3))
    expected = {container_id(3): [2560], container_id(2): [2560]}
    await until(lambda: ordered(root) == expected, lambda: f"{ordered(root)}")


async def test_a_config_without_limits_takes_no_limit_from_containers_that_run(
    kubelet: EmbeddedKubelet, short_path: Path, root: DriverLimitsRoot
) -> None:
    """While a GPU waits to leave the driver's limits, its containers keep theirs, and the proof and usage know them."""
    async with (
        ApiServer() as server,
        followed(server, kubelet, short_path, 8, 8, settings=REPLICAS, limits_root=root.path) as node,
    ):
        pods = [a_pod(name, 1, resource="nvidia.com/gpu") for name in ("first", "second")]
        for number, pod in enumerate(pods, start=1):
            server.store.create(path(pod), shown(pod, number))
            await kubelet.admit(pod)
        expected = {container_id(number): [2048] for number in (1, 2)}
        await until(lambda: ordered(root) == expected, lambda: f"{ordered(root)}")
        await node.configure(UNLIMITED)
        found = await until(lambda: node.usages({}))  # the kubelet's record counts once it stays the same
        assert [(each.limit, each.effect is not None) for each in found] == [(2048 * MIB, True)] * 2
        server.store.delete(path(pods[1]), "second")
        kubelet.delete(pods[1])
        await until(lambda: container_id(2) not in ordered(root), lambda: f"{ordered(root)}")
        assert ordered(root) == {container_id(1): [2048]}


def test_a_burst_needs_the_agent_beside_the_hook(tmp_path: Path) -> None:
    """Only the agent takes back a soft limit: GPUs with a burst cannot be allocated while no agent runs."""
    for rule, unlimited in ((LimitRule(), set()), (LimitRule(burst=Fraction(2)), {a_gpu(0).uuid})):
        limits = NodeLimits(tmp_path, lambda: None, News(), follows_pods=True)
        limits.want({a_gpu(0).uuid: rule}, DriverLimits(agent=True), [a_gpu(0).uuid])
        assert set(limits.unlimited) == unlimited


@pytest.mark.parametrize("follows_pods", [True, False])
def test_a_burst_on_one_gpu_ties_no_other_to_the_agent(tmp_path: Path, *, follows_pods: bool) -> None:
    """While no agent runs, a GPU whose limits the hook sets can be allocated, whatever another GPU of the node has."""
    limits = NodeLimits(tmp_path, lambda: None, News(), follows_pods=follows_pods)
    rules = {a_gpu(0).uuid: LimitRule(burst=Fraction(2)), a_gpu(1).uuid: LimitRule()}
    limits.want(rules, DriverLimits(agent=True), list(rules))
    assert set(limits.unlimited) == {a_gpu(0).uuid}


async def test_the_limit_of_a_share_is_none_of_a_whole_gpu_beside_the_share(
    kubelet: EmbeddedKubelet, short_path: Path, root: DriverLimitsRoot
) -> None:
    """The variables of a container are for all its GPUs, and say nothing of a GPU that the container has whole."""
    settings = DRIVER.replace("gpu-mem,", "gpu-mem, devices: [0],")
    async with (
        ApiServer() as server,
        followed(server, kubelet, short_path, 8, 8, settings=settings, limits_root=root.path) as node,
    ):
        pod = Pod("pod", [Container("main", {"aliyun.com/gpu-mem": 2, "nvidia.com/gpu": 1})])
        node.server.store.create(path(pod), shown(pod, 1))
        await node.kubelet.wait_for(lambda seen: seen.allocatable().get("nvidia.com/gpu") == 1)
        await node.kubelet.admit(pod)
        await until(lambda: ordered(root) == {container_id(1): [2048, None]}, lambda: f"{ordered(root)}")


def test_the_agent_is_told_of_bursts_until_the_node_starts_again(tmp_path: Path) -> None:
    """A container with a burst may end long after the config has no burst any more, also under another daemon."""
    root, uuid, told = DriverLimitsRoot(tmp_path / "driver-limits"), a_gpu(0).uuid, []
    without, burst = LimitRule(), LimitRule(burst=Fraction(2))
    for rules in ([without, burst, without], [without]):
        limits = NodeLimits(root.path, lambda: None, News(), follows_pods=True)
        for rule in rules:
            limits.want({uuid: rule, a_gpu(1).uuid: without}, DriverLimits(agent=True), [uuid])
            told.append((read_message(root.wanted, LimitOrder) or LimitOrder()).bursts)
    assert told == [(), (uuid,), (uuid,), (uuid,)]
