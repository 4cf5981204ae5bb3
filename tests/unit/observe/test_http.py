"""Tests of `gpushare_plugin.observe.http`, over real sockets."""

import asyncio
import contextlib
import gc
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.observe.http.address import parse_address
from gpushare_plugin.observe.http.connections import MOST_CONNECTIONS
from gpushare_plugin.observe.http.probes import LONGEST_STATE, Metrics, serve_http
from tests.waiting import PATIENCE, until

LOOK_EVERY = 0.05
"""Seconds between looks at what changes without an event."""

NOBODY = 65534
FIRST_FREE_PORT = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
"""The lowest port that any user may bind."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: the status, the headers in small letters, and the body."""

    status: int
    headers: dict[str, str]
    body: str


class Node:
    """What probes and scrapes ask about."""

    def __init__(self) -> None:
        """Be well."""
        self.live: list[str] = []
        self.ready: list[str] = []
        self.metrics = "units 1\n"
        self.port = 0

    async def scraped(self, accept: str) -> tuple[str, bytes]:
        """Return the metrics and what was accepted, as a page."""
        return f'text/x-test; accepted="{accept}"', self.metrics.encode()

    async def connect(self) -> Streams:
        """Open a connection."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, path: str, method: str = "GET") -> Answer:
        """Make one request."""
        return await self.send(f"{method} {path} HTTP/1.1\r\nHost: node\r\n\r\n".encode())

    async def send(self, request: bytes) -> Answer:
        """Send these bytes and read until the other side closes."""
        async with asyncio.timeout(PATIENCE):
            reader, writer = await self.connect()
            writer.write(request)
            raw = await reader.read()
            await close(writer)
        head, _, body = raw.decode().partition("\r\n\r\n")
        status, *headers = head.split("\r\n")
        pairs = (header.partition(":")[::2] for header in headers)
        return Answer(int(status.split()[1]), {name.lower(): value.strip() for name, value in pairs}, body)


@contextlib.asynccontextmanager
async def serving(address: str = "127.0.0.1:0", scraped: Metrics | None = None) -> AsyncIterator[Node]:
    """Serve the probes of a node, and its metrics or what else is `scraped`."""
    node = Node()
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve_http(address, lambda: node.live, lambda: node.ready, scraped or node.scraped, started.set_result)
    )
    try:
        either: list[asyncio.Future[Any]] = [started, task]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
        if task.done():
            task.result()
        node.port = started.result()
        yield node
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE)
        assert task.done()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """Serve the probes of a node on a port of its own."""
    async with serving() as node:
        yield node


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection, whatever its state."""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def open_files() -> set[str]:
    """Return what is open in this process: each socket has a name of its own, so that no other one is taken for it."""
    gc.collect()  # what earlier tests left to be collected is no file of ours
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was that of the directory
            found.add(str(descriptor.readlink()))
    return found


async def test_probes_without_complaints_answer_ok(node: Node) -> None:
    """No complaint means 200 and `ok`, a whole line, for both probes."""
    for path in ("/healthz", "/readyz", "/healthz?verbose"):
        answer = await node.ask(path)
        assert (answer.status, answer.body) == (200, "ok\n")
        assert answer.headers["content-type"].startswith("text/plain")


async def test_problems_are_listed_one_a_line(node: Node) -> None:
    """Each probe answers 503 with its own complaints, and 200 again when they are gone."""
    node.ready = ["nvidia.com/gpu: not registered", "aliyun.com/gpu-mem: no stream, größer"]
    answer = await node.ask("/readyz")
    assert (answer.status, answer.body) == (503, "\n".join(node.ready) + "\n")
    assert (await node.ask("/healthz")).status == 200
    node.live, node.ready = ["the NVML thread is stuck"], []
    assert (await node.ask("/healthz")).body == "the NVML thread is stuck\n"
    assert (await node.ask("/readyz")).status == 200


async def test_head_is_get_without_a_body(node: Node) -> None:
    """HEAD gives the status and headers of GET alone, of probes and of metrics."""
    node.live = ["stuck"]
    answer = await node.ask("/healthz", "HEAD")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (503, "", "6")
    assert (await node.ask("/readyz", "HEAD")).status == 200
    answer = await node.ask("/metrics", "HEAD")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, "", str(len(node.metrics)))


async def test_unknown_paths_and_methods_are_errors(node: Node) -> None:
    """Other paths are 404 with those there are, other methods 405 with those that are allowed."""
    for path in ("/", "/healthz/", "/metrics/", "/%68ealthz/x"):
        answer = await node.ask(path)
        assert (answer.status, answer.body) == (404, "not found; available: /healthz, /readyz and /metrics\n")
    for path in ("/healthz", "/metrics"):
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            answer = await node.ask(path, method)
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_metrics_are_answered_as_they_are_accepted(node: Node) -> None:
    """Body and content type are those that are returned for the Accept headers, all of them, and for none."""
    answer = await node.ask("/metrics")
    assert (answer.status, answer.body) == (200, node.metrics)
    assert answer.headers["content-type"] == 'text/x-test; accepted=""'
    request = b"GET /metrics HTTP/1.1\r\nHost: node\r\nAccept: a;q=1, b\r\nAccept: c\r\n\r\n"
    assert (await node.send(request)).headers["content-type"] == 'text/x-test; accepted="a;q=1, b, c"'


async def test_metrics_that_break_are_an_error(node: Node) -> None:
    """A defect in the metrics is not an empty page, as of a node without GPUs, and the daemon goes on."""
    metrics, node.metrics = node.metrics, "\ud800"
    answer = await node.ask("/metrics")
    assert (answer.status, "UnicodeEncodeError" in answer.body) == (500, True)
    assert (await node.ask("/healthz")).status == 200
    node.metrics = metrics
    assert (await node.ask("/metrics")).status == 200


async def test_pages_of_metrics_are_made_one_at_a_time() -> None:
    """However many scrape at once, all get their page, and no page is started before another is finished."""
    now, most = 0, 0

    async def slow(_accept: str) -> tuple[str, bytes]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(LOOK_EVERY)
        now -= 1
        return "text/plain", b"page"

    async with serving(scraped=slow) as node:
        answers = await asyncio.gather(*(node.ask("/metrics") for _ in range(10)))
    assert [answer.body for answer in answers] == ["page"] * 10
    assert most == 1


async def test_clients_that_hung_up_leave_no_work_behind() -> None:
    """Such clients can neither pile work up nor keep others waiting."""
    asked = 0

    async def never_at_first(_accept: str) -> tuple[str, bytes]:
        nonlocal asked
        asked += 1
        if asked == 1:
            await asyncio.Event().wait()
        return "text/plain", b"page"

    async with serving(scraped=never_at_first) as node:
        connections = [await node.connect() for _ in range(10)]
        for _, writer in connections:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
        await until(lambda: asked == 1)
        for _, writer in connections:
            await close(writer)
        assert (await node.ask("/metrics")).body == "page"


async def test_no_answer_names_versions(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """No answer, not even one to a request that is not HTTP, names the server software, and nothing is logged."""
    requests = {
        b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n": 200,
        b"GET /nothing HTTP/1.1\r\nHost: node\r\n\r\n": 404,
        b"POST /healthz HTTP/1.1\r\nHost: node\r\nContent-Length: 1\r\n\r\nx": 405,
        b"rubbish\r\n\r\n": 400,
        b"GET /healthz HTTP/1.1\r\nHost: node\r\nContent-Length: x\r\n\r\n": 400,
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: node\r\n\r\n": 400,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n": 400,
    }
    for request, status in requests.items():
        answer = await node.send(request)
        assert answer.status == status
        assert "server" not in answer.headers
        assert "aiohttp" not in answer.body.lower()
    assert caplog.records == []


async def test_a_check_that_breaks_is_a_complaint(node: Node) -> None:
    """A defect in a check is no good news, and does not end the serving."""
    del node.live
    answer = await node.ask("/healthz")
    assert (answer.status, "AttributeError" in answer.body) == (503, True)
    assert (await node.ask("/readyz")).status == 200


async def test_a_connection_is_for_one_request(node: Node) -> None:
    """Requests piled up on one connection get one answer and the end."""
    reader, writer = await node.connect()
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n" * 3)
    with contextlib.suppress(ConnectionResetError):
        assert (await reader.read()).count(b"HTTP/1.1") == 1
    await close(writer)


UNFINISHED = [
    b"",
    b"GET /heal",
    b"GET /healthz HTTP/1.1\r\nHost: no",
    b"POST /healthz HTTP/1.1\r\nHost: node\r\nContent-Length: 1000\r\n\r\nx",
    b"POST /healthz HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: node\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
]


async def test_an_unfinished_request_is_cut(node: Node) -> None:
    """Wherever a client stops in a request, or however slowly it sends, the connection ends by itself."""
    connections = [await node.connect() for _ in range(len(UNFINISHED) + 1)]
    for (_, writer), request in zip(connections, UNFINISHED, strict=False):
        writer.write(request)
    trickling = connections[-1]

    async def trickle() -> None:
        with contextlib.suppress(ConnectionError):
            trickling[1].write(b"GET /healthz HTTP/1.1\r\n")
            while not trickling[0].at_eof():
                trickling[1].write(b"X-More: x\r\n")
                await trickling[1].drain()
                await asyncio.sleep(LONGEST_STATE / 20)

    async def ended(reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionResetError):
            await reader.read()

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(trickle(), *(ended(reader) for reader, _ in connections))
    for _, writer in connections:
        await close(writer)


async def test_an_answer_that_is_not_read_is_dropped(node: Node) -> None:
    """A client that never reads a long answer keeps neither the connection nor the answer."""
    node.live = ["x" * 1000] * 20_000
    loop = asyncio.get_running_loop()
    before = open_files()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)  # noqa: FBT003 - the socket's own signature
        await loop.sock_connect(client, ("127.0.0.1", node.port))
        await loop.sock_sendall(client, b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
        await until(lambda: len(open_files() - before) == 2)
        await until(lambda: len(open_files() - before) == 1)


async def test_probes_are_answered_beside_any_number_of_slow_clients(node: Node) -> None:
    """Clients that hold connections push out each other, never a probe, and stay below the limit."""
    before = open_files()
    slow: list[Streams] = []
    for _ in range(2 * MOST_CONNECTIONS):
        connection = await node.connect()
        connection[1].write(b"GET /healthz HTTP/1.1\r\n")
        slow.append(connection)
    assert (await node.ask("/healthz")).status == 200
    assert (await node.ask("/readyz")).status == 200
    assert len(open_files() - before) <= len(slow) + MOST_CONNECTIONS
    for _, writer in slow:
        await close(writer)
    await until(lambda: open_files() <= before)


async def test_stopping_does_not_wait_and_leaves_nothing() -> None:
    """Cancelled, the serving ends at once beside open connections, without tasks or files left."""
    before, tasks = open_files(), asyncio.all_tasks()
    connections: list[Streams] = []
    async with serving() as node:
        for request in UNFINISHED:
            connection = await node.connect()
            connection[1].write(request)
            connections.append(connection)
        assert (await node.ask("/healthz")).status == 200
        ended = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - ended < LONGEST_STATE
    for _, writer in connections:
        await close(writer)
    gc.collect()
    assert asyncio.all_tasks() == tasks
    assert open_files() <= before


async def test_thousands_of_probes_leave_nothing_behind(node: Node) -> None:
    """The number of open files is the same after many probes, answered and given up."""
    assert (await node.ask("/healthz")).status == 200
    before = open_files()
    for _ in range(500):
        _, writer = await node.connect()
        await close(writer)
        assert (await node.ask("/readyz")).status == 200
    await until(lambda: open_files() <= before)


async def test_a_port_in_use_is_an_error(node: Node) -> None:
    """A port in use, on one interface or all, gives an error that names the address and the reason."""
    for address in (f"127.0.0.1:{node.port}", f":{node.port}"):
        with pytest.raises(GpushareError, match=rf"'{address}'.*already in use"):
            await serve_http(address, list, list, Node().scraped)
    assert (await node.ask("/healthz")).status == 200


@pytest.mark.parametrize("address", ["192.0.2.1:0", "[2001:db8::1]:0", "a..b:0", f"{'x' * 64}.y:0", "256.0.0.1:0"])
async def test_an_address_of_another_host_is_an_error(address: str) -> None:
    """An address that is not this node's, or none at all, gives an error that names it."""
    with pytest.raises(GpushareError) as refused:
        await serve_http(address, list, list, Node().scraped)
    assert repr(address) in str(refused.value)


async def test_a_forbidden_port_is_an_error() -> None:
    """A port that needs a privilege is an error without it, with the system's reason."""
    if FIRST_FREE_PORT < 2:
        pytest.skip("this system lets anybody use any port")
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        with pytest.raises(GpushareError, match=r"'127.0.0.1:1'.*ermission denied"):
            await serve_http("127.0.0.1:1", list, list, Node().scraped)
    finally:
        os.seteuid(user)


async def test_an_address_without_a_host_is_every_interface() -> None:
    """`:port` serves IPv4 and, where there is any, IPv6 at the same port."""
    async with serving(":0") as node:
        assert (await node.ask("/healthz")).status == 200
        if socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("::1", node.port)
                await close(writer)


async def test_a_port_can_be_had_again_at_once() -> None:
    """A daemon that starts again gets its port back, although connections to it were open."""
    async with serving() as node:
        assert (await node.ask("/healthz")).status == 200
    async with serving(f"127.0.0.1:{node.port}") as again:
        assert (await again.ask("/healthz")).status == 200


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":9400", (None, 9400)),
        ("127.0.0.1:9400", ("127.0.0.1", 9400)),
        ("localhost:0", ("localhost", 0)),
        ("node-1.example.com:65535", ("node-1.example.com", 65535)),
        ("[::1]:80", ("::1", 80)),
        ("[::]:80", ("::", 80)),
    ],
)
def test_every_form_of_address_gives_host_and_port(text: str, expected: tuple[str | None, int]) -> None:
    """Every form of address gives its host and port."""
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "9400", "localhost", "localhost:", ":65536", ":-1", ":+1", ": 80", ":80 ", ":80\n", ":8_0", ":٣"),
        *(
            "::1:80",
            "[::1]",
            "[]:80",
            "[127.0.0.1]:80",
            "[x]:80",
            "http://localhost:80",
            "localhost:80/healthz",
            "a b:1",
        ),
    ],
)
def test_a_text_that_is_no_address_is_an_error(text: str) -> None:
    """The error says what was found, what was expected, and an example."""
    with pytest.raises(GpushareError) as refused:
        parse_address(text)
    assert repr(text) in str(refused.value)
    assert "expected HOST:PORT" in str(refused.value)
    assert "127.0.0.1:9400" in str(refused.value)


@given(st.text() | st.from_regex(r"\[?[0-9a-f.:]*\]?:[0-9]{1,6}"))
@example("[::1%lo]:1")
def test_any_text_is_an_address_or_an_error(text: str) -> None:
    """No text breaks the parser, and a port is always one."""
    with contextlib.suppress(GpushareError):
        _, port = parse_address(text)
        assert 0 <= port <= 65535
