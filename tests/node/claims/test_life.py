"""Claims while daemon, kubelet, config and GPUs change."""

import json
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gpushare_plugin.kube.names import UNHEALTHY_GPUS
from gpushare_plugin.kubelet.claim_files import GIVEN_BY_CLAIM, GIVEN_VERSION
from gpushare_plugin.testing.cluster.dra.gates import Gates
from gpushare_plugin.testing.kubelet import Container, Pod
from gpushare_plugin.testing.nvml import FakeGpu
from tests.node.claims.node import CARD, DRIVER, SLICES, claim_node
from tests.unit.kube.cluster import annotate

HAMI = "{memory: {resources: [{name: aliyun.com/gpu-mem, isolation: hami-core}]}}"
GPU_MEM = "aliyun.com/gpu-mem"
SHARING = {"way": "memory", "isolation": "mps"}


async def test_a_daemon_that_is_killed_and_starts_again_serves_the_same_claims(short_path: Path) -> None:
    """No ResourceSlice is written, a prepared claim stays prepared, and is given back to the daemon that came later."""
    async with claim_node(short_path) as node:
        pod = node.pod("pod", {"memory": "10Gi"})
        async with node.serving(HAMI) as daemon:
            await node.devices(daemon, 1)
            node.scheduler.schedule(pod)
            before = (await node.kubelet.admit(pod)).containers["main"]
            daemon.process.kill()
            await daemon.ended()
        asked = len(node.server.asked)
        async with node.daemon() as daemon:
            await daemon.logged("dra_plugin_registered")
            await node.kubelet.wait_for(lambda kubelet: DRIVER in kubelet.connected_drivers)
            after = await node.kubelet.restart_container(pod, "main")
            assert node.environment_of(after) == node.environment_of(before)
            other = node.pod("other", {"memory": "71Gi"})
            node.scheduler.release(pod)
            node.scheduler.schedule(other)
            assert "default/pod" in await node.refused(other)
            await node.kubelet.end(pod)
            await node.kubelet.admit(other)
        verbs = {each.verb for each in node.server.asked[asked:] if each.resource == "resourceslices"}
        assert verbs <= {"list", "watch", "get"}


async def test_resource_slices_are_back_after_the_wipe_of_a_kubelet(short_path: Path) -> None:
    """A kubelet that starts deletes them, and has claims prepared again with the same answer."""
    async with claim_node(short_path) as node, node.serving(HAMI) as daemon:
        await node.devices(daemon, 1)
        pod = node.pod("pod", {"memory": "10Gi"})
        node.scheduler.schedule(pod)
        before = (await node.kubelet.admit(pod)).containers["main"]
        await node.kubelet.restart()
        await daemon.logged("dra_plugin_registered", times=2)
        await node.devices(daemon, 1)
        await node.kubelet.wait_for(lambda kubelet: DRIVER in kubelet.connected_drivers)
        after = (await node.kubelet.admit(pod)).containers["main"]
        assert node.environment_of(after) == node.environment_of(before)
        await node.kubelet.end(pod)
        assert node.left == set()


async def test_the_node_says_why_claims_get_no_gpu(short_path: Path) -> None:
    """An API server whose gate is off drops what makes a GPU shared: nothing else than Events tells people of that."""
    async with claim_node(short_path) as node:
        node.server.dra.gates = Gates.of("1.35")
        node.configure(HAMI)
        async with node.daemon("--events", "true") as daemon:
            await daemon.until(lambda: len(node.events) == 2, "two Events of the Node")
            given, missing = sorted(node.events.items())
            assert given == ("GpusGivenByClaim", f"{node.nvml.gpus[0].uuid}: given by claim from now on")
            assert missing[0] == "GpusNotOfferedToClaims"
            assert "turn the feature gate DRAConsumableCapacity on" in missing[1]


async def test_a_cordon_and_a_fault_are_taints_that_go_away(short_path: Path) -> None:
    """No further claim gets the GPU meanwhile; the kubelet shows the fault at the pods that have the GPU."""
    async with claim_node(short_path) as node, node.serving(HAMI) as daemon:
        await node.devices(daemon, 1)
        pod = node.pod("pod", {"memory": "10Gi"})
        node.scheduler.schedule(pod)
        await node.kubelet.admit(pod)
        annotate(node.server, UNHEALTHY_GPUS, "0")
        await daemon.until(lambda: not node.free, "the taint of the cordon")
        assert [each["key"] for each in node.published[0]["taints"]] == ["gpushare/cordoned"]
        annotate(node.server, UNHEALTHY_GPUS, None)
        await node.devices(daemon, 1)
        node.nvml.raise_event(0, data=79)
        await daemon.until(lambda: not node.free, "the taint of the fault")
        assert [each["key"] for each in node.published[0]["taints"]] == ["gpushare/fault"]
        await node.kubelet.wait_for(lambda kubelet: "Unhealthy" in str(kubelet.health(pod, "main")))


@pytest.mark.parametrize(
    ("version", "in_cluster"), [(GIVEN_VERSION, False), (GIVEN_VERSION + 1, False), (GIVEN_VERSION + 1, True)]
)
async def test_a_gpu_of_claims_is_never_offered_as_units(short_path: Path, version: int, *, in_cluster: bool) -> None:
    """Whether or not the daemon can serve claims, or knows the version of the file; people are told why."""
    card = FakeGpu(memory_mib=40960, reserved_mib=0)
    async with claim_node(short_path, card, card) as node:
        file = node.root / "plugins" / DRIVER / GIVEN_BY_CLAIM
        file.parent.mkdir()
        file.write_text(json.dumps({"version": version, "gpus": {node.nvml.gpus[0].uuid: SHARING}}))
        before = file.read_bytes()
        node.configure(HAMI, None)
        async with node.daemon() if in_cluster else node.daemon_alone() as daemon:
            await daemon.advertises(node.kubelet, {GPU_MEM: 40})
            listed = await node.listed()
            assert re.search(r"GPU 0\b.* claims", listed)
            assert (str(file) in listed) == (version > GIVEN_VERSION)
            assert ("Claims: none can be served: the API server is not used" in listed) != in_cluster
        assert file.read_bytes() == before


@pytest.mark.parametrize("dra", [None, "{driver: other.example.com, devices: [0]}"])
async def test_values_of_the_chart_alone_give_no_gpu_of_claims_away(short_path: Path, dra: str | None) -> None:
    """A daemon without the directory of the DRA driver keeps the GPU back, and says what to do.

    `dra.enabled: false` leaves the daemon without the directory, and another `dra.driver` does. With the directory, the
    claim can be given back again.
    """
    card = FakeGpu(memory_mib=40960, reserved_mib=0)
    async with claim_node(short_path, CARD, card) as node:
        async with node.serving(HAMI, "{devices: [0]}") as daemon:
            await node.devices(daemon, 1)
            pod = node.pod("pod", {"memory": "60Gi"})
            node.scheduler.schedule(pod)
            await node.kubelet.admit(pod)
        node.configure(HAMI, dra)
        mounts = short_path / "mounts"
        for name in ("plugins_registry", "plugins/other.example.com") if dra else (".",):
            (mounts / name).mkdir(parents=True)
        async with node.daemon("--kubelet-root", mounts) as daemon:
            await daemon.advertises(node.kubelet, {GPU_MEM: 40})
            listed = await node.listed()
            assert "belongs to claims" in listed
            assert "set dra.enabled to true and dra.driver to gpu.gpushare.io" in listed
            assert not [each for each in mounts.rglob("*") if not each.is_dir()]
        node.configure(HAMI, None)
        async with node.daemon() as daemon:
            await daemon.logged("dra_plugin_registered")
            await node.kubelet.end(pod)
            await daemon.logged("claim_unprepared")


async def test_a_restart_with_all_gpus_by_claim_waits_for_no_pod_that_has_ended(short_path: Path) -> None:
    """The kubelet keeps units of ended pods in its record until it gets a device list."""
    async with claim_node(short_path) as node:
        pod = Pod("units", [Container("main", {GPU_MEM: 2})])
        await node.kubelet.admit(Pod("gpushare", []))  # the pod of the daemon shows that the kubelet knows its pods
        async with node.serving(HAMI, None) as daemon:
            await daemon.advertises(node.kubelet, {GPU_MEM: 80})
            await node.kubelet.admit(pod)
        async with node.serving(HAMI) as daemon:
            await daemon.logged("dra_plugin_registered")
            assert "when its pods end" in await node.listed()
            node.kubelet.delete(pod)
            await node.devices(daemon, 1)
            await daemon.logged("resource_retired")
            assert node.kubelet.allocatable() == {GPU_MEM: 0}
            assert [each["resource"] for each in daemon.log if each["event"] == "resource_registered"] == [GPU_MEM]


@pytest.mark.long
async def test_a_gpu_goes_from_the_device_plugin_to_claims_and_back(short_path: Path) -> None:
    """The last pod with units has to end first, and on the way back the last claim."""
    other = FakeGpu(memory_mib=40960, reserved_mib=0)
    async with claim_node(short_path, CARD, other) as node, node.serving(HAMI, dra=None) as daemon:
        await daemon.advertises(node.kubelet, {GPU_MEM: 120})
        pod = Pod("units", [Container("main", {GPU_MEM: 2})])
        await node.kubelet.admit(pod)
        node.configure(HAMI, "{}")
        await daemon.logged("config_changed")
        await daemon.advertises(node.kubelet, {GPU_MEM: 0})
        await node.devices(daemon, 1)
        node.kubelet.delete(pod)
        await node.devices(daemon, 2)
        claimed = node.pod("claim", {"memory": "2Gi"})
        node.scheduler.schedule(claimed)
        await node.kubelet.admit(claimed)
        node.configure(HAMI, None)
        await daemon.until(lambda: not node.published, "no device in ResourceSlices")
        await daemon.logged("gpus_left_claims")
        await node.kubelet.wait_for(lambda kubelet: kubelet.allocatable() in ({GPU_MEM: 80}, {GPU_MEM: 40}))
        await node.kubelet.end(claimed)
        node.scheduler.release(claimed)
        await daemon.advertises(node.kubelet, {GPU_MEM: 120})
        assert node.left == set()


@pytest.mark.long
@pytest.mark.parametrize("restart", [False, True])
async def test_another_name_of_the_dra_driver_waits_for_the_claims_of_the_name_before(
    short_path: Path, *, restart: bool
) -> None:
    """They end under the name that they were prepared under, and no unit of their GPU is offered; people are told."""
    new = "new.example.com"
    async with claim_node(short_path) as node, AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(node.serving(HAMI))
        await node.devices(daemon, 1)
        pod = node.pod("pod", {"memory": "2Gi"})
        node.scheduler.schedule(pod)
        await node.kubelet.admit(pod)
        node.configure(HAMI, f"{{driver: {new}}}")
        if restart:
            await stack.aclose()
            daemon = await stack.enter_async_context(node.daemon())
        await daemon.logged("dra_driver_waits", found=new, served=DRIVER)
        await daemon.until(lambda: not node.published, "no device in ResourceSlices")
        listed = await node.listed()
        assert f"dra.driver is {new}" in listed
        assert "default/pod" in listed
        assert node.kubelet.allocatable() in ({}, {GPU_MEM: 0})
        await node.kubelet.end(pod)
        node.scheduler.release(pod)
        await daemon.logged("dra_plugin_registered", dra_driver=new)
        await node.devices(daemon, 1)
        assert {each["spec"]["driver"] for each in node.server.store.find(SLICES)} == {new}
        assert not (node.root / "plugins" / DRIVER / GIVEN_BY_CLAIM).exists()
        assert node.kubelet.allocatable() in ({}, {GPU_MEM: 0})
        other = node.pod("other", {"memory": "2Gi"})
        node.scheduler.schedule(other)
        await node.kubelet.admit(other)
        await node.kubelet.end(other)
        assert DRIVER not in node.kubelet.connected_drivers


async def test_the_order_of_devices_follows_claims_with_a_bound_on_writes(short_path: Path) -> None:
    """With `spread` the emptiest GPU comes first: at once after the first claim, and in the end after the last one."""
    spread = HAMI.replace("hami-core", "hami-core, placement: spread")
    async with claim_node(short_path, *[CARD] * 3) as node, node.serving(spread) as daemon:
        names = [each["name"] for each in await node.devices(daemon, 3)]
        pods = [node.pod(f"pod-{number}", {"memory": "20Gi"}) for number in range(3)]
        for pod, order in zip(pods, ((1, 2, 0), (2, 0, 1), (0, 1, 2)), strict=True):
            node.scheduler.schedule(pod)
            await node.kubelet.admit(pod)
            expected = [names[number] for number in order]
            await daemon.until(lambda: [each["name"] for each in node.published] == expected, str(order))  # noqa: B023
