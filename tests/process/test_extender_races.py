"""The command `gpushare extender` as a process: it is killed, stopped and continued, and no GPU is promised twice."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from gpushare_plugin import __version__
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.ports import claim_port
from tests.process.daemon import Daemon, answer, gpushare, process
from tests.unit.extender.extenders import (
    LEASE,
    LEASES,
    Asking,
    Json,
    a_pod,
    annotations,
    assert_none_promised_twice,
    node,
    promised,
)
from tests.waiting import until

Start = Callable[[], AbstractAsyncContextManager["Running"]]


@dataclass
class Running(Asking):
    """A process, and a client of it."""

    daemon: Daemon


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with one node of one GPU."""
    async with ApiServer() as running:
        running.store.create(NODES, node("small", 16))
        yield running


@pytest.fixture
def start(server: ApiServer, tmp_path: Path) -> Start:
    """Return how to run an extender."""

    @asynccontextmanager
    async def run() -> AsyncIterator[Running]:
        kubeconfig, port = server.kubeconfig(tmp_path / "kubeconfig"), claim_port()
        arguments = ("--listen-address", f"127.0.0.1:{port}", "--kubeconfig", kubeconfig, "--log-format", "json")
        async with (
            process("extender", *arguments) as daemon,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
        ):
            await answer(port, "/version")
            yield Running(http, server, port, daemon)

    return run


def leave_the_lease(server: ApiServer) -> None:
    """Delete the Lease of an extender that is certainly dead, so that nobody waits for its end."""
    server.store.delete(LEASES, LEASE)


async def test_the_extender_serves_and_ends_by_a_signal(server: ApiServer, start: Start) -> None:
    """The command answers kube-scheduler, and at SIGTERM releases its Lease and ends well."""
    async with start() as running:
        await running.ready()
        assert await running.get("/version") == (200, f"{__version__}\n")
        first = a_pod(server, "first", 10)
        assert await running.fits(first, "small", "none") == ["small"]
        assert await running.bind(first, "small") == ""
        await running.daemon.logged("pod_bound", pod="team/first", node="small", gpus=["GPU-small-0"])
        assert await running.daemon.stop() == 0, str(running.daemon)
        await running.daemon.logged("leadership_released")
        assert server.store.find(LEASES, LEASE)[0]["spec"]["holderIdentity"] == ""


async def test_a_kill_before_the_binding_frees_the_promised_units(server: ApiServer, start: Start) -> None:
    """A promise that was only in memory is gone with the process: the units are free for the next one."""
    first, second = a_pod(server, "first", 10), a_pod(server, "second", 10)
    async with start() as running:
        await running.ready()
        server.held.add("pods/binding")
        with pytest.raises(aiohttp.ClientError):
            await _killed_while_binding(server, running, first)
    server.held.clear()
    assert annotations(server, "first") == {}
    leave_the_lease(server)
    async with start() as running:
        await running.ready()
        assert await running.used() == {}
        assert await running.bind(second, "small") == ""
        assert await running.bind(first, "small") != ""
        assert_none_promised_twice(server)


async def test_a_kill_after_the_binding_leaves_the_pod_its_gpu(server: ApiServer, start: Start) -> None:
    """A pod that was bound keeps its GPU, also where the extender died before it heard of it."""
    first, second = a_pod(server, "first", 10), a_pod(server, "second", 10)
    async with start() as running:
        await running.ready()
        server.late["pods/binding"] = 30.0
        with pytest.raises(aiohttp.ClientError):
            await _killed_while_binding(server, running, first)
    server.late.clear()
    before = annotations(server, "first")
    leave_the_lease(server)
    async with start() as running:
        await running.ready()
        assert await running.used() == promised(server) == {("small", "GPU-small-0"): 10}
        assert await running.bind(second, "small") != ""
        assert await running.bind(first, "small") == ""
        assert annotations(server, "first") == before


async def _killed_while_binding(server: ApiServer, running: Running, asked: Json) -> None:
    """Kill the process once the API server has its Binding; raises what the client sees of that."""
    binding = asyncio.create_task(running.bind(asked, "small"))
    await until(lambda: "pods/binding" in {each.resource for each in server.begun})
    running.daemon.process.kill()
    await binding


async def test_a_leader_that_was_stopped_for_long_does_not_go_on(server: ApiServer, start: Start) -> None:
    """A process that is paused for longer than its Lease finds, when it continues, that it does not lead any more.

    What it was asked meanwhile it refuses, though the other extender has given its last units away.
    """
    first, second = a_pod(server, "first", 10), a_pod(server, "second", 10)
    async with start() as old:
        await old.ready()
        async with start() as new:
            await _paused(server, old, new, first, second)


async def _paused(server: ApiServer, old: Running, new: Running, first: Json, second: Json) -> None:
    """Pause the old leader until the new one has bound the first pod; the old one is asked for the second meanwhile."""
    old.daemon.process.send_signal(signal.SIGSTOP)
    late = asyncio.create_task(old.bind(second, "small"))
    await new.daemon.logged("extender_ready")
    assert await new.bind(first, "small") == ""
    old.daemon.process.send_signal(signal.SIGCONT)
    assert "does not lead" in await late
    assert_none_promised_twice(server)
    assert annotations(server, "second") == {}
    await old.daemon.logged("leadership_lost")
    assert "does not lead" in await old.bind(second, "small")


async def test_mistakes_on_the_command_line_are_refused_in_words(tmp_path: Path) -> None:
    """An option that makes no sense is refused in words, before anything is served."""
    for arguments, words in (
        (("--listen-address", "nowhere"), "--listen-address"),
        (("--tls-key", tmp_path / "key"), "HTTPS needs both --tls-certificate and --tls-key"),
        (("--tls-secret", "made", "--tls-key", tmp_path / "key"), "leave out either it or the other options"),
        (("--tls-secret", "made"), "--tls-secret needs --service-name"),
        (("--placement", "luck"), "binpack"),
        (("--packing-exact", "true"), "--packing-exact needs --placement packing, found binpack"),
    ):
        finished = await gpushare("extender", *arguments)
        assert (finished.status, words in finished.errors) == (2, True), finished
