"""Tests of `gpushare driver-limits`: the process beside the daemon, with a driver that limits cgroups."""

import contextlib
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.driver_limits import NO_LIMIT, MemoryLimit
from gpushare_plugin.driver_limits.exchange import DriverLimitsRoot, DriverLimitsStatus, LimitOrder
from gpushare_plugin.gpus.exchange import read_message, write_message
from gpushare_plugin.gpus.memory_limits import NoLimitAnswerError
from gpushare_plugin.gpus.nvml.memory_limits import NvmlMemoryLimits
from gpushare_plugin.testing.cgroups import CgroupTree, PodCgroups, real_cgroups
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS, FakeGpu, FakeNvml
from tests.node.promises import in_api, path
from tests.process.daemon import Argument, Daemon, gpushare, process, running
from tests.unit.driver_limits.conftest import GPU, container_id, pod_uid, wanted
from tests.unit.gpus.conftest import Node, describe
from tests.unit.kube.cluster import NODE, a_node
from tests.unit.sharing.settings import GPU_MEM

__all__ = ["describe"]

ID = container_id(1)
LimitOf = Callable[[Path], MemoryLimit]
CONFIG = (
    "{{version: v1, flags: {{mpsRoot: {0}/mps}}, sharing: {{memory: {{resources: [{{name: {1}, isolation: {2}}}]}}}}}}"
)


@pytest.fixture
def fake(describe: Node) -> FakeNvml:
    """Describe a GPU of 16 GiB whose driver keeps limits in its own account."""
    return describe([FakeGpu(uuid=GPU, memory_mib=16384)], driver_version=DRIVER_WITH_LIMITS)


@pytest.fixture
def limit_of(fake: FakeNvml, tmp_path: Path) -> LimitOf:
    """Return what tells the limits of a cgroup, as the driver of the node reports them."""
    assert fake.gpus
    limits = NvmlMemoryLimits(tmp_path, tmp_path, tmp_path)

    def read(cgroup: Path) -> MemoryLimit:
        try:
            return limits.read(GPU, cgroup).limit
        except NoLimitAnswerError:
            return NO_LIMIT

    return read


@pytest.fixture
def root(short_path: Path) -> DriverLimitsRoot:
    """Return a root that is not there yet."""
    return DriverLimitsRoot(short_path / "run/driver-limits")


@pytest.fixture
def kubepods(short_path: Path) -> PodCgroups:
    """Describe the cgroups of the node."""
    return PodCgroups(CgroupTree(short_path / "cgroup"))


@contextlib.asynccontextmanager
async def limiting(fake: FakeNvml, root: DriverLimitsRoot, cgroups: Path, *more: Argument) -> AsyncIterator[Daemon]:
    """Run `gpushare driver-limits`."""
    arguments = ("driver-limits", "--driver-limits-root", root.path, "--cgroup-root", cgroups, *more)
    async with process(*arguments, environment=fake.environment) as daemon:
        yield daemon


def order(root: DriverLimitsRoot, *numbers: int) -> None:
    """Want 2 GiB for containers, as the daemon does."""
    root.path.mkdir(parents=True, exist_ok=True)
    write_message(root.wanted, LimitOrder(gpus=(GPU,), containers=tuple(wanted(each, 2048) for each in numbers)))


def status(root: DriverLimitsRoot) -> DriverLimitsStatus:
    """Return what the agent reports."""
    return read_message(root.status, DriverLimitsStatus) or DriverLimitsStatus()


async def test_limits_are_set_and_stay_after_sigterm(
    fake: FakeNvml, root: DriverLimitsRoot, kubepods: PodCgroups, limit_of: LimitOf
) -> None:
    """The environment names the directories, too; the end leaves no limit half set and no probe file."""
    cgroup = kubepods.container(pod_uid(1), ID)
    order(root, 1)
    environment = {
        **fake.environment,
        "DRIVER_LIMITS_ROOT": str(root.path),
        "CGROUP_ROOT": str(kubepods.cgroups.root),
    }
    async with process("driver-limits", environment=environment) as daemon:
        await daemon.logged("driver_limits_proven", uuid=GPU)
        told = await daemon.logged("driver_limit_set", uuid=GPU, container_id=ID)
        assert told["limit"] == "a hard limit of 2048 MiB"
        await daemon.until(root.ready.exists, "all limits were set")
        assert await daemon.stop() == 0
    assert limit_of(cgroup) == MemoryLimit(2048 * MIB)
    assert not root.ready.exists()
    assert not root.alive.exists()


async def test_limits_of_cgroups_of_this_machine(fake: FakeNvml, root: DriverLimitsRoot, limit_of: LimitOf) -> None:
    """The kernel's own tree is read as the described trees of other tests are; an ended container loses its limit."""
    with real_cgroups() as cgroups:
        if cgroups is None:
            pytest.skip("cgroups of version 2 cannot be made here")
        kubepods = PodCgroups(cgroups, driver="cgroupfs")
        first = kubepods.container(pod_uid(1), ID)
        order(root, 1)
        async with limiting(fake, root, cgroups.root) as daemon:
            await daemon.until(root.ready.exists, "all limits were set")
            late = status(root).containers[0].gpus[0].late
            assert late is not None
            assert 0 <= late < 120
            assert limit_of(first) == MemoryLimit(2048 * MIB)
            order(root)
            await daemon.until(lambda: limit_of(first) == NO_LIMIT, "the ended container lost its limit")
            assert await daemon.stop() == 0


async def test_a_kill_leaves_limits_to_the_next(fake: FakeNvml, root: DriverLimitsRoot, kubepods: PodCgroups) -> None:
    """After SIGKILL the next process takes over, and still knows how late the limit was set."""
    kubepods.container(pod_uid(1), ID)
    order(root, 1)
    async with limiting(fake, root, kubepods.cgroups.root) as first:
        await first.logged("driver_limit_set")
        await first.until(root.ready.exists, "it was reported")
        await first.stop(signal.SIGKILL)
    before = status(root).containers
    async with limiting(fake, root, kubepods.cgroups.root) as second:
        await second.logged("driver_limits_proven")
        await second.until(root.ready.exists, "all limits were set")
        assert status(root).containers == before
        assert not second.events("driver_limit_set")
        assert await second.stop() == 0


async def test_a_wrong_root_of_cgroups_is_told_at_once(
    fake: FakeNvml, root: DriverLimitsRoot, kubepods: PodCgroups
) -> None:
    """The log says what to change before a limit is wanted; no limit is wanted before gpushare run has what it needs.

    Nothing has to start again once the tree is there.
    """
    nowhere = kubepods.cgroups.root / "nothing"
    async with limiting(fake, root, nowhere) as daemon:
        waits = await daemon.logged("driver_limits_waiting", path=str(root.wanted))
        for needed in ("--driver-limits-agent=true", "the same --driver-limits-root", "driver as an isolation"):
            assert needed in waits["reason"]
        told = await daemon.logged("driver_limits_no_cgroups")
        assert told["reason"].startswith(f"there is no {nowhere}, where the host's tree of cgroups of version 2 is")
        assert "name with --cgroup-root where it is mounted" in told["reason"]
        assert "chart" not in told["reason"], "the chart always mounts the tree for the agent"
        await daemon.until(root.ready.exists, "nothing is wanted")
        order(root)
        await daemon.until(lambda: status(root).trouble == told["reason"], "it is reported once limits are wanted")
        nowhere.symlink_to(kubepods.cgroups.root)
        kubepods.container(pod_uid(1), ID)
        await daemon.until(lambda: status(root).trouble is None, "the tree is found")
        assert len(daemon.events("driver_limits_no_cgroups")) == 1


async def test_a_second_process_is_refused(fake: FakeNvml, root: DriverLimitsRoot, kubepods: PodCgroups) -> None:
    """The second process says which process has the root and ends; the first goes on."""
    async with limiting(fake, root, kubepods.cgroups.root) as first:
        await first.until(root.status.exists, "it works")
        arguments = ("driver-limits", "--driver-limits-root", root.path, "--cgroup-root", kubepods.cgroups.root)
        second = await gpushare(*arguments, environment=fake.environment)
        assert second.status == 1
        assert f"another gpushare driver-limits (process {first.process.pid} on " in second.errors
        assert await first.stop() == 0


async def test_a_driver_that_hangs_does_not_hold_up_the_end(
    fake: FakeNvml, root: DriverLimitsRoot, kubepods: PodCgroups
) -> None:
    """A call that never returns is reported for its GPU, and SIGTERM ends the process within its grace period."""
    kubepods.container(pod_uid(1), ID)
    order(root, 1)
    fake.hang("nvmlDeviceSetMemoryLimits_v1")
    async with limiting(fake, root, kubepods.cgroups.root) as daemon:
        await daemon.logged("driver_silent", uuid=GPU)
        assert root.alive.exists()
        assert not root.ready.exists()
        assert await daemon.stop() == 0


# ---------------------------------------------------------------------- with the daemon


def shown(pod: Pod, id_: str) -> dict[str, Any]:
    """Return a running pod as the API server has it."""
    found = in_api(pod)
    statuses = [{"name": each.name, "containerID": f"containerd://{id_}"} for each in pod.containers]
    return found | {"status": {"phase": "Running", "containerStatuses": statuses}}


@contextlib.asynccontextmanager
async def daemon_of(
    kubelet: EmbeddedKubelet, fake: FakeNvml, folder: Path, root: DriverLimitsRoot, *more: Argument
) -> AsyncIterator[tuple[Daemon, ApiServer]]:
    """Run `gpushare run` in a cluster, with `isolation: driver` and an agent."""
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(folder, GPU_MEM, "driver"))
    async with ApiServer() as server:
        a_node(server)
        options: dict[str, Argument] = {
            "--config-file": config,
            "--node-name": NODE,
            "--kubeconfig": server.kubeconfig(folder / "kubeconfig"),
            "--pod-resources-socket": kubelet.pod_resources_socket,
            "--cgroup-root": folder / "cgroup",
            "--driver-limits-root": root.path,
            "--driver-limits-agent": "true",
            "--events": "true",
        }
        arguments = [word for option in options.items() for word in option]
        async with running(kubelet, *arguments, *more, environment=fake.environment) as daemon:
            yield daemon, server


async def test_a_container_of_the_node_is_limited_as_soon_as_it_is_shown(  # noqa: PLR0913, PLR0917 - the parts of a node
    kubelet: EmbeddedKubelet,
    fake: FakeNvml,
    short_path: Path,
    root: DriverLimitsRoot,
    kubepods: PodCgroups,
    limit_of: LimitOf,
) -> None:
    """Without a hook, units can be allocated while the agent proves that it sets limits, and no longer when it ends.

    A restarted container has another ID, and gets its limit as the first one did.
    """
    pod = Pod("pod", [Container("main", {GPU_MEM: 3})], uid=str(uuid.uuid4()))
    kubepods.container(pod_uid(9), container_id(9))
    async with daemon_of(kubelet, fake, short_path, root, "--follow-pods", "true") as (daemon, server):
        told = await daemon.logged("gpu_not_limited", uuid=GPU)
        assert "gpushare driver-limits does not run on this node" in told["reason"]
        await daemon.advertises(kubelet, {GPU_MEM: 0})
        async with limiting(fake, root, kubepods.cgroups.root) as agent:
            await daemon.advertises(kubelet, {GPU_MEM: 16})
            await daemon.logged("gpu_limited", uuid=GPU)
            await kubelet.admit(pod)
            for number in (1, 2):
                cgroup = kubepods.container(pod.uid, container_id(number))
                change = server.store.create if number == 1 else server.store.replace
                change(path(pod), shown(pod, container_id(number)))
                await agent.logged("driver_limit_set", uuid=GPU, container_id=container_id(number))
                assert limit_of(cgroup) == MemoryLimit(3072 * MIB)
            await agent.stop()
        await daemon.advertises(kubelet, {GPU_MEM: 0})
        listed = await gpushare("list", "--device-plugin-path", kubelet.plugin_directory)
        assert "no driver limits can be set: gpushare driver-limits does not run" in " ".join(listed.output.split())


async def test_an_agent_without_followed_pods_limits_nothing(
    kubelet: EmbeddedKubelet, fake: FakeNvml, short_path: Path, root: DriverLimitsRoot, kubepods: PodCgroups
) -> None:
    """The IDs of containers come from followed pods; without those no pod is promised a limit, and the log says so."""
    kubepods.container(pod_uid(9), container_id(9))
    async with daemon_of(kubelet, fake, short_path, root) as (daemon, _):
        told = await daemon.logged("gpu_not_limited", uuid=GPU)
        assert "--follow-pods" in told["reason"]
        await daemon.advertises(kubelet, {GPU_MEM: 0})
