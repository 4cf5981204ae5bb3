"""Tests of a node under MPS with protocol 3: `gpushare run`, `gpushare mps`, the stand-ins and an embedded kubelet."""

import contextlib
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from gpushare_plugin.config.schema.names import CORES
from gpushare_plugin.core.namespaces import namespace_name
from gpushare_plugin.gpus.exchange import read_message
from gpushare_plugin.mps.exchange import MpsStatus
from gpushare_plugin.testing.kubelet import (
    Container,
    ContainerStartError,
    EmbeddedKubelet,
    Mount,
    Pod,
    StartedContainer,
)
from gpushare_plugin.testing.mps import FakeClient, FakeMps
from gpushare_plugin.testing.nvml import FakeGpu, FakeNvml
from tests.node.starting import start, start_again
from tests.node.test_mps_node import BY_MEMORY, BY_REPLICAS, GPU, GPU_MEM, MpsNode
from tests.process.daemon import Daemon, gpushare
from tests.waiting import until

CARD = FakeGpu(memory_mib=16384, reserved_mib=0)
DRIVER = "615.71.09"


class NamespacesNode(MpsNode):
    """A node whose config asks for protocol 3."""

    def share(self, sharing: str, protocol: int = 3) -> None:
        """Write a config file."""
        flags = f"{{mpsRoot: {self.root.path}, mpsProtocol: {protocol}}}"
        self.file.write_text(f"flags: {flags}\nsharing: {sharing}\n")

    def program(self, started: StartedContainer, **environment: str) -> FakeClient:
        """Run a program in a container, with variables that it sets itself."""
        return self.mps.program({**as_on_the_host(started), **environment})

    def limits(self) -> dict[str, tuple[str, str]]:
        """Return the limits of all namespaces but the default one, as the control daemon tells them."""
        answer = self.mps.ask(self.root.pipe, "namespace list --server=gpushare --format=csv,noheader")
        rows = [line.split(",") for line in answer.splitlines()]
        return {name: (memory, threads) for name, _, _, memory, threads, *_ in rows if name != "default"}

    def status(self) -> MpsStatus:
        """Return what `gpushare mps` reports."""
        return read_message(self.root.status, MpsStatus) or MpsStatus()


def as_on_the_host(started: StartedContainer) -> Mapping[str, str]:
    """Return the environment of a container, with the directory of the pipes as its mount leads there."""
    mounts = {mount.container_path: mount.host_path for mount in started.mounts}
    directory = started.environment["CUDA_MPS_PIPE_DIRECTORY"]
    return {**started.environment, "CUDA_MPS_PIPE_DIRECTORY": mounts[directory]}


async def one(kubelet: EmbeddedKubelet, resource: str, count: int) -> StartedContainer:
    """Start a pod of one container with so many units."""
    return (await start(kubelet, Pod("pod", [Container("main", {resource: count})])))["main"]


def name_of(started: StartedContainer, resource: str = GPU_MEM) -> str:
    """Return the name of a container's namespace."""
    return namespace_name(started.device_ids[resource])


@pytest.fixture
def node(short_path: Path) -> Iterator[NamespacesNode]:
    """Describe a node of two cards with a driver that knows protocol 3."""
    with FakeNvml([CARD, CARD], driver_version=DRIVER) as nvml, FakeMps() as mps:
        yield NamespacesNode(nvml, mps, short_path)


@contextlib.asynccontextmanager
async def serving(
    node: NamespacesNode, kubelet: EmbeddedKubelet, sharing: str, units: Mapping[str, int]
) -> AsyncIterator[tuple[Daemon, Daemon]]:
    """Run both halves, and wait until the units can be allocated; yields the plugin and the keeper."""
    node.share(sharing)
    async with node.keeper() as keeper, node.plugin(kubelet) as plugin:
        await plugin.advertises(kubelet, units)
        yield plugin, keeper


async def test_a_container_has_a_namespace_of_its_own(node: NamespacesNode, kubelet: EmbeddedKubelet) -> None:
    """It sees only the socket of its namespace, which has its limits when it starts, and no list of limits."""
    async with serving(node, kubelet, BY_MEMORY, {GPU_MEM: 32}):
        started = await one(kubelet, GPU_MEM, 4)
        leaf = node.root.namespace(name_of(started))
        assert Mount("/mps/pipe", str(leaf), read_only=True) in started.mounts
        assert (leaf / "control").is_socket()
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in started.environment
        assert node.limits() == {name_of(started): ("4G", "25.00")}
        with node.program(started) as program:
            assert program.memory_mib == [4096]
            await until(lambda: [each.pid for each in node.status().clients or ()] == [program.pid])
        (client,) = node.status().clients or ()
        assert (client.server, client.namespace, client.memory_limit_mib) == ("gpushare", name_of(started), 4096)


async def test_replicas_have_equal_parts(node: NamespacesNode, kubelet: EmbeddedKubelet) -> None:
    """NVIDIA's schema: the part of a replica is the limit of its namespace, and not of a default one."""
    async with serving(node, kubelet, BY_REPLICAS, {GPU: 8}):
        started = await one(kubelet, GPU, 1)
        assert node.limits() == {name_of(started, GPU): ("4G", "25.00")}


async def test_requested_compute_is_a_limit_of_the_namespace(node: NamespacesNode, kubelet: EmbeddedKubelet) -> None:
    """Memory and compute come in two calls, in either order; the namespace has both when the container starts."""
    by_both = "{memory: {resources: [{name: aliyun.com/gpu-mem, isolation: mps, compute: requested}]}}"
    async with serving(node, kubelet, by_both, {GPU_MEM: 32, CORES: 200}):
        expected = {}
        for mem, percent in ((4, 70), (4, 30), (12, 60)):
            pod = Pod(f"pod-{percent}", [Container("main", {GPU_MEM: mem, CORES: percent})])
            (started,) = (await start(kubelet, pod)).values()
            expected[name_of(started)] = (f"{mem}G", f"{percent}.00")
            assert node.limits() == expected
            with node.program(started, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="100") as greedy:
                assert greedy.effective is not None
                assert (greedy.memory_mib, greedy.effective["threads"]) == ([mem * 1024], percent)


async def test_a_program_that_narrows_its_gpus_keeps_its_limit(node: NamespacesNode, kubelet: EmbeddedKubelet) -> None:
    """A share of two GPUs is limited on each, whatever a program sees; only a list of its own lifts the limits.

    The control daemon does not know of such a list: it tells the limit of the namespace. The environment of the process
    shows the list, which gpushare never gives a container with a namespace.
    """
    by_replicas = "{mps: {failRequestsGreaterThanOne: false, resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
    async with serving(node, kubelet, by_replicas, {GPU: 8}):
        started = await one(kubelet, GPU, 2)
        with node.program(started) as wide, node.program(started, CUDA_VISIBLE_DEVICES="1") as narrow:
            assert wide.memory_mib == [4096, 4096]
            assert narrow.memory_mib == [4096]
        with node.program(started, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G") as modest:
            assert modest.memory_mib == [1024, 4096]
        with node.program(started, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G,7=1G") as deliberate:
            assert deliberate.memory_mib == [None, None]
            told = node.mps.ask(node.root.pipe, f"client get {deliberate.pid} maws-ns")
            assert told == name_of(started, GPU)
            await until(lambda: [each.pid for each in node.status().clients or ()] == [deliberate.pid])
            assert [each.memory_limit_mib for each in node.status().clients or ()] == [4096]
            assert deliberate.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1G,7=1G"


async def test_every_container_of_a_pod_has_its_own(node: NamespacesNode, kubelet: EmbeddedKubelet) -> None:
    """Init containers, sidecars and several containers: each has its limits at its start and at each restart."""
    pod = Pod(
        "pod",
        [Container("one", {GPU_MEM: 4}), Container("two", {GPU_MEM: 6})],
        [Container("init", {GPU_MEM: 3}), Container("sidecar", {GPU_MEM: 2}, restartable=True)],
    )
    async with serving(node, kubelet, BY_MEMORY, {GPU_MEM: 32}):
        started = await start(kubelet, pod)
        sizes = {"one": 4, "two": 6, "init": 3, "sidecar": 2}
        limits = node.limits()
        assert {each: limits[name_of(started[each])][0] for each in sizes} == {
            each: f"{size}G" for each, size in sizes.items()
        }
        for each, size in sizes.items():
            again = await start_again(kubelet, pod, each)
            assert again.mounts == started[each].mounts
            with node.program(again) as program:
                assert program.memory_mib == [size * 1024]


async def test_a_container_waits_for_its_namespace(node: NamespacesNode, kubelet: EmbeddedKubelet) -> None:
    """Without `gpushare mps` a container does not start, in words, and other calls are answered; then it starts."""
    node.share(BY_MEMORY)
    pod = Pod("pod", [Container("main", {GPU_MEM: 4})])
    async with node.plugin(kubelet) as plugin:
        async with node.keeper() as keeper:
            await plugin.advertises(kubelet, {GPU_MEM: 32})
            before = (await start(kubelet, pod))["main"]
            assert await keeper.stop() == 0
        with pytest.raises(ContainerStartError, match=r"limits: gpushare mps does not run .* waited for 5 s"):
            await kubelet.restart_container(pod, "main")
        async with node.keeper():
            await plugin.advertises(kubelet, {GPU_MEM: 32})
            assert (await start_again(kubelet, pod, "main")).mounts == before.mounts
            assert node.limits() == {name_of(before): ("4G", "25.00")}


async def test_restarts_of_every_process_leave_the_namespaces(node: NamespacesNode, kubelet: EmbeddedKubelet) -> None:
    """A kill of either half, another kubelet, and a lost file of the exchange: programs go on, and restarts work."""
    node.share(BY_MEMORY)
    pod = Pod("pod", [Container("main", {GPU_MEM: 4})])
    async with contextlib.AsyncExitStack() as stack:
        async with node.keeper() as keeper:
            async with node.plugin(kubelet) as plugin:
                await plugin.advertises(kubelet, {GPU_MEM: 32})
                started = (await start(kubelet, pod))["main"]
                program = stack.enter_context(node.program(started))
                control = node.mps.pid(node.root.pipe)
                await plugin.stop(signal.SIGKILL)
            await keeper.stop(signal.SIGKILL)
        node.root.wanted.unlink()  # as after a reboot: only the kubelet knows who holds what
        async with node.plugin(kubelet) as plugin, node.keeper() as keeper:
            await keeper.logged("mps_daemon_adopted", pid=control)
            await plugin.advertises(kubelet, {GPU_MEM: 32})
            await until(lambda: [each.namespace for each in node.status().clients or ()] == [name_of(started)])
            await kubelet.restart()
            await plugin.advertises(kubelet, {GPU_MEM: 32})
            with node.program(await start_again(kubelet, pod, "main")) as again:
                assert again.memory_mib == program.memory_mib == [4096]
            assert node.mps.pid(node.root.pipe) == control
            assert node.limits() == {name_of(started): ("4G", "25.00")}


@pytest.mark.parametrize("what", ["control daemon", "server"])
async def test_namespaces_are_made_again_after_a_crash(
    node: NamespacesNode, kubelet: EmbeddedKubelet, what: str
) -> None:
    """The MPS control daemon dies, or only its server: both and all namespaces are there again for the next start."""
    pod = Pod("pod", [Container("main", {GPU_MEM: 4})])
    async with serving(node, kubelet, BY_MEMORY, {GPU_MEM: 32}) as (plugin, keeper):
        started = (await start(kubelet, pod))["main"]
        (server,) = [each for each in node.mps.processes() if each != node.mps.pid(node.root.pipe)]
        if what == "server":
            node.mps.kill(server)
            await keeper.logged("mps_server_ended", pid=server)
            await keeper.logged("mps_server_created", times=2)
        else:
            node.mps.crash(node.root.pipe)
            await keeper.logged("mps_daemon_started", times=2)
        await plugin.advertises(kubelet, {GPU_MEM: 32})
        with node.program(await start_again(kubelet, pod, "main")) as program:
            assert program.memory_mib == [4096]
        assert node.limits() == {name_of(started): ("4G", "25.00")}


async def test_a_driver_without_the_protocol_is_told(node: NamespacesNode, kubelet: EmbeddedKubelet) -> None:
    """A driver before 615 has no protocol 3: the config is refused in words before anything is offered."""
    node.share(BY_MEMORY)
    with FakeNvml([CARD], driver_version="580.95.05") as old:
        node.environment |= old.environment
        async with node.plugin(kubelet) as plugin:
            assert await plugin.ended() != 0
            assert "3 found, but this node has driver 580.95.05, and MPS has protocol 3 from driver 615 on" in str(
                plugin
            )


async def test_a_list_goes_on_where_the_driver_lacks_the_protocol(
    node: NamespacesNode, kubelet: EmbeddedKubelet
) -> None:
    """With `[mps, none]`, the GPUs of such a node are shared without isolation, and `gpushare list` says why."""
    node.share("{memory: {resources: [{name: aliyun.com/gpu-mem, isolation: [mps, none]}]}}")
    with FakeNvml([CARD], driver_version="580.95.05") as old:
        node.environment |= old.environment
        async with node.plugin(kubelet) as plugin:
            await plugin.advertises(kubelet, {GPU_MEM: 16})
            assert "CUDA_MPS_PIPE_DIRECTORY" not in (await one(kubelet, GPU_MEM, 4)).environment
            listed = await gpushare("list", "--device-plugin-path", kubelet.plugin_directory)
            why = "isolation none, not mps: this node has driver 580.95.05, and MPS has protocol 3 from driver 615 on"
            assert why in listed.output


async def test_another_protocol_waits_for_pods(node: NamespacesNode, kubelet: EmbeddedKubelet) -> None:
    """While a pod holds units by protocol 2, no unit by protocol 3 is allocated, and the daemon of its pod goes on."""
    node.share(BY_MEMORY, protocol=2)
    pod = Pod("pod", [Container("main", {GPU_MEM: 4})])
    async with node.keeper() as keeper:
        async with node.plugin(kubelet) as plugin:
            await plugin.advertises(kubelet, {GPU_MEM: 32})
            started = (await start(kubelet, pod))["main"]
            await kubelet.admit(Pod("gpushare", [Container("main")]))
        node.share(BY_MEMORY)
        async with node.plugin(kubelet) as plugin:
            with node.program(started) as program:
                assert program.memory_mib == [4096]
                told = await plugin.logged("gpu_not_served_by_mps")
                assert told["reason"] == "pods of this node still use MPS with protocol 2"
                assert kubelet.allocatable() == {GPU_MEM: 0}
                await keeper.logged("mps_desired_changed", times=2)
                assert len(keeper.events("mps_daemon_started")) == 1
            kubelet.delete(pod)
            await plugin.advertises(kubelet, {GPU_MEM: 32})
            assert node.limits() == {}
            await start(kubelet, Pod("after", [Container("main", {GPU_MEM: 4})]))
            assert list(node.limits().values()) == [("4G", "25.00")]
