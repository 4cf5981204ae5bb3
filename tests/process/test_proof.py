"""Tests of limits that are in effect, end to end: commands, processes in real cgroups, stand-ins for NVML and MPS."""

import json
from asyncio import to_thread
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_plugin.gpus.compute_modes import ComputeMode
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.testing.kubelet import AdmittedPod, Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.mps import FakeMps
from gpushare_plugin.testing.nvml import FakeGpu, FakeNvml, FakeProcess
from tests.process.cgroups import Start, in_cgroups
from tests.process.daemon import Daemon, gpushare, running
from tests.process.test_usage import container
from tests.unit.mps.supervised import Modes, Supervised, supervising
from tests.waiting import until

CARD = FakeGpu(memory_mib=16384, reserved_mib=0)
GPU_MEM, REPLICA = "aliyun.com/gpu-mem", "nvidia.com/gpu"
LIST = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
BY_MEMORY = "{memory: {resources: [{name: aliyun.com/gpu-mem, isolation: mps}]}}"
BY_REPLICAS = "{mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"


class ServedNode:
    """A node with one card under MPS, and the programs of containers that use the card."""

    def __init__(self, daemon: Daemon, supervised: Supervised, nvml: FakeNvml, mps: FakeMps, root: MpsRoot) -> None:
        """Use what runs."""
        self.daemon = daemon
        self._supervised = supervised
        self._nvml = nvml
        self._mps = mps
        self._root = root
        self._server = mps.start_server(root.pipe)

    def use(self, *pids: int) -> None:
        """Let processes use the card."""
        self._nvml.replace_gpu(0, replace(CARD, processes=tuple(FakeProcess(pid, 500) for pid in pids)))

    def connect(self, pid: int) -> None:
        """Make a process a client of the MPS server."""
        self._mps.connect(self._root.pipe, self._server, pid)

    async def connect_without_limit(self, pid: int) -> None:
        """Lift the limit of the MPS server, as any process can, and make a process a client before that is mended."""
        await self._supervised.asks()  # and without a pause
        with self._mps.prompt(self._root.pipe) as prompt:
            prompt.ask(f"set_device_pinned_mem_limit {self._server} 0 0M")
            prompt.ask(f"connect {self._server} {pid}")


@pytest.fixture
def start() -> Iterator[Start]:
    """Start processes in cgroups as the kubelet and a container runtime name them; all end with the test."""
    with in_cgroups() as begin:
        yield begin


@asynccontextmanager
async def served(
    kubelet: EmbeddedKubelet, folder: Path, sharing: str, units: Mapping[str, int]
) -> AsyncIterator[ServedNode]:
    """Run `gpushare run`, and in this process what `gpushare mps` runs, until pods can have the units.

    `gpushare mps` asks the control daemon so often that nobody waits for it.
    """
    root, config = MpsRoot(folder / "mps"), folder / "config.yaml"
    config.write_text(f"flags: {{mpsRoot: {root.path}}}\nhealth: {{rescanSeconds: 1}}\nsharing: {sharing}\n")
    files = ("--config-file", config, "--pod-resources-socket", kubelet.pod_resources_socket)
    own = ("--pod-namespace", "default", "--pod-name", "gpushare")
    with FakeNvml([CARD]) as nvml, FakeMps() as mps, pytest.MonkeyPatch.context() as patch:
        environment = {**nvml.environment, **mps.environment}
        for name, value in mps.environment.items():
            patch.setenv(name, value)
        modes = Modes()
        modes.modes[nvml.gpus[0].uuid] = ComputeMode.DEFAULT
        async with (
            supervising(root, modes) as supervised,
            running(kubelet, *files, *own, environment=environment) as daemon,
        ):
            await daemon.advertises(kubelet, units)
            yield ServedNode(daemon, supervised, nvml, mps, root)


async def admitted(kubelet: EmbeddedKubelet, resource: str, units: int) -> tuple[AdmittedPod, Mapping[str, str]]:
    """Start a pod of one container, and return it with what the container was given."""
    pod = await kubelet.admit(Pod("pod", [Container("main", {resource: units})]))
    return pod, pod.containers["main"].environment


async def test_a_client_that_lifts_the_limit_of_mps_is_reported(
    start: Start, kubelet: EmbeddedKubelet, short_path: Path
) -> None:
    """A replica's limit, removed behind our back, is reported; a client that was there before keeps its limit."""
    async with served(kubelet, short_path, BY_REPLICAS, {REPLICA: 4}) as node:
        pod, given = await admitted(kubelet, REPLICA, 1)
        first, second = (start(container(pod), given) for _ in range(2))
        await to_thread(node.connect, first)
        node.use(first)
        await listed(node, kubelet, "in effect")
        await node.connect_without_limit(second)
        node.use(first, second)
        told = await node.daemon.logged("limit_not_in_effect", pod="default/pod", container="main", limit_mib=4096)
        assert told["reason"].startswith(f"process {second} may have another limit: limits of MPS were changed")
        node.use(first)
        await node.daemon.logged("limit_in_effect", pod="default/pod")
        assert len(node.daemon.events("limit_not_in_effect")) == 1


async def test_a_variable_of_an_image_is_reported(start: Start, kubelet: EmbeddedKubelet, short_path: Path) -> None:
    """What no admission policy sees, as a variable of `envFrom` or an image, is found in the process, by its name."""
    async with served(kubelet, short_path, BY_MEMORY, {GPU_MEM: 16}) as node:
        pod, given = await admitted(kubelet, GPU_MEM, 2)
        program = start(container(pod), {**given, LIST: "0=16G", "PASSWORD": "secret"})
        await to_thread(node.connect, program)
        node.use(program)
        told = await node.daemon.logged("limit_not_in_effect", pod="default/pod")
        assert told["reason"] == f"process {program} has another {LIST} than its container was given"
        listing = await gpushare("list", "--device-plugin-path", kubelet.plugin_directory)
        assert f"the limit of default/pod (main) is not in effect: {told['reason']}" in listing.output


async def test_a_process_that_goes_round_mps_is_reported(
    start: Start, kubelet: EmbeddedKubelet, short_path: Path
) -> None:
    """A process on the card that the control daemon does not list is reported once the daemon was asked again."""
    async with served(kubelet, short_path, BY_MEMORY, {GPU_MEM: 16}) as node:
        pod, given = await admitted(kubelet, GPU_MEM, 2)
        program = start(container(pod), given)
        node.use(program)
        told = await node.daemon.logged("limit_not_in_effect", pod="default/pod")
        assert told["reason"] == f"process {program} is not a client of MPS"


async def listed(node: ServedNode, kubelet: EmbeddedKubelet, state: str) -> None:
    """Wait until `gpushare list` shows this state of the only container's limit."""

    async def shown() -> bool:
        found = await gpushare("list", "-o", "json", "--device-plugin-path", kubelet.plugin_directory)
        uses = json.loads(found.output)["gpus"][0]["uses"]
        return bool(uses) and (uses[0]["limitEffect"] or {}).get("state") == state

    await until(shown, lambda: str(node.daemon))
