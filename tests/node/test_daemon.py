"""Tests of `gpushare_plugin.node.daemon` that need no process of their own; `test_daemon` has the others."""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from gpushare_plugin.base.errors import DriverChangedError, NoGpuLibraryError
from gpushare_plugin.base.structs import field
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.core.gpu import FailedGpu, Inventory
from gpushare_plugin.node import daemon as app
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.ports import claim_port
from tests.nodes import Cards, a_node
from tests.process.daemon import answer, comes_to_answer
from tests.unit.sharing.settings import GPU_MEM
from tests.waiting import PATIENCE, until

SETTINGS = """\
health: {rescanSeconds: 0.05, probeSeconds: 0.05}
sharing: {memory: {resources: [{name: aliyun.com/gpu-mem}]}}
"""


class BreaksOnce(Cards):
    """GPUs whose second look returns no inventory, and whose later looks are fine."""

    looks = 0

    def read(self) -> Inventory:
        """Return something that is no inventory, the second time."""
        self.looks += 1
        return cast("Inventory", "nonsense") if self.looks == 2 else self.inventory


@pytest.fixture
def settings(tmp_path: Path) -> Configs:
    """Return a config under which the second look comes soon."""
    file = tmp_path / "config.yaml"
    file.write_text(SETTINGS)
    return Configs(file=file)


async def test_a_task_that_breaks_is_logged_and_restarted(
    kubelet: EmbeddedKubelet, settings: Configs, log: list[MutableMapping[str, Any]]
) -> None:
    """A defect in one task is logged with its stack and ends nothing else; the task starts again."""
    cards = BreaksOnce(a_node(8192))
    daemon = asyncio.create_task(app.serve(app.Daemon(settings, lambda _: cards, kubelet.plugin_directory)))
    await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 8})
    cards.inventory = a_node(8192, 8192)
    await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 16})
    daemon.cancel()
    await asyncio.wait([daemon])
    (broken,) = [each for each in log if each["event"] == "task_crashed"]
    assert (broken["task"], broken["log_level"]) == ("rescan", "error")
    assert broken["exc_info"]


class Unresponsive(Cards):
    """GPUs that are present and unresponsive."""

    looks = 0

    def __init__(self, inventory: Inventory, most: int) -> None:
        """Tell by `looked_at` that they were asked for the `most`th time."""
        super().__init__(inventory)
        self.most = most
        self.looked_at = threading.Event()

    def read(self) -> Inventory:
        """Count the looks."""
        self.looks += 1
        if self.looks == self.most:
            self.looked_at.set()
        return self.inventory


async def test_gpus_that_are_all_unresponsive_at_the_start_are_looked_at_often(
    kubelet: EmbeddedKubelet, tmp_path: Path
) -> None:
    """A node all of whose GPUs are lost is looked at every `probeSeconds`, as it is when they are lost later."""
    file = tmp_path / "config.yaml"
    file.write_text(SETTINGS + "flags: {failOnInitError: false}\n")
    cards = Unresponsive(Inventory((), failed=(FailedGpu(0, "GPU is lost", lost=True),)), most=9)
    serving = app.serve(app.Daemon(Configs(file=file), lambda _: cards, kubelet.plugin_directory))
    daemon = asyncio.create_task(serving)
    assert await asyncio.to_thread(cards.looked_at.wait, 60)  # less than pauses that double would take
    cards.inventory = a_node(8192)
    await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 8})
    daemon.cancel()
    await asyncio.wait([daemon])


async def test_a_driver_that_changed_ends_the_daemon(
    kubelet: EmbeddedKubelet, settings: Configs, log: list[MutableMapping[str, Any]]
) -> None:
    """Such a driver is no defect and no fault to wait out: nothing is retried, and the daemon ends with the reason."""
    cards = Cards(a_node(8192))
    daemon = asyncio.create_task(app.serve(app.Daemon(settings, lambda _: cards, kubelet.plugin_directory)))
    await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 8})
    cards.trouble = DriverChangedError("another driver")
    with pytest.raises(DriverChangedError, match=r"^another driver$"):
        await daemon
    assert [each for each in log if each["log_level"] == "error"] == []
    assert list(kubelet.plugin_directory.glob("gpushare-*.sock")) == []


class Lingering(Configs, frozen=True):
    """A config whose watch ends only when a test lets it."""

    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Watch the config, and wait in the end."""
        try:
            await Configs.watch(self, changed)
        finally:
            await self.let_go.wait()


async def test_a_daemon_that_ends_for_another_driver_is_not_well(kubelet: EmbeddedKubelet, tmp_path: Path) -> None:
    """However long it takes to end, the liveness probe fails meanwhile and says why."""
    file = tmp_path / "config.yaml"
    file.write_text(SETTINGS)
    configs, cards, port = Lingering(file=file), Cards(a_node(8192)), claim_port()
    address = f"127.0.0.1:{port}"
    serving = app.serve(app.Daemon(configs, lambda _: cards, kubelet.plugin_directory, http_address=address))
    daemon = asyncio.create_task(serving)
    await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 8})
    assert await answer(port, "/healthz") == (200, "ok\n")
    cards.trouble = DriverChangedError("another driver")
    await comes_to_answer(port, "/healthz", (503, "another driver\n"))
    assert not daemon.done()
    configs.let_go.set()
    with pytest.raises(DriverChangedError):
        await daemon


class WaitsFor(Cards):
    """GPUs whose driver answers once something else has happened."""

    def __init__(self, inventory: Inventory, happened: Callable[[], object]) -> None:
        """Answer once `happened`."""
        super().__init__(inventory)
        self._happened = happened

    def read(self) -> Inventory:
        """Return the GPUs, or fail where it does not happen for long."""
        end = time.monotonic() + PATIENCE
        while not self._happened():
            if time.monotonic() > end:
                raise NoGpuLibraryError("waited in vain")
            time.sleep(0.01)
        return super().read()


async def test_the_api_server_is_asked_while_the_driver_takes_its_time(
    kubelet: EmbeddedKubelet, settings: Configs, tmp_path: Path
) -> None:
    """Neither waits for the other, and units are offered once both have answered."""
    async with ApiServer() as server:
        membership = app.Membership("node", server.kubeconfig(tmp_path / "kubeconfig"))
        cards = WaitsFor(a_node(8192), lambda: server.asked)
        source, directory = (lambda _: cards), kubelet.plugin_directory
        daemon = asyncio.create_task(app.serve(app.Daemon(settings, source, directory, membership=membership)))
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 8})
        daemon.cancel()
        await asyncio.wait([daemon])


async def test_a_node_without_a_driver_does_not_wait_for_the_api_server(
    kubelet: EmbeddedKubelet, settings: Configs, tmp_path: Path
) -> None:
    """Where the driver fails, the daemon ends with that error, though the API server has not answered."""
    async with ApiServer() as server:
        server.silent = True
        membership = app.Membership("node", server.kubeconfig(tmp_path / "kubeconfig"))
        cards = Cards(Inventory(()))
        with pytest.raises(NoGpuLibraryError):
            await app.serve(app.Daemon(settings, lambda _: cards, kubelet.plugin_directory, membership=membership))
        assert kubelet.registrations == ()


async def test_probes_that_cannot_be_served_do_not_keep_pods_from_their_gpus(
    kubelet: EmbeddedKubelet, settings: Configs
) -> None:
    """Here somebody else has the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        daemon = asyncio.create_task(
            app.serve(
                app.Daemon(settings, lambda _: Cards(a_node(8192)), kubelet.plugin_directory, http_address=address)
            )
        )
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 8})
        assert not daemon.done()
        daemon.cancel()
        await asyncio.wait([daemon])


GPU = "nvidia.com/gpu"


class Gate:
    """A gate that loads of the config pass after they have read the file; open at first."""

    def __init__(self) -> None:
        """Count who comes."""
        self.came = 0
        self.inside = 0
        self.most_inside = 0
        self.kept_too_long = False
        self._open = threading.Event()
        self._open.set()

    def close(self) -> None:
        """Let nobody pass."""
        self._open.clear()

    def open(self) -> None:
        """Let everybody pass."""
        self._open.set()

    def go_through(self) -> None:
        """Come, and wait until the gate is open."""
        self.came += 1
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.kept_too_long |= not self._open.wait(PATIENCE)
        self.inside -= 1

    async def until_somebody_waits(self) -> None:
        """Wait until a load has read the file."""
        await until(lambda: self.inside)


class Gated(Configs, frozen=True):
    """A config that takes as long to load as a test wants."""

    gate: Gate = field(default_factory=Gate)

    def load(self, name: str | None = None) -> Loaded:
        """Load the config, and go through the gate with it."""
        loaded = Configs.load(self, name)
        self.gate.go_through()
        return loaded


def write_replicas(file: Path, count: int) -> None:
    """Write a config with so many replicas of each GPU."""
    file.write_text(f"sharing: {{timeSlicing: {{resources: [{{name: {GPU}, replicas: {count}}}]}}}}")


@asynccontextmanager
async def gated(kubelet: EmbeddedKubelet, file: Path) -> AsyncIterator[Gate]:
    """Run a daemon with one GPU of two replicas whose config goes through a gate."""
    write_replicas(file, 2)
    configs = Gated(file=file)
    cards = Cards(a_node(8192))
    daemon = asyncio.create_task(app.serve(app.Daemon(configs, lambda _: cards, kubelet.plugin_directory)))
    try:
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU: 2})
        yield configs.gate
    finally:
        configs.gate.open()
        daemon.cancel()
        await asyncio.wait([daemon])


async def test_pods_are_admitted_while_a_config_loads(kubelet: EmbeddedKubelet, tmp_path: Path) -> None:
    """However long a config takes to load, `Allocate` is answered meanwhile, and it is in effect afterwards."""
    file = tmp_path / "config.yaml"
    async with gated(kubelet, file) as gate:
        gate.close()
        write_replicas(file, 3)
        os.kill(os.getpid(), signal.SIGHUP)
        await gate.until_somebody_waits()
        admitted = await kubelet.admit(Pod("main", [Container("main", {GPU: 1})]))
        assert admitted.containers["main"].environment
        assert gate.inside == 1
        gate.open()
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU: 3})
        assert not gate.kept_too_long


async def test_the_newest_config_wins(kubelet: EmbeddedKubelet, tmp_path: Path) -> None:
    """What changes while an older config loads is loaded after it, one load for any number of changes."""
    file = tmp_path / "config.yaml"
    async with gated(kubelet, file) as gate:
        gate.close()
        write_replicas(file, 3)
        os.kill(os.getpid(), signal.SIGHUP)
        await gate.until_somebody_waits()
        before = gate.came
        for replicas in (4, 5, 6):
            write_replicas(file, replicas)
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)
        gate.open()
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU: 6})
        # The look at the file can have seen a change of its own.
        assert gate.came - before <= 2
        assert gate.most_inside == 1
