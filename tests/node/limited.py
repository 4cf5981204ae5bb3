"""A node that limits the memory of containers in one of all ways, with its agents, container runtime and programs.

The daemon, `gpushare mps` and `gpushare driver-limits` run in the test itself, beside an embedded kubelet and an API
server. What a program can allocate is up to the stand-ins for NVML and MPS.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.effect import Effect
from gpushare_plugin.core.usage import GpuUsage, Owner, Process
from gpushare_plugin.driver_limits.exchange import DriverLimitsRoot
from gpushare_plugin.driver_limits.gpu import LimitsPace
from gpushare_plugin.driver_limits.service import serve
from gpushare_plugin.gpus.compute_modes import ComputeMode
from gpushare_plugin.gpus.memory_limits import LimitError, LimitReading
from gpushare_plugin.gpus.nvml.gpus import NvmlSource
from gpushare_plugin.gpus.nvml.memory_limits import NvmlMemoryLimits
from gpushare_plugin.gpus.source import Asked
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.testing.cgroups import CgroupTree, PodCgroups
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.hosts import GPUS, specification
from gpushare_plugin.testing.kubelet import EmbeddedKubelet, Pod, StartedContainer
from gpushare_plugin.testing.mps import FakeClient, FakeMps, FakeMpsError
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS, FakeNvml
from gpushare_plugin.testing.runtime import RunningContainer, Runtime
from tests.node.promises import FollowedNode, Promised, path
from tests.node.starting import start, start_again
from tests.node.test_mps_namespaces import as_on_the_host
from tests.nodes import Cards, a_gpu
from tests.shown import ShownProcesses, shown_processes
from tests.unit.kube.cluster import a_node
from tests.unit.mps.supervised import Modes, supervising
from tests.waiting import until

GPU_GIB = 16
LIMITS_PACE = LimitsPace(look=0.01, ask=0.05, first=0.02, most=0.05, patience=5)
Found = Mapping[tuple[str, str, str], tuple[int | None, Effect | None]]
"""The limits in MiB that the daemon found, with their effect, by pod, container and UUID of the GPU."""


@dataclass(frozen=True)
class Way:
    """A way to limit memory, as a config and a node have it."""

    isolation: str
    protocol: int = 2
    hook: bool = False
    """Whether NVIDIA's container toolkit has the hook that sets driver limits."""
    agent: bool = False
    """Whether `gpushare driver-limits` runs."""

    @property
    def settings(self) -> str:
        """The sections of a config beside `flags`: shares of memory; nobody looks at the GPUs by itself."""
        several = ", allowMultiGPUShares: true" if (self.isolation, self.protocol) == ("mps", 2) else ""
        entry = f"{{name: aliyun.com/gpu-mem, isolation: {self.isolation}{several}}}"
        return f"health: {{rescanSeconds: 60}}\nsharing: {{memory: {{resources: [{entry}]}}}}\n"

    @property
    def flags(self) -> str:
        """More flags of the config."""
        return f", mpsProtocol: {self.protocol}" + (", plugin: {deviceListStrategy: cdi-cri}" if self.hook else "")


WAYS = {
    "mps, protocol 2": Way("mps"),
    "mps, protocol 3": Way("mps", protocol=3),
    "hami-core": Way("hami-core"),
    "driver, by the hook": Way("driver", hook=True),
    "driver, by the agent": Way("driver", agent=True),
    "driver+mps": Way("driver+mps", agent=True),
    "driver+mps, protocol 3": Way("driver+mps", protocol=3, agent=True),
}
"""Every isolation, in each way to set its limits."""


class LimitedCards(Cards):
    """GPUs and their use in the hands of a test, and the driver's answers about limits."""

    source: NvmlSource

    def read_limits(self, asked: Sequence[Asked]) -> Mapping[Asked, LimitReading | LimitError]:
        """Ask the driver."""
        return self.source.read_limits(asked)


@dataclass
class Program:
    """A program in a container, and what the container was promised of each GPU, in MiB by the index of the GPU."""

    container: RunningContainer
    started: StartedContainer
    promised: Mapping[int, int]
    pid: int
    client: FakeClient | None = None

    @property
    def names(self) -> tuple[str, str]:
        """The names of the pod and the container."""
        return self.container.pod.name, self.container.name


@dataclass
class Machine:
    """What is on a node without gpushare: driver, MPS, cgroups, container runtime, processes."""

    folder: Path
    nvml: FakeNvml
    mps: FakeMps
    way: Way
    by_claim: bool = False
    """Whether the kubelet names CDI devices also where the toolkit has no hook."""
    shown: ShownProcesses = field(init=False)

    def __post_init__(self) -> None:
        """Describe cgroups, the specifications of GPUs, and a container runtime."""
        self.cgroups = CgroupTree(self.folder / "cgroup", ("cpu", "misc"))
        self.cgroups.make("kubepods.slice")
        self.spec_dir = self.folder / "cdi"
        self.spec_dir.mkdir()
        described = specification(driver=DRIVER_WITH_LIMITS, limits=self.way.hook)
        for index, gpu in enumerate(GPUS):
            described = described.replace(gpu.uuid, a_gpu(index).uuid)
        (self.spec_dir / "nvidia.json").write_text(described)
        mode, pods = ("cdi" if self.way.hook or self.by_claim else "legacy"), PodCgroups(self.cgroups)
        self.runtime = Runtime(self.folder, pods, self.nvml, mode=mode, cdi=[self.spec_dir])  # type: ignore[arg-type] # a mode
        self.library = self.folder / "libvgpu.so"
        self.library.write_bytes(b"library")

    def run(self, pod: Pod, started: StartedContainer, promised: Mapping[int, int]) -> Program:
        """Create a container, and run a program in it that uses its GPUs by its isolation."""
        container = self.runtime.start(pod, started)
        owner = Owner(pod.uid, container.id)
        if "mps" in self.way.isolation:
            client = self.mps.program(as_on_the_host(started))
            self.shown.show(client.pid, owner, started.environment)
            return Program(container, started, promised, client.pid, client)
        if self.way.isolation == "hami-core":
            pid = self.shown.start(owner, started.environment, self.library)
            return Program(container, started, promised, pid)
        return Program(container, started, promised, container.pid)

    def end(self, program: Program) -> None:
        """End a container with its program."""
        if program.client is not None:
            program.client.close()
        self.runtime.stop(program.container)

    def check(self, program: Program) -> None:
        """Compare what a program can allocate with what its container was promised."""
        sizes = list(program.promised.values())
        if program.client is not None and self.way != WAYS["driver+mps"]:
            assert program.client.memory_mib == sizes
        if "driver" in self.way.isolation:
            assert [self.runtime.room(program.container, gpu) for gpu in program.promised] == sizes
        if self.way.isolation == "hami-core":
            given = program.started.environment
            assert [given[f"CUDA_DEVICE_MEMORY_LIMIT_{place}"] for place, _ in enumerate(sizes)] == [
                f"{size}m" for size in sizes
            ]


class LimitedNode(FollowedNode):
    """A node of two GPUs of 16 GiB, whose containers run programs."""

    def __init__(self, server: ApiServer, kubelet: EmbeddedKubelet, machine: Machine) -> None:
        """Have no pods yet; nothing runs before `start`."""
        super().__init__(server, kubelet, machine.folder, GPU_GIB, GPU_GIB)
        self.machine, self.way = machine, machine.way
        self.settings, self.flags = self.way.settings, self.way.flags
        self.cards = LimitedCards(replace(self.cards.inventory, driver_version=DRIVER_WITH_LIMITS))
        self.cards.source = NvmlSource(machine.folder, machine.folder, machine.folder)
        self.cards.source.read()
        self.cgroup_root, self.procfs = machine.cgroups.root, machine.runtime.procfs
        self.cdi_spec_dirs = (machine.spec_dir,)
        self.limits_root = machine.folder / "driver-limits" if self.way.agent else None
        self.programs: list[Program] = []
        self.seen: Found = {}
        self._agents = AsyncExitStack()

    # ------------------------------------------------------------------ what runs

    async def start_agents(self) -> None:
        """Start `gpushare mps` and `gpushare driver-limits`, as far as this way to limit memory needs them."""
        if "mps" in self.way.isolation:
            modes = Modes()
            modes.modes = {gpu.uuid: ComputeMode.DEFAULT for gpu in self.cards.inventory.cards}
            await self._agents.enter_async_context(supervising(MpsRoot(self.machine.folder / "mps"), modes, ask=0.2))
        if self.limits_root is not None:
            await self._agents.enter_async_context(self._limiting(DriverLimitsRoot(self.limits_root)))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the daemon and its agents, from when all GPUs can be had until the end of the block, and of programs."""
        await self.start_agents()
        try:
            await self.start()
            await self.served()
            yield
        finally:
            self.end(self.programs)
            await self.stop()
            await self.stop_agents()

    async def stop_agents(self) -> None:
        """Stop both in good order."""
        await self._agents.aclose()

    @asynccontextmanager
    async def _limiting(self, root: DriverLimitsRoot) -> AsyncIterator[None]:
        root.path.mkdir(exist_ok=True)
        folder = self.machine.folder
        limits = NvmlMemoryLimits(folder, folder, folder)
        running = asyncio.create_task(serve(root, limits, self.machine.cgroups.root, LIMITS_PACE))
        try:
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def served(self) -> None:
        """Wait until all units can be allocated."""
        await self.kubelet.wait_for(lambda seen: sum(seen.allocatable().values()) == 2 * GPU_GIB)

    # ------------------------------------------------------------------ containers

    async def run(self, pod: Pod, promised: Promised, annotations: Mapping[str, str] | None = None) -> None:
        """Run the containers of a pod, which were promised units of GPUs by index, perhaps by `annotations`.

        Its init containers come first, and end once their limits are in effect.
        """
        await self.bind(pod, promised if annotations is None else None, annotations)
        started = await start(self.kubelet, pod)
        for each in pod.in_order():
            program = self._begin(pod, started[each.name], _in_mib(promised[each.name]))
            if each in pod.init_containers and not each.restartable:
                await self.holds()
                self.end([program])

    def _begin(self, pod: Pod, started: StartedContainer, promised: Mapping[int, int]) -> Program:
        program = self.machine.run(pod, started, promised)
        self.programs.append(program)
        own = [each for each in self.programs if each.container.pod.uid == pod.uid]
        statuses = [{"name": each.container.name, "containerID": f"containerd://{each.container.id}"} for each in own]
        self.server.store.patch(path(pod), pod.name, {"status": {"phase": "Running", "containerStatuses": statuses}})
        return program

    def end(self, programs: Iterable[Program]) -> None:
        """End containers."""
        for each in list(programs):
            self.programs.remove(each)
            self.machine.end(each)

    def delete(self, pod: Pod) -> None:
        """Delete a pod."""
        self.end(each for each in self.programs if each.container.pod.uid == pod.uid)
        self.server.store.delete(path(pod), pod.name)
        self.kubelet.delete(pod)

    async def start_again(self, programs: Collection[Program]) -> None:
        """Start containers anew once all units can be allocated, as far as pods are concerned."""
        await self.served()
        for each in programs:
            pod = each.container.pod
            self._begin(pod, await start_again(self.kubelet, pod, each.container.name), each.promised)

    # ------------------------------------------------------------------ what can happen

    async def restart_containers(self) -> None:
        """End all containers, and start them again."""
        before = list(self.programs)
        self.end(before)
        await self.start_again(before)

    async def restart_daemon(self) -> None:
        """Restart `gpushare run`; containers go on."""
        await self.stop()
        await self.start()
        await self.served()

    async def restart_agents(self) -> None:
        """Restart `gpushare mps`, with which programs under MPS end, and `gpushare driver-limits`."""
        ended = self.programs[:] if "mps" in self.way.isolation else []
        self.end(ended)
        await self.stop_agents()
        await self.start_agents()
        if ended:
            await until(self._control_daemon)
        await self.start_again(ended)

    async def restart_kubelet(self) -> None:
        """Restart the kubelet; containers go on."""
        await self.kubelet.restart()
        await self.served()

    async def restart_driver(self) -> None:
        """Unload the driver and load it again: before, all programs and the MPS control daemon have to end."""
        ended = self.programs[:]
        self.end(ended)
        if "mps" in self.way.isolation:
            crashed = self.machine.mps.crash(self.pipe)
            await until(lambda: self._control_daemon() not in {None, crashed})
        self.machine.nvml.reload_driver(self.machine.cgroups.root)
        await self.start_again(ended)

    @property
    def pipe(self) -> Path:
        """The directory of the pipes of MPS."""
        return self.machine.folder / "mps/pipe"

    def _control_daemon(self) -> int | None:
        with suppress(FakeMpsError):
            return self.machine.mps.pid(self.pipe)
        return None

    # ------------------------------------------------------------------ what is found

    async def holds(self) -> None:
        """Wait until the daemon finds the limit of each container in effect; programs can allocate that and no more."""
        expected = {
            (*each.names, a_gpu(gpu).uuid): (mib, True) for each in self.programs for gpu, mib in each.promised.items()
        }

        async def found() -> bool:
            self.seen = await self._look()
            return expected.items() <= {who: (mib, _holds(effect)) for who, (mib, effect) in self.seen.items()}.items()

        await until(found, lambda: f"{expected} expected: {self.seen}")
        for each in self.programs:
            self.machine.check(each)

    async def _look(self) -> Found:
        """Let the daemon look, and return what it finds."""
        self.cards.samples = tuple(map(self._sample, range(2)))
        ids = {("default", *each.names): each.container.id for each in self.programs}
        return {
            (each.pod, each.container, each.gpu): (None if each.limit is None else each.limit // MIB, each.effect)
            for each in await self.usages(ids)
        }

    def _sample(self, gpu: int) -> GpuUsage:
        using = [each for each in self.programs if gpu in each.promised]
        processes = tuple(
            Process(each.pid, "python", 100 * MIB, 0.5, Owner(each.container.pod.uid, each.container.id))
            for each in using
        )
        return GpuUsage(a_gpu(gpu).uuid, GPU_GIB * 1024 * MIB, None, 0.5, processes)


def _holds(effect: Effect | None) -> bool:
    return effect is not None and effect.state in {"in effect", "in effect since"}


def _in_mib(promised: Mapping[int, int]) -> dict[int, int]:
    return {gpu: units * 1024 for gpu, units in promised.items()}


@contextmanager
def machine(folder: Path, nvml: FakeNvml, way: Way, *, by_claim: bool = False) -> Iterator[Machine]:
    """Describe a machine; its programs end with the block."""
    with FakeMps() as mps, pytest.MonkeyPatch.context() as patch:
        for name, value in mps.environment.items():
            patch.setenv(name, value)
        made = Machine(folder, nvml, mps, way, by_claim)
        with shown_processes(made.runtime.procfs) as made.shown:
            yield made


@asynccontextmanager
async def limited(kubelet: EmbeddedKubelet, made: Machine) -> AsyncIterator[LimitedNode]:
    """Run the daemon and its agents on a machine, until all units can be allocated."""
    async with ApiServer() as server:
        a_node(server)
        node = LimitedNode(server, kubelet, made)
        async with node.running():
            yield node
