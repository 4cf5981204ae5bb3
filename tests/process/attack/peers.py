"""Attacks by those whom the daemon asks: the kubelet, the API server, the driver, MPS; and whoever reads its log."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import grpc

from gpushare_plugin.config.directives import READ
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.kube.names import UNHEALTHY_GPUS
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION
from gpushare_plugin.testing.cluster.server import Refusal
from gpushare_plugin.testing.nvml import ALL_FUNCTIONS, EventType, functions
from tests.process.attack import junk
from tests.process.attack.files import changing_over
from tests.process.attack.table import attack
from tests.process.attack.target import MEMORY, Target, size
from tests.unit.kube.cluster import CONFIGMAP, CONFIGMAPS, NODE, a_node, annotate, label

_A_LOOK = 2.5
_APPLICATIONS_XID = 13
"""A program's own fault, and no card's."""
_ABSURD_MIB = (1 << 44) - 1


class _Somebody(asyncio.Protocol):
    """Listens in the place of another: says nothing for as long as it listens, or at once what fits no protocol."""

    def __init__(self, listen: Callable[[Callable[[], asyncio.Protocol]], Awaitable[asyncio.Server]]) -> None:
        """Listen where `listen` says."""
        self._listen = listen
        self._says = b""
        self._transports: list[asyncio.Transport] = []
        self._server: asyncio.Server | None = None

    async def begin(self, draw: Random) -> None:
        """Listen."""
        self._says = draw.choice([b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n\xff{{{"])
        self._server = await self._listen(lambda: self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection, or say something and end it."""
        assert isinstance(transport, asyncio.Transport)
        self._transports.append(transport)
        if self._says:
            transport.write(self._says)
            transport.close()

    def end(self) -> None:
        """Leave the place, and cut every connection."""
        assert self._server is not None
        self._server.close()
        for transport in self._transports:
            transport.abort()


def _at_path(path: Path) -> _Somebody:
    return _Somebody(lambda made: asyncio.get_running_loop().create_unix_server(made, path))


def _at_port(port: int) -> _Somebody:
    return _Somebody(lambda made: asyncio.get_running_loop().create_server(made, "127.0.0.1", port, reuse_address=True))


class _Undecodable(grpc.GenericRpcHandler):
    """Answers every call with these bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def service(self, _details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Take any method."""
        return grpc.unary_unary_rpc_method_handler(self._say)

    async def _say(self, _request: bytes, _context: object) -> bytes:
        return self._answer


# ---------------------------------------------------------------------- the kubelet


@attack("kubelet")
async def kubelet_restarts(node: Target, draw: Random) -> AsyncIterator[None]:
    """Restart the kubelet, perhaps several times, perhaps by a kill."""
    for _ in range(draw.randint(1, 3)):
        await node.kubelet.restart(graceful=draw.random() < 0.5)
        await asyncio.sleep(draw.uniform(0, 0.3))
    yield


@attack("kubelet")
async def no_kubelet(node: Target, draw: Random) -> AsyncIterator[None]:
    """Without a kubelet the process is well and the node is not ready, and both are told."""
    await node.kubelet.stop(graceful=draw.random() < 0.5)
    await node.until_ready(ready=False)
    await node.healthy()
    await node.kubelet.start()
    yield


@attack("kubelet")
async def a_kubelet_that_refuses(node: Target, draw: Random) -> AsyncIterator[None]:
    """Have the kubelet turn every registration away, with many words."""
    node.kubelet.refuse_registrations(junk.text(draw, 2000))
    await node.kubelet.restart()
    await node.until_ready(ready=False)
    yield
    node.kubelet.accept_registrations()


@attack("kubelet")
async def a_false_kubelet(node: Target, draw: Random) -> AsyncIterator[None]:
    """Somebody listens in the kubelet's place, and says nothing, or junk."""
    await node.kubelet.stop()
    node.kubelet.socket.unlink(missing_ok=True)
    false = _at_path(node.kubelet.socket)
    await false.begin(draw)
    await node.until_ready(ready=False)
    await asyncio.sleep(0.5)
    false.end()
    await node.kubelet.start()
    yield


@attack("kubelet", "config")
async def false_pod_resources(node: Target, draw: Random) -> AsyncIterator[None]:
    """Who holds what is asked of somebody who says nothing, or what nobody can understand."""
    await node.hold(MEMORY)
    there = node.kubelet.pod_resources_socket
    aside = there.with_name("aside")
    there.rename(aside)
    async with changing_over(node):
        if draw.random() < 0.5:
            false = _at_path(there)
            await false.begin(draw)
            await asyncio.sleep(_A_LOOK)
            yield
            false.end()
        else:
            server = grpc.aio.server(handlers=[_Undecodable(draw.choice([draw.randbytes(100), b"\x0a\x7f", b""]))])
            server.add_insecure_port(f"unix:{there}")
            await server.start()
            await asyncio.sleep(_A_LOOK)
            yield
            await server.stop(grace=None)
        aside.rename(there)


# ---------------------------------------------------------------------- the API server


@attack("api")
async def junk_on_the_node(node: Target, draw: Random) -> AsyncIterator[None]:
    """Labels, annotations and the ConfigMap say what nobody can follow, at length."""
    chosen = sorted(READ)
    for key in chosen:
        if draw.random() < 0.5:
            label(node.api, key, junk.label(draw))
    for key in (GPUS_ANNOTATION, UNHEALTHY_GPUS):
        annotate(node.api, key, draw.choice(["{", "[]", "99,-1,\x00", junk.text(draw, 100), "x," * 50_000]))
    data: dict[tuple[str, ...], str] = {("data", junk.label(draw)): junk.text(draw), ("data", "gpus"): "y " * 50_000}
    node.api.store.update(CONFIGMAPS, CONFIGMAP, data)
    await asyncio.sleep(_A_LOOK)
    yield
    for key in chosen:
        label(node.api, key, None)
    annotate(node.api, UNHEALTHY_GPUS, None)
    node.api.store.delete(CONFIGMAPS, CONFIGMAP)


@attack("api")
async def gpus_are_taken_out_and_brought_back(node: Target, draw: Random) -> AsyncIterator[None]:
    """Annotate the Node again and again, each time to take other GPUs out."""
    for _ in range(30):
        annotate(node.api, UNHEALTHY_GPUS, ",".join(draw.choices("0123456", k=3)))
        await asyncio.sleep(0)
    await asyncio.sleep(0.2)
    yield
    annotate(node.api, UNHEALTHY_GPUS, None)


@attack("api")
async def an_api_server_in_trouble(node: Target, draw: Random) -> AsyncIterator[None]:
    """Refusals of every kind, a history forgotten, watches cut, no answer at all."""
    for _ in range(5):
        headers = {"Retry-After": draw.choice(["0", "-1", "x", "1"])}
        refusal = Refusal(draw.choice([400, 403, 409, 410, 422, 429, 500, 503]), times=draw.randint(1, 3))
        node.api.refusals.append(replace(refusal, headers=headers))
    node.api.store.forget()
    await node.api.stop()
    await node.api.start()
    node.api.silent = draw.random() < 0.3
    await asyncio.sleep(0.5)
    yield
    node.api.refusals.clear()
    if node.api.silent:
        node.api.silent = False
        await node.api.stop()
        await node.api.start()


@attack("api")
async def a_false_api_server(node: Target, draw: Random) -> AsyncIterator[None]:
    """Somebody listens in the API server's place, and says nothing, or junk."""
    await node.api.stop()
    false = _at_port(node.api.port)
    await false.begin(draw)
    await asyncio.sleep(1)
    yield
    false.end()
    await node.api.start()


@attack("api")
async def the_node_is_deleted(node: Target, draw: Random) -> AsyncIterator[None]:  # noqa: ARG001 - as all attacks
    """Delete the Node, and make it anew."""
    node.api.store.delete(NODES, NODE)
    await asyncio.sleep(0.2)
    yield
    a_node(node.api)


# ---------------------------------------------------------------------- the driver


@attack("nvml")
async def xids_at_random(node: Target, draw: Random) -> AsyncIterator[None]:
    """Events by the hundred, of faults that no table has, of every type, of cards and of none."""
    for _ in range(300):
        fault = draw.choice([_APPLICATIONS_XID, 0, (1 << 64) - 1, draw.getrandbits(63) | 1 << 40])
        card = draw.choice([None, *range(len(node.nvml.gpus))])
        node.nvml.raise_event(card, EventType.XID_CRITICAL_ERROR, fault, gpu_instance=draw.choice([None, 7]))
    await asyncio.sleep(0.2)
    yield


@attack("nvml")
async def errors_of_the_driver(node: Target, draw: Random) -> AsyncIterator[None]:
    """Functions of NVML fail, for a card or for all, with any error but that of another driver."""
    chosen = draw.choices(sorted(functions()), k=8)
    cards = [draw.choice([None, *range(len(node.nvml.gpus))]) for _ in chosen]
    for card, function in zip(cards, chosen, strict=True):
        node.nvml.fail(card, function, junk.code(draw))
    await asyncio.sleep(1)
    yield
    for card in cards:
        node.nvml.recover(card)


@attack("nvml")
async def lost_cards(node: Target, draw: Random) -> AsyncIterator[None]:
    """Have some cards, or all, answer nothing but an error."""
    lost = draw.sample(range(len(node.nvml.gpus)), draw.randint(1, len(node.nvml.gpus)))
    for card in lost:
        node.nvml.fail(card, ALL_FUNCTIONS, junk.code(draw))
    await asyncio.sleep(1)
    yield
    for card in lost:
        node.nvml.recover(card)


@attack("nvml")
async def absurd_cards(node: Target, draw: Random) -> AsyncIterator[None]:
    """Have a card with no memory, endless memory, more kept back than there is, or the UUID of another card."""
    card = draw.randrange(len(node.nvml.gpus))
    before = node.nvml.gpus[card]
    changes = draw.choice(
        [
            {"memory_mib": 0},
            {"memory_mib": _ABSURD_MIB},
            {"reserved_mib": 2 * before.memory_mib},
            {"uuid": node.nvml.gpus[card - 1].uuid},
            {"minor": 1 << 31},
            {"compute_capability": (0, 0)},
        ]
    )
    node.nvml.replace_gpu(card, replace(before, **changes))  # type: ignore[arg-type] # names and kinds are as above
    await asyncio.sleep(1)
    yield
    node.nvml.replace_gpu(card, before)


@attack("nvml")
async def words_that_are_no_utf8(node: Target, draw: Random) -> AsyncIterator[None]:
    """Have a driver whose version, or a UUID or a name of a card, is no UTF-8."""
    gpu = draw.choice(node.nvml.gpus)
    word = draw.choice([node.nvml.driver_version, gpu.uuid, gpu.name]).encode()
    mangled = node.nvml.path.with_name("mangled")
    mangled.write_bytes(node.nvml.path.read_bytes().replace(word, b"\xff\xfe\xc3(" + word[4:]))
    mangled.replace(node.nvml.path)
    if draw.random() < 0.5:
        node.nvml.raise_event(draw.randrange(len(node.nvml.gpus)), EventType.XID_CRITICAL_ERROR, _APPLICATIONS_XID)
    await asyncio.sleep(1)
    yield
    node.nvml.recover()


# ---------------------------------------------------------------------- MPS


@attack("mps control")
async def an_idle_client_of_mps(node: Target, draw: Random) -> AsyncIterator[None]:  # noqa: ARG001 - as all attacks
    """Connect to the control daemon and say nothing: it serves nobody else meanwhile."""
    connection = None
    with contextlib.suppress(OSError):
        connection = node.mps.fall_silent(node.root.pipe)
    await asyncio.sleep(0.5)
    yield
    if connection is not None:
        connection.close()


@attack("mps control")
async def junk_for_mps(node: Target, draw: Random) -> AsyncIterator[None]:
    """Commands that are none, by the thousand, and connections for no purpose: they must not fill our log."""
    await asyncio.to_thread(_send_junk, node, draw)
    await asyncio.sleep(1.5)
    yield


def _send_junk(node: Target, draw: Random) -> None:
    with contextlib.suppress(OSError), node.mps.prompt(node.root.pipe) as prompt:
        for _ in range(3000):
            prompt.ask(junk.label(draw))
    for _ in range(20):
        with contextlib.suppress(OSError), node.mps.fall_silent(node.root.pipe) as connection:
            connection.sendall(draw.randbytes(draw.randrange(1, 2000)))


@attack("mps control")
async def limits_set_by_anybody(node: Target, draw: Random) -> AsyncIterator[None]:
    """Somebody lifts or lowers what the clients of MPS may have; it is set again."""
    with contextlib.suppress(Exception):
        node.mps.ask(node.root.pipe, f"set_default_device_pinned_mem_limit 0 {draw.choice(['79G', '1M', '0M'])}")
        node.mps.ask(node.root.pipe, f"set_default_active_thread_percentage {draw.choice(['1', '100'])}")
    yield


@attack("mps control")
async def mps_dies(node: Target, draw: Random) -> AsyncIterator[None]:
    """Kill the control daemon, or have it start a server for a stranger."""
    with contextlib.suppress(Exception):
        if draw.random() < 0.5:
            node.mps.crash(node.root.pipe)
        else:
            node.mps.start_server(node.root.pipe)
    yield


# ---------------------------------------------------------------------- the process


@attack("log", "plugin sockets")
async def nobody_reads_the_log(node: Target, draw: Random) -> AsyncIterator[None]:
    """Whoever reads the log stops for a while, and much is logged: everything is answered all the same."""
    with node.daemon.unread():
        await _much_to_log(node)
        await node.live(draw)
        await node.healthy()
    yield


async def _much_to_log(node: Target) -> None:
    for path in node.sockets:
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/v1beta1.DevicePlugin/Allocate")
            for _ in range(100):
                # Field 1 is a request for a container, whose field 1 is the ID of a unit.
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await call(b"\x0a\xca\x0f\x0a\xc7\x0f" + b"x" * 1991, timeout=30)


@attack("descriptors", "http", "plugin sockets")
async def few_descriptors(node: Target, draw: Random) -> AsyncIterator[None]:
    """Let the process open hardly another file while many connect; its log stays readable."""
    pid = node.daemon.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (size(pid).descriptors + draw.randint(1, 6), hard))
    writers = []
    try:
        for _ in range(30):
            with contextlib.suppress(OSError):
                writers.append((await asyncio.open_connection("127.0.0.1", node.port))[1])
            if sockets := node.sockets:
                with contextlib.suppress(OSError):
                    writers.append((await asyncio.open_unix_connection(draw.choice(sockets)))[1])
        await asyncio.sleep(1)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        for writer in writers:
            writer.close()
    yield
