"""What pods were promised is what their containers can allocate: a daemon, a kubelet, a runtime with NVIDIA's hook."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_plugin.testing.cgroups import CgroupTree, PodCgroups
from gpushare_plugin.testing.hosts import GPUS, specification
from gpushare_plugin.testing.kubelet import AdmissionError, Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS, FakeNvml, LimitBackend
from gpushare_plugin.testing.runtime import RunningContainer, Runtime
from tests.process.daemon import Argument, gpushare, running
from tests.unit.sharing.settings import GPU_MEM

CONFIG = """\
version: v1
flags: {{plugin: {{deviceListStrategy: cdi-cri}}, mpsRoot: {mps}}}
sharing: {{memory: {{resources: [{{name: aliyun.com/gpu-mem, isolation: driver}}]}}}}
"""
ALL = GPUS[0].memory_mib // 1024


class Node:
    """A node whose CDI specification has the hook that limits memory."""

    def __init__(self, nvml: FakeNvml, folder: Path, backend: LimitBackend) -> None:
        """Describe the node in `folder`."""
        controllers = ("cpu", "misc", "dmem") if backend == "dmem" else ("cpu", "misc")
        cgroups = CgroupTree(folder / "cgroup", controllers, nvml.regions)
        specs = folder / "cdi"
        specs.mkdir()
        (specs / "nvidia.json").write_text(specification(driver=DRIVER_WITH_LIMITS, limits=True))
        config = folder / "config.yaml"
        config.write_text(CONFIG.format(mps=folder / "mps"))
        self.environment = nvml.environment
        self.options: tuple[Argument, ...] = (
            *("--config-file", config),
            *("--cgroup-root", cgroups.root),
            *("--cdi-spec-dirs", specs),
        )
        self.runtime = Runtime(folder, PodCgroups(cgroups), nvml, cdi=[specs])

    def room(self, container: RunningContainer) -> int:
        """Return the MiB that a container can allocate of the one card that it has a limit on."""
        return min(self.runtime.room(container, gpu) for gpu in (0, 1))


@pytest.fixture(params=["misc", "dmem"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    """Describe a node with each backend of the driver."""
    with FakeNvml(GPUS, driver_version=DRIVER_WITH_LIMITS, limit_backend=request.param) as nvml:
        yield Node(nvml, tmp_path, request.param)


async def test_each_container_can_allocate_what_it_requested(kubelet: EmbeddedKubelet, node: Node) -> None:
    """Init containers, several containers, sidecars, and one that starts again, also while no daemon runs."""
    init, side = Container("init", {GPU_MEM: 7}), Container("side", {GPU_MEM: 3}, restartable=True)
    pod = Pod("pod", [Container("main", {GPU_MEM: 5}), Container("more", {GPU_MEM: 2})], [init, side])
    asked = {each.name: each.limits[GPU_MEM] * 1024 for each in pod.in_order()}
    async with running(kubelet, *node.options, environment=node.environment):
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 2 * ALL})
        admitted = await kubelet.admit(pod)
        found = {}
        for name, started in admitted.containers.items():
            container = node.runtime.start(pod, started)
            found[name] = node.room(container)
            if name == "init":
                node.runtime.stop(container)
        assert found == asked
    again = await kubelet.restart_container(pod, "main")
    assert node.room(node.runtime.start(pod, again)) == asked["main"]


async def test_a_restart_of_daemon_and_kubelet_changes_no_limit(kubelet: EmbeddedKubelet, node: Node) -> None:
    """Containers keep what they have, and the next one gets what it requests."""
    first, second = (Pod(name, [Container("main", {GPU_MEM: 4})]) for name in ("first", "second"))
    async with running(kubelet, *node.options, environment=node.environment):
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 2 * ALL})
        before = node.runtime.start(first, (await kubelet.admit(first)).containers["main"])
    await kubelet.restart()
    async with running(kubelet, *node.options, environment=node.environment):
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 2 * ALL})
        after = node.runtime.start(second, (await kubelet.admit(second)).containers["main"])
    assert (node.room(before), node.room(after)) == (4096, 4096)


async def test_a_pod_that_requests_more_than_a_card_is_refused(kubelet: EmbeddedKubelet, node: Node) -> None:
    """No limit above the memory of a card reaches the driver, which would refuse the container."""
    async with running(kubelet, *node.options, environment=node.environment):
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 2 * ALL})
        with pytest.raises(AdmissionError):
            await kubelet.admit(Pod("pod", [Container("main", {GPU_MEM: ALL + 1})]))


@pytest.mark.parametrize("driver", ["580.95.05", "610.43.02"])
async def test_a_driver_that_would_block_the_pod_never_gets_the_variables(
    kubelet: EmbeddedKubelet, tmp_path: Path, driver: str
) -> None:
    """The config is refused in words before a pod is promised anything."""
    with FakeNvml(GPUS, driver_version=driver) as nvml:
        node = Node(nvml, tmp_path, "misc")
        options = ("--device-plugin-path", kubelet.plugin_directory, *node.options)
        done = await gpushare("run", *options, environment=node.environment)
    assert done.status == 1
    assert f"NVIDIA's driver {driver} limits no memory" in done.errors
