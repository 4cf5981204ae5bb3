"""One `gpushare run` follows another on a node, under a stream of pods; pods that are not admitted are counted."""

import asyncio
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from gpushare_plugin.base.files.lock import is_locked
from gpushare_plugin.kubelet.device_plugin.succession import SUCCESSOR_FILE
from gpushare_plugin.testing.kubelet import AdmissionError, Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.ports import claim_port
from tests.cluster.tasks import alongside
from tests.process.daemon import Daemon, answer, gpushare, process

MEMORY, WHOLE = "aliyun.com/gpu-mem", "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
UNITS = {MEMORY: 48, WHOLE: 1}
GPUS = "gpus:\n" + "- {memory: 24GiB}\n" * 3
CONFIG = """\
version: v1
sharing: {memory: {resources: [{name: aliyun.com/gpu-mem, devices: [0, 1]}]}}
"""
OTHER = CONFIG.replace("memory:", "timeSlicing:").replace(
    MEMORY, "nvidia.com/gpu, replicas: 4, rename: nvidia.com/gpu.shared"
)


AWAY = re.compile("no healthy devices present|the client connection is closing|endpoint .* has been stopped")
"""What a kubelet says that has just disconnected a daemon."""


class Node:
    """A node on which daemons follow each other while pods come and go."""

    def __init__(self, folder: Path, kubelet: EmbeddedKubelet) -> None:
        """Have a kubelet that runs."""
        self.kubelet = kubelet
        self.admitted = 0
        self.refused: Counter[str] = Counter()
        self._folder = folder
        (folder / "gpus.yaml").write_text(GPUS)

    def daemon(self, config: str = CONFIG, *more: str) -> AbstractAsyncContextManager[Daemon]:
        """Run a daemon that stands by where another one serves."""
        file = self._folder / f"{len(config)}.yaml"
        file.write_text(config)
        where = ("--device-plugin-path", self.kubelet.plugin_directory)
        pods = ("--pod-resources-socket", self.kubelet.pod_resources_socket)
        simulated = ("--simulate", self._folder / "gpus.yaml", "--config-file", file)
        return process("run", *where, *pods, *simulated, "--stand-by", "true", *more)

    async def pods(self) -> None:
        """Admit one pod after the other, each for both resources, until cancelled."""
        while True:
            pod = Pod("pod", [Container("one", {MEMORY: 3}), Container("two", {WHOLE: 1})])
            try:
                await self.kubelet.admit(pod)
            except AdmissionError as error:
                self.refused[str(error)] += 1
            else:
                self.admitted += 1
                self.kubelet.delete(pod)
            await asyncio.sleep(0)

    async def more_pods(self, count: int) -> None:
        """Wait until so many more pods are admitted."""
        wanted = self.admitted + count
        await self.kubelet.wait_for(lambda _: self.admitted >= wanted)


@asynccontextmanager
async def a_node(folder: Path, *, knows_sockets: bool) -> AsyncIterator[Node]:
    """Run a kubelet of 1.37, or one of 1.36 and before that does not know sockets."""
    async with EmbeddedKubelet(folder, knows_sockets=knows_sockets) as kubelet:
        yield Node(folder, kubelet)


@asynccontextmanager
async def two_daemons(
    folder: Path, config: str = CONFIG, *, knows_sockets: bool = True
) -> AsyncIterator[tuple[Node, Daemon, Daemon]]:
    """Run a daemon that serves, and one with this config that stands by."""
    async with a_node(folder, knows_sockets=knows_sockets) as node, node.daemon() as daemon:
        await daemon.advertises(node.kubelet, UNITS)
        async with node.daemon(config) as following:
            await following.logged("standing_by")
            yield node, daemon, following


async def followed(daemon: Daemon, next_one: Daemon, end: signal.Signals = signal.SIGTERM) -> None:
    """End a daemon beside which another one stands by, and wait until that one serves."""
    await next_one.logged("standing_by")
    assert next_one.events("resource_registered") == []
    assert await daemon.stop(end) == (0 if end == signal.SIGTERM else -end)
    await next_one.logged("resource_registered", resource=MEMORY)
    await next_one.logged("resource_registered", resource=WHOLE)


async def test_every_pod_is_admitted_while_one_daemon_follows_another(short_path: Path) -> None:
    """The daemon that ends answers the kubelet until the next one is registered: three times in a row."""
    async with a_node(short_path, knows_sockets=True) as node, AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(node.daemon())
        await daemon.advertises(node.kubelet, UNITS)
        async with alongside(node.pods()):
            for _ in range(3):
                await node.more_pods(5)
                following = await stack.enter_async_context(node.daemon())
                await followed(daemon, following)
                daemon = following
            await node.more_pods(5)
        assert node.refused == {}
        assert node.kubelet.disconnections == ()
        assert await daemon.stop() == 0
        assert {path.name for path in node.kubelet.plugin_directory.glob("*.sock")} == {"kubelet.sock"}


async def test_a_kubelet_that_disconnects_the_next_daemon_gets_its_registration_again(short_path: Path) -> None:
    """Until 1.36, a kubelet disconnects the next daemon when the first one ends: the next one is back at once."""
    async with two_daemons(short_path, knows_sockets=False) as (node, daemon, following):
        async with alongside(node.pods()):
            await node.more_pods(5)
            await followed(daemon, following)
            await node.kubelet.wait_for(lambda seen: len(seen.disconnections) >= len(UNITS))
            await node.more_pods(20)
        await following.advertises(node.kubelet, UNITS)
        assert all(AWAY.search(each) for each in node.refused), node.refused


async def test_a_killed_daemon_is_followed_at_once(short_path: Path) -> None:
    """The kernel frees what a killed daemon had locked, and its sockets are removed."""
    async with two_daemons(short_path) as (node, daemon, following):
        await followed(daemon, following, signal.SIGKILL)
        await following.advertises(node.kubelet, UNITS)
        assert await following.stop() == 0
        assert {path.name for path in node.kubelet.plugin_directory.glob("*.sock")} == {"kubelet.sock"}


async def test_a_daemon_that_stands_by_is_ready_and_touches_nothing(short_path: Path) -> None:
    """A rolling update waits until the next daemon is ready; told to end, that one leaves the first one alone."""
    port = claim_port()
    async with a_node(short_path, knows_sockets=True) as node, node.daemon() as daemon:
        await daemon.advertises(node.kubelet, UNITS)
        async with node.daemon(CONFIG, "--http-address", f"127.0.0.1:{port}") as following:
            await following.logged("standing_by")
            assert is_locked(node.kubelet.plugin_directory / SUCCESSOR_FILE)
            assert await answer(port, "/readyz") == (200, "ok\n")
            assert await answer(port, "/healthz") == (200, "ok\n")
            listed = await gpushare("list", "--device-plugin-path", node.kubelet.plugin_directory, "-o", "json")
            assert '"source": "daemon"' in listed.output
            assert await following.stop() == 0
        assert len(node.kubelet.registrations) == len(UNITS)
        await node.kubelet.admit(Pod("pod", [Container("main", {MEMORY: 3})]))


async def test_a_daemon_that_cannot_use_its_config_does_not_stand_by(short_path: Path) -> None:
    """The update stops there, and the first daemon goes on."""
    async with a_node(short_path, knows_sockets=True) as node, node.daemon() as daemon:
        await daemon.advertises(node.kubelet, UNITS)
        async with node.daemon(CONFIG.replace("devices: [0, 1]", "devices: [0, 9]")) as following:
            assert await following.ended() == 1
            assert following.events("standing_by") == []
        await node.kubelet.admit(Pod("pod", [Container("main", {MEMORY: 3})]))


async def test_pods_keep_their_gpu_when_the_next_daemon_shares_in_another_way(short_path: Path) -> None:
    """A GPU with a pod that was admitted while the next daemon stood by is shared anew when the pod has ended."""
    async with two_daemons(short_path, OTHER) as (node, daemon, following):
        admitted = await node.kubelet.admit(Pod("pod", [Container("main", {MEMORY: 3})]))
        assert await daemon.stop() == 0
        await following.advertises(node.kubelet, {MEMORY: 0, SHARED: 4, WHOLE: 1})
        node.kubelet.delete(admitted.pod)
        await following.advertises(node.kubelet, {MEMORY: 0, SHARED: 8, WHOLE: 1})
