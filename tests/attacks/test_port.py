"""What whoever reaches the ports of our programs can send: to the extender's, and to those of probes and metrics."""

import asyncio
import contextlib
import gc
import gzip
import json
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web
from aiohttp.streams import StreamReader
from aiohttp.test_utils import make_mocked_request

from gpushare_plugin.extender.answers import every_node, filter_nodes, preempt, prioritize
from gpushare_plugin.extender.bodies import (
    LARGEST_REQUEST,
    MOST_TOGETHER,
    MOST_VALUES,
    Bodies,
    RefusedRequestError,
)
from gpushare_plugin.extender.protocol import LARGEST_POD, MOST_NODES, Arguments, PreemptionArguments, decode
from gpushare_plugin.extender.tls import authority
from gpushare_plugin.extender.tls.authority import Signed
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.disruption import Disruptions
from gpushare_plugin.ledger.node import GPU_MEMORY
from gpushare_plugin.observe.http.connections import (
    MOST_CONNECTIONS,
    SHARE_OF_DESCRIPTORS,
    ConnectionLimits,
    listening,
)
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from gpushare_plugin.testing.ports import claim_port
from tests.attacks.work import work
from tests.process.daemon import admit, answer_at_once, comes_to_answer, process
from tests.unit.extender.clients import HOST, NAME, KubeScheduler, own, secret, served
from tests.unit.extender.extenders import (
    PODS,
    Asking,
    Extending,
    Json,
    a_pod,
    create,
    extender,
    node,
    pod,
)
from tests.unit.kube.certificates import Authority
from tests.unit.ledger.objects import memory, memory_node, uuid
from tests.unit.ledger.objects import pod as known_pod
from tests.waiting import PATIENCE, until

HEAD = "POST /filter HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with two nodes of two GPUs of 16 units."""
    async with ApiServer() as running:
        for name in ("n0", "n1"):
            running.store.create(NODES, node(name, 16, 16))
        yield running


@pytest.fixture
async def asking(server: ApiServer, tmp_path: Path) -> AsyncIterator[Extending]:
    """Run an extender."""
    async with extender(server, tmp_path) as running:
        yield running


@contextlib.asynccontextmanager
async def connected(asking: Extending, sent: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Send something on a connection of its own, from when the extender has it all; hang up at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", asking.port)
    try:
        writer.write(sent)
        await writer.drain()
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def answered(reader: asyncio.StreamReader) -> str:
    """Return the answer on a connection, head and body."""
    async with asyncio.timeout(PATIENCE):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].split()[0])
        return head + (await reader.readexactly(length)).decode()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "GZIP", "gzip, gzip", "identity, gzip"])
async def test_a_compressed_request_is_refused_before_it_is_decompressed(asking: Extending, encoding: str) -> None:
    """It could have any size: 415, and no byte more than was sent is held."""
    body = gzip.compress(bytes(8 * 2**20))
    tracemalloc.start()
    try:
        async with connected(
            asking, f"{HEAD}Content-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        ) as reader:
            answer = await answered(reader)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.startswith("HTTP/1.1 415 ")
    assert f"Content-Encoding '{encoding.lower()}'; expected none" in answer
    assert peak < 2**20


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_request_that_is_too_large_is_refused_as_soon_as_that_is_known(
    server: ApiServer, asking: Extending, *, chunked: bool
) -> None:
    """By its announced length before a byte of it is read, and otherwise with the byte that is too much."""
    if chunked:
        sent = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n{LARGEST_REQUEST + 1:x}\r\n".encode()
        sent += b" " * (LARGEST_REQUEST + 1)
    else:
        sent = f"{HEAD}Content-Length: {LARGEST_REQUEST + 1}\r\n\r\n{{".encode()
    async with connected(asking, sent) as reader:
        answer = await answered(reader)
    assert answer.startswith("HTTP/1.1 413 ")
    assert "the request has more than 16 MiB, the most that is taken; set nodeCacheCapable: true" in answer
    assert await asking.fits(a_pod(server, "first", 5), "n0") == ["n0"]


async def test_requests_are_bounded_together(server: ApiServer, asking: Extending) -> None:
    """Beyond 64 MiB of requests that have begun, the largest is told to come again; a small one is answered."""
    first, body = a_pod(server, "first", 5), b" " * (LARGEST_REQUEST - 1)
    begun = f"{HEAD}Content-Length: {LARGEST_REQUEST}\r\n\r\n".encode() + body
    async with contextlib.AsyncExitStack() as many:
        count = MOST_TOGETHER // LARGEST_REQUEST + 1
        readers = [await many.enter_async_context(connected(asking, begun)) for _ in range(count)]
        tasks = [asyncio.create_task(answered(reader)) for reader in readers]
        [refused], others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert refused.result().startswith("HTTP/1.1 503 ")
        told = "the extender is receiving requests of 64 MiB already, the most at a time; retry"
        assert told in refused.result()
        assert await asking.fits(first, "n0") == ["n0"]
        for task in others:
            task.cancel()


@pytest.mark.parametrize(
    "body",
    [
        {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "\x7f" * 254},
        {"PodName": "\x7f" * 254, "PodNamespace": "default", "PodUID": "u", "Node": "n0"},
    ],
)
async def test_names_that_no_object_has_are_refused_before_they_are_repeated(asking: Extending, body: Json) -> None:
    """A name that is longer than Kubernetes' is neither looked for nor written into a message or the log."""
    status, text = await asking.post("/bind", json.dumps(body).encode())
    assert (status, "length <= 253" in text) == (400, True)


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
async def test_a_million_names_are_refused_with_the_reason(server: ApiServer, asking: Extending, verb: str) -> None:
    """No cluster has so many nodes; the extender says how many it takes, and does not look at them."""
    asked = {"Pod": a_pod(server, "first", 5), "NodeNames": [f"n{number}" for number in range(1_000_000)]}
    status, text = await asking.post(f"/{verb}", asked)
    assert (status, f"it has 1,000,000 nodes, and at most {MOST_NODES:,} are taken" in text) == (400, True)
    asked = {"Pod": asked["Pod"], "Nodes": {"items": [1] * (MOST_NODES + 1)}}
    status, text = await asking.post(f"/{verb}", asked)
    assert (status, "it has 15,001 nodes" in text) == (400, True)


async def test_more_values_than_nodes_could_have_are_refused_before_they_are_decoded(asking: Extending) -> None:
    """Decoded, small values take thirty times the memory of the request; their number is that of the commas."""
    body = b'{"Pod":{"spec":{"containers":[' + b"{}," * MOST_VALUES + b"{},{}]}}}"
    tracemalloc.start()
    try:
        async with connected(asking, f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body) as reader:
            answer = await answered(reader)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.startswith("HTTP/1.1 413 ")
    assert "the request has some 1,048,577 values; at most 1,048,576 are taken" in answer
    assert peak < 4 * len(body)


@pytest.mark.parametrize(
    ("pod_of", "problem"),
    [
        (b'{"spec":{"containers":[' + b"{}," * 70_000 + b"{}]}}", "its pod has some 70,000 values"),
        (b'{"metadata":{"annotations":{"a":"' + b"x" * LARGEST_POD + b'"}}}', "its pod has 3,145,765 bytes"),
    ],
)
async def test_a_pod_that_no_api_server_takes_is_refused_before_it_is_decoded(
    asking: Extending, pod_of: bytes, problem: str
) -> None:
    """What is done for a pod is linear in what it has, so the bound on that is what keeps it short."""
    for verb, rest in (("filter", b',"NodeNames":["n0"]'), ("prioritize", b""), ("preempt", b"")):
        status, text = await asking.post(f"/{verb}", b'{"Pod":' + pod_of + rest + b"}")
        assert (status, problem in text) == (400, True)


def test_names_that_no_api_server_takes_are_not_kept() -> None:
    """What is kept of requests, such as the verdicts on the last ones, holds no names of megabytes."""
    account = ClusterAccount()
    account.put_node(memory_node(40, 40))
    count, size = 20, LARGEST_POD // 4

    def ask(number: int) -> None:
        container = {"name": f"{'c' * size}{number}", "resources": {"limits": _with_names(number, size)}}
        asked = {"Pod": {"spec": {"containers": [container]}}, "NodeNames": ["node"]}
        assert filter_nodes(account, decode(json.dumps(asked).encode(), Arguments)).node_names == ["node"]

    ask(count)
    tracemalloc.start()
    try:
        for number in range(count):
            ask(number)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < size


def _with_names(number: int, size: int) -> dict[str, str]:
    return {GPU_MEMORY: "1", "example.com/camera": "1", f"{number}.example.com/{'x' * size}": "1"}


def _asked(names: list[str]) -> Arguments:
    return decode(json.dumps({"Pod": pod("first", 5), "NodeNames": names}).encode(), Arguments)


def _asked_to_preempt(nodes: int, victims: int) -> PreemptionArguments:
    pods = {"Pods": [{"UID": f"uid-{number}"} for number in range(victims)]}
    asked = {"Pod": pod("first", 5), "NodeNameToMetaVictims": {f"n{number}": pods for number in range(nodes)}}
    return decode(json.dumps(asked).encode(), PreemptionArguments)


ANSWERS: dict[str, Callable[[ClusterAccount, int], object]] = {
    "filter": lambda account, times: filter_nodes(account, _asked([f"n{number}" for number in range(times)])),
    "filter with one name": lambda account, times: filter_nodes(account, _asked(["n0"] * times)),
    "filter for any pod": lambda _account, times: every_node(_asked([f"n{number}" for number in range(times)])),
    "prioritize": lambda account, times: prioritize(account, _asked([f"x{number}" for number in range(times)])),
    "preempt on many nodes": lambda account, times: asyncio.run(
        preempt(account, Disruptions(), _asked_to_preempt(times, 1))
    ),
    "preempt many pods": lambda account, times: asyncio.run(
        preempt(account, Disruptions(), _asked_to_preempt(1, times))
    ),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_work_is_linear_in_what_is_asked(answer: str) -> None:
    """Twice as many nodes or pods in a request are twice the work at most, whether the account knows them or not."""
    account = ClusterAccount()
    for number in range(20):
        account.put_node(memory_node(40, 40, name=f"n{number}"))
    do = ANSWERS[answer]
    do(account, 2000)
    assert work(lambda: do(account, 2000)) <= 2.2 * work(lambda: do(account, 1000)) + 500


def test_pods_of_other_nodes_are_no_victims() -> None:
    """Whoever names a thousand pods that run elsewhere has a preemption look at each of them once."""
    account = ClusterAccount()
    account.put_node(memory_node(20, 20, name="full"))
    for number in range(20):
        account.put_pod(known_pod(memory(2), "full", f"here-{number}", on=uuid(number % 2)))
    for number in range(1000):
        account.put_pod(known_pod(memory(1), "elsewhere", f"uid-{number}"))
    asked = {**pod("first", 9), "spec": {**pod("first", 9)["spec"], "priority": 10}}

    def preempted(count: int) -> tuple[int, int]:
        proposed = {"full": {"Pods": [{"UID": f"uid-{number}"} for number in range(count)]}}
        body = json.dumps({"Pod": asked, "NodeNameToMetaVictims": proposed}).encode()
        arguments = decode(body, PreemptionArguments)
        answer = asyncio.run(preempt(account, Disruptions(), arguments))
        added = len(answer.node_name_to_meta_victims["full"].pods or ()) - count
        return added, work(lambda: asyncio.run(preempt(account, Disruptions(), arguments)))

    (added, little), (added_beside, much) = preempted(0), preempted(1000)
    assert added == added_beside > 0
    assert much <= little + 50 * 1000


async def test_a_small_request_is_answered_beside_large_ones_that_are_held_back() -> None:
    """Whoever sends all but the last byte of the largest requests there are loses one of them to kube-scheduler's."""
    bodies = Bodies()

    async def ask(size: int, *, complete: bool) -> str:
        payload = StreamReader(make_mocked_request("GET", "/").protocol, 2**16)
        payload.feed_data(b" " * size)
        if complete:
            payload.feed_eof()
        async with bodies.of(make_mocked_request("POST", "/filter", payload=payload)):
            return "answered"

    held = [asyncio.create_task(ask(LARGEST_REQUEST, complete=False)) for _ in range(MOST_TOGETHER // LARGEST_REQUEST)]
    for _ in held:
        await asyncio.sleep(0)
    assert await ask(1000, complete=True) == "answered"
    [given_up], others = await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
    assert "at a time; retry" in str(given_up.exception())
    for task in others:
        task.cancel()
    await asyncio.wait(others)


async def test_answers_that_nobody_reads_are_bounded_together() -> None:
    """Whoever asks for long answers and reads none of them gets no more until a connection of theirs is closed."""
    bodies, body = Bodies(), bytes(LARGEST_REQUEST)

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await bodies.send(request, body, "application/json")
        except RefusedRequestError as error:
            return web.Response(status=error.status, text=str(error))

    async with contextlib.AsyncExitStack() as clients:
        lives = ConnectionLimits(head=LONG, answer=LONG, idle=LONG)
        port = await clients.enter_async_context(listening("127.0.0.1:0", answer, lives))

        async def ask() -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**10)
            clients.callback(writer.close)
            writer.write(b"GET /inspect HTTP/1.1\r\nHost: x\r\n\r\n")
            return await reader.readline(), reader, writer

        asking = [await ask() for _ in range(MOST_TOGETHER // LARGEST_REQUEST)]
        assert {status for status, *_ in asking} == {b"HTTP/1.1 200 OK\r\n"}
        status, refused, _ = await ask()
        assert status == b"HTTP/1.1 503 Service Unavailable\r\n"
        assert b"sending answers of 64 MiB already" in (await refused.readuntil(b"retry"))
        asking[0][2].transport.abort()
        await until(lambda: _is_answered(ask))


async def _is_answered(ask: Callable[[], Awaitable[tuple[bytes, object, object]]]) -> bool:
    return b"200" in (await ask())[0]


async def test_the_event_loop_has_a_turn_between_any_two_requests() -> None:
    """Requests that are complete at the same moment are worked on one at a time; the Lease is renewed in between."""
    bodies, seen = Bodies(), list[str]()

    async def ask() -> None:
        payload = StreamReader(make_mocked_request("GET", "/").protocol, 2**16)
        payload.feed_data(b"{}")
        payload.feed_eof()
        with contextlib.suppress(ValueError):
            async with bodies.of(make_mocked_request("POST", "/filter", payload=payload)) as body:
                seen.append(body.decode())
                raise ValueError

    async def others() -> None:
        while True:
            seen.append("another task")
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    await asyncio.gather(*(ask() for _ in range(10)))
    other.cancel()
    assert seen.count("{}") == 10
    assert ("{}", "{}") not in set(pairwise(seen))


@pytest.mark.parametrize("head", ["Content-Length: 5000000", "Transfer-Encoding: chunked"])
async def test_a_client_that_hangs_up_in_a_body_is_one_short_line(
    server: ApiServer, asking: Extending, log: list[MutableMapping[str, Any]], head: str
) -> None:
    """Of level debug, without the body: it is no defect of the extender, and costs next to nothing."""
    chunk = b"186a0\r\n" if "chunked" in head else b""
    for _ in range(5):
        async with connected(asking, f"{HEAD}{head}\r\n\r\n".encode() + chunk + b"x" * 90_000):
            pass
    await until(lambda: sum(each["event"] == "extender_request_incomplete" for each in log) == 5)
    assert await asking.fits(a_pod(server, "first", 5), "n0") == ["n0"]
    for each in log:
        assert each["log_level"] == "debug" or "request" not in each["event"]
        assert len(str(each)) < 500


PLACE = "may not go to node"
WAITS = "expected a pod that waits for a node"


def _node(name: str, **spec: Any) -> Json:
    """Return a Node with two GPUs of 16 units, a zone, and more of a `spec`."""
    found = node(name, 16, 16)
    found["metadata"]["labels"] = {"zone": "a"}
    return {**found, "spec": spec}


def _pod(name: str, **spec: Any) -> Json:
    """Return a pod that asks for 5 units, and has more in its `spec`."""
    found = pod(name, 5)
    return {**found, "spec": {**found["spec"], **spec}}


def _zone(value: str) -> Json:
    """Return the affinity of a pod that has to run in a zone."""
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


def _bound(server: ApiServer) -> set[str]:
    """Return the names of the pods that have a node."""
    return {each["metadata"]["name"] for each in server.store.find(PODS) if each["spec"].get("nodeName")}


def _written(server: ApiServer) -> list[str]:
    """Return the names of the pods that the API server was asked to bind."""
    return [str(each.name) for each in server.asked if each.resource == "pods/binding"]


TAINT = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
NODES_THERE = (
    _node("plain"),
    _node("cordoned", unschedulable=True),
    _node("tainted", taints=[TAINT]),
    _node("leaving", taints=[{**TAINT, "effect": "NoExecute"}]),
    _node("disliked", taints=[{**TAINT, "effect": "PreferNoSchedule"}]),
)


@pytest.mark.parametrize(
    ("asked", "where", "why"),
    [
        (pod("p", {"cpu": "1"}), "plain", "asks for nothing that this extender manages"),
        (pod("p", {"example.com/camera": "1"}), "plain", "asks for nothing that this extender manages"),
        (
            _pod("p", schedulerName="another"),
            "plain",
            "has schedulerName 'another'; expected default-scheduler or gpus",
        ),
        (_pod("p", schedulingGates=[{"name": "quota"}]), "plain", f"has scheduling gates ('quota'); {WAITS}"),
        (_pod("p", nodeName="tainted"), "plain", f"is already bound to node tainted; {WAITS}"),
        ({**_pod("p"), "status": {"phase": "Failed"}}, "plain", f"has ended; {WAITS}"),
        (_pod("p"), "unknown", "node unknown is not known to gpushare yet; expected a node of this cluster"),
        (_pod("p"), "cordoned", f"{PLACE} cordoned: the node is cordoned"),
        (_pod("p"), "tainted", f"{PLACE} tainted: not tolerated: taint dedicated=training:NoSchedule"),
        (_pod("p"), "leaving", f"{PLACE} leaving: not tolerated: taint dedicated=training:NoExecute"),
        (
            _pod("p", nodeSelector={"zone": "b"}),
            "plain",
            f"{PLACE} plain: node selector: zone=b required, zone=a found",
        ),
        (_pod("p", **_zone("b")), "plain", f"{PLACE} plain: node affinity: zone In b required, zone=a found"),
        (pod("p", 20), "plain", "node plain: "),
    ],
)
async def test_pods_that_kube_scheduler_would_not_bind_are_not_bound(
    tmp_path: Path, asked: Json, where: str, why: str
) -> None:
    """The answer says what is wrong with the pod or the place, and the API server is not asked to bind."""
    async with ApiServer() as server:
        for each in NODES_THERE:
            server.store.create(NODES, each)
        made = create(server, asked)
        async with extender(server, tmp_path, scheduler_names=("default-scheduler", "gpus")) as asking:
            assert why in await asking.bind(made, where)
            assert _written(server) == []


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        (_pod("p", schedulerName="gpus"), "plain"),
        (_pod("p", schedulerName="default-scheduler"), "plain"),
        (_pod("p", nodeSelector={"zone": "a"}, **_zone("a")), "disliked"),
        (_pod("p", tolerations=[{"key": "dedicated", "operator": "Exists"}]), "tainted"),
        (_pod("p", tolerations=[{"operator": "Exists"}]), "cordoned"),
    ],
)
async def test_pods_that_kube_scheduler_allows_are_bound(tmp_path: Path, asked: Json, where: str) -> None:
    """Tolerated taints and cordons, matching labels and each of the named schedulers are no obstacle."""
    async with ApiServer() as server:
        for each in NODES_THERE:
            server.store.create(NODES, each)
        made = create(server, asked)
        async with extender(server, tmp_path, scheduler_names=("default-scheduler", "gpus")) as asking:
            assert await asking.bind(made, where) == ""
            assert _bound(server) == {"p"}


async def test_pods_of_any_scheduler_are_bound_where_none_is_named(tmp_path: Path) -> None:
    """Without `--scheduler-names` whoever runs the extender has not said which kube-schedulers ask it."""
    async with ApiServer() as server:
        server.store.create(NODES, _node("plain"))
        async with extender(server, tmp_path) as asking:
            assert await asking.bind(create(server, _pod("p", schedulerName="another")), "plain") == ""


async def test_a_pod_is_judged_as_it_is_now(server: ApiServer, asking: Extending) -> None:
    """A request with the UID of a pod that was replaced, or for one that is being deleted, has nothing bound."""
    former = a_pod(server, "p")
    server.store.delete(PODS, "p")
    now = a_pod(server, "p")
    assert f"has the UID {now['metadata']['uid']}, and the request has '" in await asking.bind(former, "n0")
    nameless = {"metadata": {**now["metadata"], "uid": ""}}
    assert "expected the UID of the pod" in await asking.bind(nameless, "n0")
    ending = a_pod(server, "ending", deletionTimestamp="2026-01-01T00:00:00Z")
    assert f"is being deleted; {WAITS}" in await asking.bind(ending, "n0")
    assert _written(server) == []


async def test_a_node_is_judged_as_it_is_now(server: ApiServer, asking: Extending) -> None:
    """A cordon counts from the moment at which the API server has it, whenever the watch shows it."""
    server.store.patch(NODES, "n0", {"spec": {"unschedulable": True}})
    assert "the node is cordoned" in await asking.bind(a_pod(server, "p"), "n0")
    assert await asking.bind(a_pod(server, "q"), "n1") == ""
    assert _bound(server) == {"q"}


async def test_nodes_that_do_not_exist_cost_the_api_server_nothing(server: ApiServer, asking: Extending) -> None:
    """A flood of names is answered from memory."""
    asked = a_pod(server, "p")
    before = len(server.begun)
    for number in range(50):
        assert "is not known to gpushare" in await asking.bind(asked, f"invented-{number}")
    assert not {"pods", "nodes"} & {each.resource for each in server.begun[before:]}


Pages = Callable[[web.BaseRequest], Awaitable[web.Response]]
LONG = 3600.0


async def _never(_request: web.BaseRequest) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def _at_once(_request: web.BaseRequest) -> web.Response:
    return web.Response(text="answered\n")


WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "limits", "answer"),
    [
        (b"", ConnectionLimits(head=0.05, answer=LONG, idle=LONG), _at_once),
        (b"GET / HT", ConnectionLimits(head=0.05, answer=LONG, idle=LONG), _at_once),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX-More:", ConnectionLimits(head=0.05, answer=LONG, idle=LONG), _at_once),
        (WHOLE, ConnectionLimits(head=LONG, answer=0.05, idle=LONG), _never),
        (WHOLE, ConnectionLimits(head=LONG, answer=LONG, idle=0.05), _at_once),
        (WHOLE + b"GET / HT", ConnectionLimits(head=LONG, answer=LONG, idle=0.05), _at_once),
    ],
)
async def test_a_connection_ends_by_itself_in_every_state(sent: bytes, limits: ConnectionLimits, answer: Pages) -> None:
    """Whether its client has asked for nothing, for half of something, or waits for what never comes."""
    async with listening("127.0.0.1:0", answer, limits) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        writer.close()


@pytest.mark.parametrize("encrypted", [True, False])
async def test_connections_are_bounded_before_and_after_their_handshake(tmp_path: Path, *, encrypted: bool) -> None:
    """One too many ends the one that waits longest for a request; one that is being answered is spared."""
    authority = Authority("ours")
    tls = authority.server(tmp_path) if encrypted else None
    trusting = ssl.create_default_context(cafile=authority.write(tmp_path / "ca.pem")) if encrypted else None
    if trusting is not None:
        trusting.verify_flags &= ~ssl.VERIFY_X509_STRICT
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def answer(_request: web.BaseRequest) -> web.Response:
        asked.set()
        await go_on.wait()
        return await _at_once(_request)

    async with (
        listening("127.0.0.1:0", answer, ConnectionLimits(LONG, LONG, LONG), tls) as port,
        contextlib.AsyncExitStack() as clients,
    ):
        first, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        writer.write(WHOLE)
        await asked.wait()
        waiting = []
        for _ in range(MOST_CONNECTIONS + 4):
            reader, other = await asyncio.open_connection("127.0.0.1", port)
            clients.callback(other.close)
            waiting.append(reader)
        await until(lambda: [each.at_eof() for each in waiting].count(True) == 5)
        assert [each.at_eof() for each in waiting[:5]] == [True] * 5
        go_on.set()
        assert (await answered(first)).endswith("answered\n")
        writer.close()


FEW = 64
"""Descriptors that a process may have, where the system is as stingy as it can be."""
MANY = 185
"""Connections that whoever reaches a port opens."""
WITH_FEW_DESCRIPTORS = ("sh", "-c", f'ulimit -n {FEW}; exec "$0" "$@"')


async def _flood(place: int | Path, clients: contextlib.AsyncExitStack) -> None:
    readers = []
    for number in range(MANY):
        if isinstance(place, int):
            reader, writer = await asyncio.open_connection("127.0.0.1", place)
        else:
            reader, writer = await asyncio.open_unix_connection(place)
        clients.callback(writer.close)
        writer.write(b"POST /filter HTTP/1.1\r\nHost" if number % 2 and isinstance(place, int) else b"")
        readers.append(reader)
    await until(lambda: sum(each.at_eof() for each in readers) >= MANY - FEW // SHARE_OF_DESCRIPTORS)


@contextlib.asynccontextmanager
async def flooded(*places: int | Path) -> AsyncIterator[None]:
    """Open connections to ports and sockets that send nothing or half a head, from when all of them were accepted."""
    async with contextlib.AsyncExitStack() as clients:
        for place in places:
            await _flood(place, clients)
        yield


async def test_a_daemon_with_few_descriptors_serves_the_kubelet_beside_many_connections(
    kubelet: EmbeddedKubelet, tmp_path: Path
) -> None:
    """With 64 descriptors and 185 connections to its port and its socket, it is healthy, and answers a new kubelet."""
    port, gpus = claim_port(), tmp_path / "gpus.yaml"
    gpus.write_text("gpus: [{name: NVIDIA A10, memory: 23028MiB}]\n")
    arguments = ("run", "--device-plugin-path", kubelet.plugin_directory, "--simulate", gpus)
    http = ("--http-address", f"127.0.0.1:{port}")
    async with process(*arguments, *http, through=WITH_FEW_DESCRIPTORS) as daemon:
        await daemon.advertises(kubelet, {GPU_MEMORY: 22})
        await comes_to_answer(port, "/healthz", (200, "ok\n"))
        (path,) = (each for each in kubelet.plugin_directory.glob("*.sock") if each.name != "kubelet.sock")
        async with flooded(port, path):
            assert await answer_at_once(port, "/healthz") == (200, "ok\n")
            assert (await admit(kubelet, GPU_MEMORY, 5)).environment["GPUSHARE_MEMORY_LIMIT_MIB"] == "5120"
            async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
                call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
                call = channel.unary_unary("/v1beta1.DevicePlugin/GetDevicePluginOptions")
                await call(b"", timeout=PATIENCE, wait_for_ready=True)
        assert daemon.events("event_loop_error") == []
        assert await daemon.stop() == 0


async def test_an_extender_with_few_descriptors_answers_beside_many_connections(
    server: ApiServer, tmp_path: Path
) -> None:
    """With 64 descriptors and 185 connections to each of its ports, it leads, is ready, and places pods."""
    port, probes = claim_port(), claim_port()
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    addresses = ("--listen-address", f"127.0.0.1:{port}", "--probe-address", f"127.0.0.1:{probes}")
    arguments = ("extender", "--kubeconfig", kubeconfig, "--lease-namespace", "kube-system", *addresses)
    async with process(*arguments, through=WITH_FEW_DESCRIPTORS) as extending:
        await comes_to_answer(probes, "/readyz", (200, "ok\n"))
        async with flooded(port, probes), aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            asking = Asking(http, server, port)
            assert await asking.fits(a_pod(server, "first", 5), "n0") == ["n0"]
            assert await answer_at_once(probes, "/readyz") == (200, "ok\n")
            server.store.create(NODES, node("later", 16))
            await asking.knows("later")
            told = await answer_at_once(probes, "/metrics")
        assert told is not None
        assert "\ngpushare_extender_longest_pause_seconds 0." in told[1]
        assert extending.events("event_loop_error") == []
        assert await extending.stop() == 0


async def test_clients_with_the_secret_are_answered_and_nobody_else(server: ApiServer, tmp_path: Path) -> None:
    """Both sides prove who they are; without a certificate, or with the server's or a stranger's, no answer comes."""
    async with extender(server, tmp_path, wait=False, certificates=own()) as asking:
        kube_scheduler = KubeScheduler(server, tmp_path)
        assert await served(asking.port, kube_scheduler.context)
        with pytest.raises(ssl.SSLCertVerificationError):
            await served(asking.port, kube_scheduler.context, host="another.kube-system.svc")
        now = datetime.now(UTC)
        ours = Signed(*(secret(server, NAME)[f"authority-1.{part}"] for part in ("crt", "key")))
        (strange,) = authority.renewed((), now)
        for signed in (None, strange.sign("kube-scheduler", now), ours.sign("gpushare-extender", now, HOST)):
            context = ssl.create_default_context(cadata=kube_scheduler.values["ca.crt"].decode())
            if signed is not None:
                (tmp_path / "pair.pem").write_bytes(signed.certificate + signed.key)
                context.load_cert_chain(tmp_path / "pair.pem")
            with pytest.raises(OSError):  # noqa: PT011 - a handshake fails in many words
                await served(asking.port, context)
        with pytest.raises(OSError):  # noqa: PT011 - as above
            await served(asking.port, None, host=None)
