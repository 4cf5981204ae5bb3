"""Lives of a node with driver limits: containers, the agent and the driver come and go, and each limit stays true."""

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.driver_limits import NO_LIMIT, MemoryLimit
from gpushare_plugin.driver_limits.exchange import DriverLimitsRoot, LimitOrder, WantedContainer, WantedLimit
from gpushare_plugin.driver_limits.gpu import LimitsPace
from gpushare_plugin.driver_limits.service import serve
from gpushare_plugin.gpus.exchange import write_message
from gpushare_plugin.gpus.memory_limits import NoLimitAnswerError
from gpushare_plugin.gpus.nvml.memory_limits import NvmlMemoryLimits
from gpushare_plugin.testing.cgroups import CgroupTree, Driver, PodCgroups
from gpushare_plugin.testing.hosts import GPUS
from gpushare_plugin.testing.kubelet import Container, Pod, StartedContainer
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS, FakeNvml, LimitBackend
from gpushare_plugin.testing.runtime import RunningContainer, Runtime
from tests.unit.gpus.conftest import Node, describe
from tests.waiting import until

__all__ = ["describe"]

STEPS = int(os.environ.get("GPUSHARE_LIMIT_STEPS", "200"))
PACE = LimitsPace(look=0.01, ask=0.05, first=0.02, most=0.05, patience=5)
ALL = GPUS[0].memory_mib
MOST_CONTAINERS = 8
SHARE = ALL // MOST_CONTAINERS // 1024


class Life:
    """A node on which the hook and the agent set limits, and what each container is to have."""

    def __init__(self, nvml: FakeNvml, folder: Path, backend: LimitBackend, driver: Driver) -> None:
        """Begin without containers, and without the agent."""
        controllers = ("cpu", "misc", "dmem") if backend == "dmem" else ("cpu", "misc")
        self.nvml = nvml
        self.cgroups = CgroupTree(folder / "cgroup", controllers, nvml.regions, reuses_addresses=True)
        self.cgroups.make("kubepods.slice" if driver == "systemd" else "kubepods")
        self.runtime = Runtime(folder, PodCgroups(self.cgroups, driver), nvml, mode="jit-cdi")
        self.root = DriverLimitsRoot(folder / "driver-limits")
        self.root.path.mkdir()
        self.limits = NvmlMemoryLimits(folder / "driver-root", folder / "sys", folder / "proc")
        self.wanted: dict[str, tuple[RunningContainer, MemoryLimit]] = {}
        self._agent: asyncio.Task[None] | None = None

    async def start_agent(self) -> None:
        """Start the agent, or start it again."""
        await self.stop_agent()
        self._agent = asyncio.create_task(serve(self.root, self.limits, self.cgroups.root, PACE))

    async def stop_agent(self) -> None:
        """End the agent, if it runs."""
        if self._agent is not None:
            self._agent.cancel()
            with suppress(asyncio.CancelledError):
                await self._agent

    def order(self) -> None:
        """Tell the agent what all containers are to have, as the daemon does."""
        containers = tuple(
            WantedContainer(
                pod_uid=each.pod.uid,
                container_id=each.id,
                gpus=(WantedLimit(uuid=GPUS[0].uuid, hard_mib=mib(limit.hard), soft_mib=mib(limit.soft) or 0),),
            )
            for each, limit in self.wanted.values()
        )
        gpus = (GPUS[0].uuid,)
        write_message(self.root.wanted, LimitOrder(gpus=gpus, bursts=gpus, containers=containers))

    def start(self, limit: MemoryLimit, *, hook: bool) -> None:
        """Start a container that is to have a limit, which the hook sets, or the agent alone."""
        variables = {"NVIDIA_GPU_MEMORY_REQUEST": str(mib(limit.soft)), "NVIDIA_GPU_MEMORY_LIMIT": str(mib(limit.hard))}
        environment = {"NVIDIA_VISIBLE_DEVICES": GPUS[0].uuid, **(variables if hook else {})}
        started = StartedContainer("main", environment, (), (), {}, (), {})
        container = self.runtime.start(Pod("pod", [Container("main")]), started)
        self.wanted[container.id] = (container, limit)
        self.order()

    def end(self, container: RunningContainer) -> None:
        """End a container and its pod; the daemon notices after that."""
        del self.wanted[container.id]
        self.runtime.remove_pod(container.pod)
        self.order()

    def is_true(self) -> bool:
        """Return whether each container has the limits that it is to have."""
        return all(self.read(container.cgroup) == limit for container, limit in self.wanted.values())

    def read(self, cgroup: Path) -> MemoryLimit:
        """Return the limits of a cgroup; none where the driver names none."""
        try:
            return self.limits.read(GPUS[0].uuid, cgroup).limit
        except NoLimitAnswerError:
            return NO_LIMIT

    def check(self, container: RunningContainer, limit: MemoryLimit) -> None:
        """Compare what a container can allocate with its limit and with what is left of the card."""
        taken = {id_: sum(got.mib for got in each.allocations) for id_, (each, _) in self.wanted.items()}
        left = ALL - sum(taken.values())
        room = left if limit.hard is None else min(left, limit.hard // MIB - taken[container.id])
        assert self.runtime.room(container, 0) == room

    def leftovers(self) -> list[str]:
        """Return the numbers of the kernel's files that containers have left in the cgroups that there are."""
        untouched = {"0", "max", str(ALL * MIB)}
        lines = [line for file in self.cgroups.root.rglob("dmem.*") for line in file.read_text().splitlines()]
        return [line for line in lines if line.split()[1] not in untouched]


def mib(size: int | None) -> int | None:
    """Return bytes as MiB."""
    return None if size is None else size // MIB


def a_limit(draw: random.Random, *, bursts: bool) -> MemoryLimit:
    """Return a limit of a share, with a burst or without."""
    share = draw.randint(1, SHARE) * 1024 * MIB
    return MemoryLimit(2 * share, share) if bursts else MemoryLimit(share)


def steps(life: Life, draw: random.Random) -> list[tuple[Callable[[], object], int]]:
    """Return what can happen now, each with how often it does."""
    running = list(life.wanted.values())
    found: list[tuple[Callable[[], object], int]] = [(life.start_agent, 1)]
    if len(running) < MOST_CONTAINERS:
        found += [
            (lambda: life.start(a_limit(draw, bursts=False), hook=True), 6),
            (lambda: life.start(a_limit(draw, bursts=False), hook=False), 3),
            (lambda: life.start(a_limit(draw, bursts=True), hook=True), 2),
            (lambda: life.start(NO_LIMIT, hook=False), 2),
        ]
    if running:
        container, _ = draw.choice(running)
        found += [
            (lambda: life.end(container), 6),
            (lambda: life.runtime.allocate(container, 0, draw.randint(1, 2048)), 6),
            (lambda: life.limits.set(GPUS[0].uuid, container.cgroup, NO_LIMIT), 2),
        ]
    if not any(each.allocations for each, _ in running):
        found.append((lambda: life.nvml.reload_driver(life.cgroups.root), 2))
    return found


@pytest.mark.long
@pytest.mark.parametrize(("backend", "driver"), [("misc", "systemd"), ("dmem", "systemd"), ("misc", "cgroupfs")])
async def test_limits_stay_true_and_nothing_is_left_behind(
    describe: Node, tmp_path: Path, backend: LimitBackend, driver: Driver
) -> None:
    """Whatever happens, each container soon has its limit, and can allocate that much and no more.

    Containers with limits of the hook, of the agent alone, with bursts and without limits start and end; limits are
    removed behind our back; the agent and the driver start again; addresses of cgroups are used again. When all
    containers have ended, the cgroups that are left are as if there had been none.
    """
    nvml = describe(GPUS, driver_version=DRIVER_WITH_LIMITS, limit_backend=backend)
    life, draw = Life(nvml, tmp_path, backend, driver), random.Random(24)  # noqa: S311 - the same in each run
    life.order()
    await life.start_agent()
    for _ in range(STEPS):
        possible, weights = zip(*steps(life, draw), strict=True)
        done = draw.choices(possible, weights)[0]()
        if asyncio.iscoroutine(done):
            await done
        await until(life.is_true)
        if life.wanted:
            life.check(*draw.choice(list(life.wanted.values())))
    for container, _ in list(life.wanted.values()):
        life.end(container)
    await until(lambda: life.leftovers() == [])
    await life.stop_agent()


async def test_a_burst_that_no_look_of_the_agent_shows_leaves_nothing_reserved(describe: Node, tmp_path: Path) -> None:
    """A container that the hook limits may start and end between two looks of the agent, or while no agent runs."""
    life = Life(describe(GPUS, driver_version=DRIVER_WITH_LIMITS, limit_backend="dmem"), tmp_path, "dmem", "systemd")
    life.order()
    await life.start_agent()
    await until(life.root.ready.exists)
    start_and_end(life)
    await until(lambda: life.leftovers() == [])
    await life.stop_agent()
    start_and_end(life)
    await life.start_agent()
    await until(lambda: life.leftovers() == [])
    await life.stop_agent()


def start_and_end(life: Life) -> None:
    """Start a container with a burst, and end it before the agent can look."""
    life.start(MemoryLimit(2048 * MIB, 1024 * MIB), hook=True)
    [(container, _)] = life.wanted.values()
    life.end(container)
    assert [each.split()[1] for each in life.leftovers()] == [str(1024 * MIB)] * 2
