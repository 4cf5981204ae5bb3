"""Anything happens to the containers and processes of a node with MPS namespaces, in any order; nothing is left behind.

`GPUSHARE_NAMESPACES_STEPS` and `GPUSHARE_NAMESPACES_SEED` choose how much happens, and what.
"""

import contextlib
import os
import random
from collections.abc import AsyncIterator, Iterator

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.namespaces import namespace_name
from gpushare_plugin.gpus.compute_modes import ComputeMode
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.testing.kubelet import AdmissionError, Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.mps import FakeClient, FakeMps, FakeMpsError
from tests.node.living import Life, no_defects
from tests.node.starting import start, start_again
from tests.node.test_mps_namespaces import as_on_the_host
from tests.nodes import Cards, a_node
from tests.unit.mps.supervised import Modes, supervising
from tests.waiting import until

GPU_MEM = "aliyun.com/gpu-mem"
STEPS = int(os.environ.get("GPUSHARE_NAMESPACES_STEPS", "30"))
SEED = int(os.environ.get("GPUSHARE_NAMESPACES_SEED", "615"))
SETTINGS = {
    "flags": {"mpsProtocol": 3},
    "sharing": {"memory": {"resources": [{"name": GPU_MEM, "isolation": "mps"}]}},
}


class Node:
    """A node of two GPUs, both halves of gpushare in this process, and the pods and programs on it."""

    def __init__(self, kubelet: EmbeddedKubelet, mps: FakeMps) -> None:
        """Have no pods yet."""
        inventory = replace(a_node(16384, 16384), driver_version="615.71.09")
        self.kubelet = kubelet
        self.mps = mps
        self.root = MpsRoot(kubelet.plugin_directory.parent / "mps")
        self.life = Life(Cards(inventory), kubelet)
        self.life.ask_every = 0.05
        self.modes = Modes()
        self.modes.modes = {gpu.uuid: ComputeMode.DEFAULT for gpu in inventory.cards}
        self.pods: list[Pod] = []
        self.programs: dict[str, FakeClient] = {}
        self.keeping = contextlib.AsyncExitStack()

    async def keep(self) -> None:
        """Run the half with the MPS control daemon."""
        await self.keeping.enter_async_context(supervising(self.root, self.modes))

    def limits(self) -> dict[str, str]:
        """Return the limit of memory of each namespace, as the control daemon tells it."""
        answer = self.mps.ask(self.root.pipe, "namespace list --server=gpushare --format=csv,noheader")
        rows = [line.split(",") for line in answer.splitlines()]
        return {name: memory for name, _, _, memory, *_ in rows if name != "default"}

    # ------------------------------------------------------------------ what can happen

    async def admit(self, chance: random.Random) -> None:
        """Let a pod in, if there is room; each container has the limit of its units when it starts."""
        names = ["one", "two"][: chance.randint(1, 2)]
        init = [Container("init", {GPU_MEM: chance.randint(1, 4)})] if chance.random() < 0.5 else []
        pod = Pod(f"pod-{chance.random()}", [Container(each, {GPU_MEM: chance.randint(1, 4)}) for each in names], init)
        with contextlib.suppress(AdmissionError):
            started = await start(self.kubelet, pod)
            self.pods.append(pod)
            limits = self.limits()
            for each in started.values():
                assert limits[namespace_name(each.device_ids[GPU_MEM])] == f"{len(each.device_ids[GPU_MEM])}G"

    async def restart_container(self, chance: random.Random) -> None:
        """Start a container of a pod anew, with a program in it in place of the one before."""
        if self.pods:
            pod = chance.choice(self.pods)
            started = await start_again(self.kubelet, pod, "one")
            self.stop_program(pod)
            program = self.mps.program(as_on_the_host(started))
            self.programs[pod.uid] = program
            assert program.memory_mib == [len(started.device_ids[GPU_MEM]) * 1024]

    async def delete(self, chance: random.Random) -> None:
        """Delete a pod, whose program ends with it."""
        if self.pods:
            pod = self.pods.pop(chance.randrange(len(self.pods)))
            self.stop_program(pod)
            self.kubelet.delete(pod)

    async def meddle(self, chance: random.Random) -> None:
        """Change a limit from outside, which lasts a moment."""
        if limits := self.limits():
            name = chance.choice(sorted(limits))
            self.mps.ask(self.root.pipe, f"namespace set {name} --server=gpushare --pinned-memory-limit=77M")
            await until(lambda: self.limits().get(name) != "77M")

    async def restart_plugin(self, _chance: random.Random) -> None:
        """Restart the half that serves the kubelet."""
        await self.life.restart(**SETTINGS)
        await self.served()

    async def restart_kubelet(self, chance: random.Random) -> None:
        """Restart the kubelet."""
        await self.kubelet.restart(graceful=chance.random() < 0.5)
        await self.served()

    async def crash(self, _chance: random.Random) -> None:
        """Kill the MPS control daemon, with which its programs end."""
        before = self.mps.crash(self.root.pipe)
        for program in self.programs.values():
            program.close()
        self.programs.clear()
        await until(lambda: self._control_daemon() not in {None, before})
        await self.served()

    def _control_daemon(self) -> int | None:
        with contextlib.suppress(FakeMpsError):
            return self.mps.pid(self.root.pipe)
        return None

    def stop_program(self, pod: Pod) -> None:
        """End the program of a pod."""
        if (program := self.programs.pop(pod.uid, None)) is not None:
            program.close()

    async def served(self) -> None:
        """Wait until all units can be allocated."""
        await self.life.healthy({GPU_MEM: 32})


@contextlib.asynccontextmanager
async def a_node_with_namespaces(kubelet: EmbeddedKubelet, mps: FakeMps) -> AsyncIterator[Node]:
    """Run both halves."""
    node = Node(kubelet, mps)
    with no_defects():
        async with node.keeping:
            await node.keep()
            await node.life.start(**SETTINGS)
            try:
                await node.served()
                yield node
            finally:
                await node.life.stop()
                for program in node.programs.values():
                    program.close()


@pytest.fixture
def mps(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMps]:
    """Let this process find the stand-in for nvidia-cuda-mps-control."""
    with FakeMps() as programs:
        for name, value in programs.environment.items():
            monkeypatch.setenv(name, value)
        yield programs


async def test_nothing_is_left_behind(kubelet: EmbeddedKubelet, mps: FakeMps) -> None:
    """After each step every container has its limits; in the end, without pods, no namespace is left."""
    chance = random.Random(SEED)  # noqa: S311 - no secret
    async with a_node_with_namespaces(kubelet, mps) as node:
        steps = [node.admit, node.restart_container, node.delete, node.meddle]
        rare = [node.restart_plugin, node.restart_kubelet, node.crash]
        for _ in range(STEPS):
            await chance.choice(steps * 3 + rare)(chance)
        while node.pods:
            await node.delete(chance)
        await until(lambda: node.limits() == {}, lambda: str(node.limits()))
    assert mps.processes() == []
    assert set(node.modes.modes.values()) == {ComputeMode.DEFAULT}
