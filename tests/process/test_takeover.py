"""Two extenders, and two partitioners, as processes: one leads and ends, or is killed, and the other takes over."""

import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from gpushare_plugin.kube.client import NODES
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.ports import claim_port
from tests.process.daemon import Daemon, answer, process
from tests.unit.extender.extenders import LEASES, Asking, a_pod, assert_none_promised_twice, node, promised
from tests.unit.partitioner.partitioners import create_node, create_pod, slices, uuid
from tests.waiting import until

FOLLOWED = {
    "extender": {"nodes", "pods", "leases", "poddisruptionbudgets"},
    "partition": {"nodes", "pods", "leases"},
}
"""What each program follows."""
ENDS = [signal.SIGKILL, signal.SIGTERM]
"""Ways to end: the next one waits until the Lease has run out, or takes the Lease that was released."""


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server."""
    async with ApiServer() as running:
        yield running


def holder(server: ApiServer) -> str:
    """Return who holds the only Lease; empty for nobody."""
    return next((str(each["spec"]["holderIdentity"]) for each in server.store.find(LEASES)), "")


def lists_since(server: ApiServer, before: int) -> Counter[str]:
    """Return how many lists of which objects there were after so many requests."""
    return Counter(each.resource for each in server.asked[before:] if each.verb == "list")


@asynccontextmanager
async def following(server: ApiServer, kubeconfig: Path, command: str, *arguments: str) -> AsyncIterator[Daemon]:
    """Run a program beside those that run already, from when it follows everything."""
    watches = len(server.watches.open) + len(FOLLOWED[command])
    async with process(command, *arguments, "--kubeconfig", kubeconfig, "--log-format", "json") as daemon:
        await until(lambda: len(server.watches.open) == watches)
        yield daemon


async def ended(server: ApiServer, daemon: Daemon, end: signal.Signals, does: Callable[[], object]) -> int:
    """End the leader; return how many requests there were before, once the next one leads and does its work."""
    first, before = holder(server), len(server.asked)
    await daemon.stop(end)
    await until(lambda: holder(server) not in {first, ""})
    await until(does)
    return before


@pytest.mark.long
@pytest.mark.parametrize("end", ENDS)
async def test_the_next_extender_answers_without_a_list(server: ApiServer, tmp_path: Path, end: signal.Signals) -> None:
    """What the old leader promised the new one knows, and has followed all the time before it led."""
    server.store.create(NODES, node("small", 16))
    kubeconfig, ports = server.kubeconfig(tmp_path / "kubeconfig"), (claim_port(), claim_port())
    first, second = a_pod(server, "first", 10), a_pod(server, "second", 10)
    old, new = (("--listen-address", f"127.0.0.1:{port}") for port in ports)
    async with (
        following(server, kubeconfig, "extender", *old) as old_daemon,
        aiohttp.ClientSession(f"http://127.0.0.1:{ports[0]}") as old_http,
    ):
        await old_daemon.logged("extender_ready")
        async with (
            following(server, kubeconfig, "extender", *new) as new_daemon,
            aiohttp.ClientSession(f"http://127.0.0.1:{ports[1]}") as new_http,
        ):
            await answer(ports[1], "/version")
            leader, follower = Asking(old_http, server, ports[0]), Asking(new_http, server, ports[1])
            assert await leader.bind(first, "small") == ""
            assert "does not lead" in await follower.bind(second, "small")
            before = await ended(server, old_daemon, end, lambda: new_daemon.events("extender_ready"))
            assert await follower.used() == promised(server) == {("small", "GPU-small-0"): 10}
            assert lists_since(server, before) == {}
            assert await follower.bind(second, "small") != ""
            assert_none_promised_twice(server)


@pytest.mark.long
@pytest.mark.parametrize("end", ENDS)
async def test_the_next_partitioner_decides_without_a_list(
    server: ApiServer, tmp_path: Path, end: signal.Signals
) -> None:
    """A new pod gets its slice, beside the one that the old leader decided."""
    create_node(server, "n0", 40)
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    async with following(server, kubeconfig, "partition") as old:
        await old.logged("partitioner_ready")
        async with following(server, kubeconfig, "partition") as new:
            create_pod(server, "first", "10gb")
            await until(lambda: slices(server, "n0") == {uuid("n0", 0): {"10gb": 1}})
            before = await ended(server, old, end, lambda: new.events("partitioner_ready"))
            create_pod(server, "second", "20gb")
            await until(lambda: slices(server, "n0") == {uuid("n0", 0): {"10gb": 1, "20gb": 1}})
            assert lists_since(server, before) == {}
