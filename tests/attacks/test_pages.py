"""What whoever reaches the port of the pages can send to `gpushare web` in a cluster."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from gpushare_plugin.ledger.node_record import encode
from gpushare_plugin.observe.http.connections import MOST_CONNECTIONS
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.ports import claim_port
from tests.process.daemon import Daemon, comes_to_answer, process
from tests.process.test_inspect import a_node
from tests.unit.observe.cluster.clusters import gpu, recorded
from tests.unit.web.visited import a_cluster, asked
from tests.waiting import PATIENCE

CROWD = 2000
"""Connections of an attacker, many times as many as the server has at a time."""
LARGE = 1000
"""Nodes of a large cluster, whose map has 1.3 MB."""
MOST_GROWTH = 64 << 20
"""Bytes by which the memory of the program may grow under attack."""


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with pods of two namespaces, and users."""
    async with ApiServer() as running:
        a_cluster(running)
        yield running


@dataclass
class Target:
    """The program under attack."""

    daemon: Daemon
    port: int

    @property
    def address(self) -> str:
        """The address of the pages."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def memory(self) -> int:
        """The bytes of memory that the program has."""
        found: int = psutil.Process(self.daemon.process.pid).memory_info().rss
        return found

    async def sent(self, text: bytes) -> bytes:
        """Send bytes on a connection of its own; return what comes back until the server hangs up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            with contextlib.suppress(ConnectionError):
                writer.write(text)
                await writer.drain()
                async with asyncio.timeout(PATIENCE):
                    return await reader.read()
            return b""
        finally:
            writer.transport.abort()

    async def serves(self) -> None:
        """See that a user is shown what the user may see, and that nobody else is shown anything."""
        status, page = await asked(f"{self.address}/nodes/gpu-1", "token-of-alice")
        assert (status, "red-pod" in page, "blue" in page) == (200, True, False)
        assert (await asked(self.address))[0] == 401


@pytest.fixture
async def target(server: ApiServer, tmp_path: Path) -> AsyncIterator[Target]:
    """Run the pages, without any line in the log at the end that tells of a defect."""
    port, probes = claim_port(), claim_port()
    addresses = (f"--listen-address=127.0.0.1:{port}", f"--probe-address=127.0.0.1:{probes}")
    async with process("web", *addresses, "--kubeconfig", server.kubeconfig(tmp_path / "kubeconfig")) as daemon:
        await comes_to_answer(probes, "/readyz", (200, "ok\n"))
        found = Target(daemon, port)
        yield found
        await found.serves()
        await comes_to_answer(probes, "/healthz", (200, "ok\n"))
        assert not daemon.gone
        assert [each for each in daemon.log if "token-of" in str(each)] == []


HEADS = (
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /?node=" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Remote-Group: g\r\n" * 10_000 + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX-Remote-User : alice\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n X-Remote-User: alice\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\nX-Remote-User: alice\n\n",
    b"GET http://elsewhere.example/nodes/gpu-1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00" + bytes(600),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
"""Beginnings of requests that are too long, ambiguous or of another protocol."""
METHODS = ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND")


async def test_a_head_that_is_no_request_shows_nothing(target: Target) -> None:
    """It is refused, or answered as a stranger's, and the connection ends."""
    for head in HEADS:
        answer = await target.sent(head)
        assert answer == b"" or answer.split()[1] in {b"400", b"401", b"404"}, head[:100]
        assert b"gpu-1" not in answer


async def test_nothing_but_reading_is_answered(target: Target) -> None:
    """Also with the token of a user, and no header lets a page from elsewhere read an answer."""
    who = "Authorization: Bearer token-of-olga\r\nOrigin: https://evil.example\r\nConnection: close\r\n"
    for method in METHODS:
        head = f"{method} / HTTP/1.1\r\nHost: x\r\n{who}Content-Length: 0\r\n\r\n"
        answer = (await target.sent(head.encode())).decode()
        assert answer.split()[1] in {"400", "405"}, method
        assert "access-control" not in answer.lower()
        assert "gpu-1" not in answer
    read = (await target.sent(f"GET / HTTP/1.1\r\nHost: x\r\n{who}\r\n".encode())).decode()
    assert (read.split()[1], "access-control" in read.lower()) == ("200", False)


async def test_a_name_that_leads_here_shows_nothing_without_a_token(target: Target) -> None:
    """A browser sends what it keeps for the name of the pages to no other name."""
    status, text = await asked(f"{target.address}/nodes/gpu-1", headers={"Host": "rebound.example"})
    assert (status, "gpu-1" in text) == (401, False)


async def test_a_crowd_of_connections_stops_nobody(target: Target) -> None:
    """Heads that never end, by the thousand: an open page gets its updates, and memory does not grow."""
    before = target.memory
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    writer.write(b"GET /updates HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-of-olga\r\n\r\n")
    assert b"event: load" in await reader.readuntil(b"event: load")
    crowd: list[asyncio.StreamWriter] = []
    try:
        for number in range(CROWD):
            with contextlib.suppress(ConnectionError):
                _, each = await asyncio.open_connection("127.0.0.1", target.port)
                crowd.append(each)
                each.write(b"GET / HTTP/1.1\r\nX-Endless: " + str(number).encode())
            if number % MOST_CONNECTIONS == 0:
                await target.serves()
        assert target.memory - before < MOST_GROWTH
        assert not reader.at_eof()
    finally:
        for each in (*crowd, writer):
            each.transport.abort()


async def test_wrong_tokens_by_the_thousand_stop_nobody(target: Target) -> None:
    """Each ends with a refusal; users are served meanwhile, and nothing is kept of strangers."""
    before = target.memory
    answers = set()
    for start in range(0, CROWD, 50):
        heads = [
            f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong-{start + each}\r\n\r\n" for each in range(50)
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(target.sent(head.encode())) for head in heads]
        answers |= {task.result().split()[1] for task in tasks if task.result()}
    assert answers <= {b"401", b"503"}
    assert target.memory - before < MOST_GROWTH


async def test_streams_that_nobody_reads_stop_nobody(target: Target) -> None:
    """A page that is open and unread costs no more than its connection."""
    before = target.memory
    readers = []
    try:
        for _ in range(MOST_CONNECTIONS // 2):
            _, writer = await asyncio.open_connection("127.0.0.1", target.port)
            writer.write(b"GET /updates HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-of-olga\r\n\r\n")
            readers.append(writer)
        await target.serves()
        assert target.memory - before < MOST_GROWTH
    finally:
        for each in readers:
            each.transport.abort()


async def test_maps_that_nobody_reads_stop_nobody(server: ApiServer, target: Target) -> None:
    """A large map is made only as fast as it is read: half of all connections hold no map in memory."""
    for number in range(LARGE):
        name = f"large-{number:04}"
        a_node(server, name, encode(recorded(*(gpu(name, index) for index in range(8)))))
    while f"on {LARGE + 1:,} nodes" not in (await asked(target.address, "token-of-olga"))[1]:
        pass
    before, readers = target.memory, list[socket.socket]()
    try:
        for _ in range(MOST_CONNECTIONS // 2):
            readers.append(reader := socket.socket())
            # The kernel then holds little of what is sent, and the server has to wait.
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", target.port))
            reader.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-of-olga\r\n\r\n")
            assert await asyncio.to_thread(reader.recv, 12) == b"HTTP/1.1 200"
        await target.serves()
        assert target.memory - before < MOST_GROWTH // 4
    finally:
        for each in readers:
            each.close()
