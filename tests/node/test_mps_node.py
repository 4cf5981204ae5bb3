"""Tests of a node under MPS: `gpushare run`, `gpushare mps`, a stand-in for NVML and an embedded kubelet together."""

import contextlib
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpushare_plugin.config.directives import PARTITIONING
from gpushare_plugin.config.schema.names import CORES
from gpushare_plugin.gpus.compute_modes import ComputeMode
from gpushare_plugin.gpus.exchange import read_message
from gpushare_plugin.mps.exchange import MpsRoot, MpsSettings
from gpushare_plugin.slices.wanted import WANTED_SLICES, Wanted, encode
from gpushare_plugin.testing.cluster import ApiServer, granted
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Mount, Pod
from gpushare_plugin.testing.mps import FakeMps
from gpushare_plugin.testing.nvml import FakeGpu, FakeNvml
from tests.chart.rendering import objects
from tests.node.refusals import refused_allocation
from tests.process.daemon import Argument, Daemon, admit, gpushare, process, running
from tests.unit.kube.cluster import NODE, a_node, annotate, label

GPU_MEM = "aliyun.com/gpu-mem"
GPU = "nvidia.com/gpu"
CARD = FakeGpu(memory_mib=16384, reserved_mib=0)


class MpsNode:
    """Two cards, MPS programs, and the config of both halves of gpushare."""

    def __init__(self, nvml: FakeNvml, mps: FakeMps, folder: Path) -> None:
        """Keep everything below `folder`."""
        self.nvml = nvml
        self.mps = mps
        self.root = MpsRoot(folder / "mps")
        self.file = folder / "config.yaml"
        self.environment = {**nvml.environment, **mps.environment}

    def share(self, sharing: str) -> None:
        """Write a config file."""
        self.file.write_text(f"flags: {{mpsRoot: {self.root.path}}}\nsharing: {sharing}\n")

    @contextlib.asynccontextmanager
    async def plugin(self, kubelet: EmbeddedKubelet, *more: Argument) -> AsyncIterator[Daemon]:
        """Run `gpushare run`, perhaps with `more` arguments."""
        own = ("--pod-namespace", "default", "--pod-name", "gpushare")  # a pod that tests let in is taken for ours
        arguments = ("--config-file", self.file, "--pod-resources-socket", kubelet.pod_resources_socket, *own, *more)
        async with running(kubelet, *arguments, environment=self.environment) as daemon:
            yield daemon

    @contextlib.asynccontextmanager
    async def keeper(self) -> AsyncIterator[Daemon]:
        """Run `gpushare mps`."""
        async with process("mps", "--mps-root", self.root.path, environment=self.environment) as daemon:
            yield daemon

    def modes(self) -> list[ComputeMode]:
        """Return the compute modes of the cards."""
        return [ComputeMode(self.nvml.compute_mode(index)) for index in range(2)]


@pytest.fixture
def node(short_path: Path) -> Iterator[MpsNode]:
    """Describe a node."""
    with FakeNvml([CARD, CARD]) as nvml, FakeMps() as mps:
        yield MpsNode(nvml, mps, short_path)


BY_MEMORY = "{memory: {resources: [{name: aliyun.com/gpu-mem, isolation: mps}]}}"
BY_REPLICAS = "{mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
EXCLUSIVE = [ComputeMode.EXCLUSIVE_PROCESS] * 2


@pytest.mark.parametrize("first", ["plugin", "keeper"])
async def test_units_are_offered_once_mps_serves_them(node: MpsNode, kubelet: EmbeddedKubelet, first: str) -> None:
    """Whichever half comes first, no pod gets a unit before MPS serves its GPU, and then it gets exactly its share."""
    node.share(BY_MEMORY)
    async with contextlib.AsyncExitStack() as halves:
        if first == "keeper":
            await halves.enter_async_context(node.keeper())
        plugin = await halves.enter_async_context(node.plugin(kubelet))
        if first == "plugin":
            told = await plugin.logged("gpu_not_served_by_mps")
            assert "gpushare mps does not run on this node" in told["reason"]
            await kubelet.wait_for(lambda seen: seen.capacity() == {GPU_MEM: 32})
            assert kubelet.allocatable() == {GPU_MEM: 0}
            (socket,) = kubelet.plugin_directory.glob("gpushare-*.sock")
            reason = await refused_allocation(socket)
            assert "cannot be allocated: not served by MPS: gpushare mps does not run on this node" in reason
            listed = await gpushare("list", "-o", "json", "--device-plugin-path", kubelet.plugin_directory)
            gpu = json.loads(listed.output)["gpus"][0]
            assert (listed.status, gpu["health"], gpu["state"]) == (3, "unhealthy", "unavailable")
            assert (gpu["mode"], gpu["isolation"]) == ("mps", "mps")
            assert gpu["reason"].startswith("not served by MPS: gpushare mps does not run on this node")
            await halves.enter_async_context(node.keeper())
        await plugin.advertises(kubelet, {GPU_MEM: 32})
        assert node.modes() == EXCLUSIVE
        started = await admit(kubelet, GPU_MEM, 4)
        assert started.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
        assert started.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
        assert started.environment["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/pipe"
        assert set(started.mounts) >= {
            Mount("/mps/pipe", str(node.root.pipe), read_only=True),
            Mount("/dev/shm", str(node.root.shm), read_only=False),  # noqa: S108 - where MPS looks
        }
        assert node.root.shm.is_dir()


async def test_a_containers_own_percentage_is_its_limit(node: MpsNode, kubelet: EmbeddedKubelet) -> None:
    """Where containers request compute, the daemon has no default, and each one has what it requested of its GPU."""
    node.share("{memory: {resources: [{name: aliyun.com/gpu-mem, isolation: mps, compute: requested}]}}")
    async with node.keeper(), node.plugin(kubelet) as plugin:
        await plugin.advertises(kubelet, {GPU_MEM: 32, CORES: 200})
        assert node.mps.ask(node.root.pipe, "get_default_active_thread_percentage") == "100.0"
        for mem, percent in ((4, 70), (4, 30), (12, 60)):
            pod = Pod(f"pod-{percent}", [Container("main", {GPU_MEM: mem, CORES: percent})])
            (started,) = (await kubelet.admit(pod)).containers.values()
            assert started.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(percent)
            assert started.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={mem * 1024}M"
            assert len({id_.partition("-")[0] for ids in started.device_ids.values() for id_ in ids}) == 1


async def test_replicas_have_equal_limits_by_default(node: MpsNode, kubelet: EmbeddedKubelet) -> None:
    """NVIDIA's schema: the daemon itself holds every client to its part, whatever the container's variables say."""
    node.share(BY_REPLICAS)
    async with node.keeper(), node.plugin(kubelet) as plugin:
        await plugin.advertises(kubelet, {GPU: 8})
        assert node.mps.ask(node.root.pipe, "get_default_active_thread_percentage") == "25.0"
        for ordinal in range(2):
            assert node.mps.ask(node.root.pipe, f"get_default_device_pinned_mem_limit {ordinal}") == "4G"


@pytest.mark.parametrize(("compute", "default", "own"), [("equal", "33.0", "33"), ("unlimited", "100.0", None)])
async def test_slices_have_the_compute_that_is_configured(
    node: MpsNode, kubelet: EmbeddedKubelet, compute: str, default: str, own: str | None
) -> None:
    """Equal slices are held by container and MPS control daemon alike; unlimited ones by neither."""
    node.share(f"{{mps: {{sizes: [{{compute: {compute}, slices: [{{size: 4gb, count: 2}}, {{size: 8gb}}]}}]}}}}")
    async with node.keeper(), node.plugin(kubelet) as plugin:
        await plugin.advertises(kubelet, {"nvidia.com/gpu-4gb": 4, "nvidia.com/gpu-8gb": 2})
        assert node.mps.ask(node.root.pipe, "get_default_active_thread_percentage") == default
        started = await admit(kubelet, "nvidia.com/gpu-4gb", 1)
        assert started.environment.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == own
        assert started.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"


async def test_a_crash_takes_the_units_out_and_a_new_daemon_brings_them_back(
    node: MpsNode, kubelet: EmbeddedKubelet
) -> None:
    """The control daemon dies: its GPUs are unhealthy until another one serves; nothing is registered anew."""
    node.share(BY_MEMORY)
    async with node.keeper() as keeper, node.plugin(kubelet) as plugin:
        await plugin.advertises(kubelet, {GPU_MEM: 32})
        node.mps.refuse_to_start("not now")
        node.mps.crash(node.root.pipe)
        await plugin.advertises(kubelet, {GPU_MEM: 0})
        node.mps.refuse_to_start(None)
        await plugin.advertises(kubelet, {GPU_MEM: 32})
        assert len(kubelet.registrations) == 1
        assert keeper.process.returncode is None


async def test_the_control_daemon_outlives_a_kill_of_either_half(node: MpsNode, kubelet: EmbeddedKubelet) -> None:
    """Our SIGKILL, of either half, leaves the control daemon and its clients alone; both find their way back."""
    node.share(BY_MEMORY)
    async with node.keeper() as keeper:
        async with node.plugin(kubelet) as plugin:
            await plugin.advertises(kubelet, {GPU_MEM: 32})
            await admit(kubelet, GPU_MEM, 4)
            control = node.mps.pid(node.root.pipe)
            await plugin.stop(signal.SIGKILL)
        await keeper.stop(signal.SIGKILL)
    assert node.modes() == EXCLUSIVE
    async with node.plugin(kubelet) as plugin:
        await plugin.logged("gpu_not_served_by_mps")
        async with node.keeper() as keeper:
            await keeper.logged("mps_daemon_adopted", pid=control)
            await plugin.advertises(kubelet, {GPU_MEM: 32})
            assert node.mps.pid(node.root.pipe) == control


async def test_a_gpu_that_mps_has_not_released_is_not_allocated(node: MpsNode, kubelet: EmbeddedKubelet) -> None:
    """The keeper is killed and MPS is not wanted any more: GPUs stay exclusive, and so stay out, until it is back."""
    node.share(BY_MEMORY)
    async with node.plugin(kubelet) as plugin:
        async with node.keeper() as keeper:
            await plugin.advertises(kubelet, {GPU_MEM: 32})
            await kubelet.admit(Pod("gpushare", [Container("main")]))
            await keeper.stop(signal.SIGKILL)
        await plugin.logged("gpu_not_served_by_mps")
        node.share("{memory: {resources: [{name: aliyun.com/gpu-mem}]}}")
        reason = "the MPS control daemon has not released it yet"
        await plugin.logged("gpu_not_served_by_mps", times=2, reason=reason)
        assert kubelet.allocatable() == {GPU_MEM: 0}
        assert node.modes() == EXCLUSIVE
        async with node.keeper():
            await plugin.advertises(kubelet, {GPU_MEM: 32})
            assert node.modes() == [ComputeMode.DEFAULT] * 2


async def test_units_held_under_mps_count_across_our_restart(node: MpsNode, kubelet: EmbeddedKubelet) -> None:
    """A config without MPS, and wanted.json gone: the GPU of a pod stays under MPS until the pod has ended."""
    node.share(BY_MEMORY)
    async with node.keeper():
        async with node.plugin(kubelet) as plugin:
            await plugin.advertises(kubelet, {GPU_MEM: 32})
            await admit(kubelet, GPU_MEM, 4)
            await kubelet.admit(Pod("gpushare", [Container("main")]))
        node.root.wanted.write_text("{}garbage")
        node.share("{memory: {resources: [{name: aliyun.com/gpu-mem}]}}")
        async with node.plugin(kubelet) as plugin:
            await plugin.advertises(kubelet, {GPU_MEM: 16})
            assert sorted(node.modes()) == [ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS]
            kubelet.delete(next(pod for pod in kubelet.pods.values() if pod.name == "pod"))
            await plugin.advertises(kubelet, {GPU_MEM: 32})


async def test_a_gpu_leaves_mps_when_its_pods_have_ended(node: MpsNode, kubelet: EmbeddedKubelet) -> None:
    """A config without MPS frees the idle GPU at once; the other stays exclusive until its pod has ended."""
    node.share(BY_MEMORY)
    async with node.keeper() as keeper, node.plugin(kubelet) as plugin:
        await plugin.advertises(kubelet, {GPU_MEM: 32})
        await kubelet.admit(Pod("gpushare", [Container("main")]))
        await admit(kubelet, GPU_MEM, 4)
        node.share("{memory: {resources: [{name: aliyun.com/gpu-mem}]}}")
        await plugin.logged("config_changed")
        await plugin.advertises(kubelet, {GPU_MEM: 16})
        assert sorted(node.modes()) == [ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS]
        kubelet.delete(next(pod for pod in kubelet.pods.values() if pod.name == "pod"))
        await plugin.advertises(kubelet, {GPU_MEM: 32})
        assert node.modes() == [ComputeMode.DEFAULT] * 2
        started = await admit(kubelet, GPU_MEM, 4, "after")
        assert "CUDA_MPS_PIPE_DIRECTORY" not in started.environment
        assert await keeper.stop() == 0
    assert node.mps.processes() == []


async def test_mps_serves_slices_that_come_and_go(node: MpsNode, kubelet: EmbeddedKubelet) -> None:
    """The control daemon is up before the first slice and stays; what a pod holds outlives the plugin's SIGKILL."""
    node.file.write_text(f"flags: {{mpsRoot: {node.root.path}}}\n")
    async with ApiServer(granted(objects({"partitioning": {"enabled": True}}), "gpushare")) as server:
        a_node(server)
        label(server, PARTITIONING, "mps")
        cluster = ("--node-name", NODE, "--kubeconfig", server.kubeconfig(node.file.with_name("kubeconfig")))
        async with node.keeper() as keeper:
            async with node.plugin(kubelet, "--partitioning=true", *cluster) as plugin:
                await keeper.logged("mps_daemon_started")
                desired = read_message(node.root.wanted, MpsSettings)
                assert desired is not None
                first, second = (gpu.uuid for gpu in desired.gpus)
                assert kubelet.capacity() == {}
                annotate(server, WANTED_SLICES, encode(Wanted({first: {"4gb": 2}})))
                await plugin.advertises(kubelet, {"nvidia.com/gpu-4gb": 2})
                started = await admit(kubelet, "nvidia.com/gpu-4gb", 1)
                assert started.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
                await plugin.stop(signal.SIGKILL)
            annotate(server, WANTED_SLICES, encode(Wanted({first: {"8gb": 1}, second: {"16gb": 1}})))
            async with node.plugin(kubelet, "--partitioning=true", *cluster) as plugin:
                await kubelet.wait_for(lambda seen: seen.allocatable().get("nvidia.com/gpu-16gb") == 1)
                assert kubelet.devices("nvidia.com/gpu-4gb").keys() >= started.device_ids["nvidia.com/gpu-4gb"]
                await keeper.logged("mps_daemon_started")
                assert len(keeper.events("mps_daemon_started")) == 1
