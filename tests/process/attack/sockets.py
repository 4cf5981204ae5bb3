"""Attacks on the sockets where the daemon answers: those of its resources, and its HTTP port."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import grpc

from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from tests.process.attack import junk
from tests.process.attack.table import attack
from tests.process.attack.target import Target
from tests.waiting import PATIENCE

Watch = grpc.aio.UnaryStreamMultiCallable[bytes, bytes]

_SERVICE = "/v1beta1.DevicePlugin/"
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_METHODS = ("Allocate", "GetPreferredAllocation", "PreStartContainer", "GetDevicePluginOptions")
_TOO_LARGE = (16 << 20) + 1
_CONNECTIONS = 60


def _as_is(message: bytes) -> bytes:
    return message


async def _connect(node: Target, draw: Random, *, http: bool) -> asyncio.StreamWriter | None:
    """Connect to the port or to a plugin socket, if anybody listens."""
    with contextlib.suppress(OSError):
        if http:
            return (await asyncio.open_connection("127.0.0.1", node.port))[1]
        if sockets := node.sockets:
            return (await asyncio.open_unix_connection(draw.choice(sockets)))[1]
    return None


async def _say(node: Target, draw: Random, content: bytes, *, http: bool = False) -> None:
    """Send something, and hang up."""
    if (writer := await _connect(node, draw, http=http)) is not None:
        writer.write(content)
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def _channel(socket: Path) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        yield channel


async def _call(channel: grpc.aio.Channel, method: str, message: bytes) -> grpc.StatusCode:
    """Call a method with these bytes; return how that ended."""
    # A stream of device lists never ends.
    patience = 1.0 if method.endswith("ListAndWatch") else PATIENCE
    call = channel.unary_unary(method, request_serializer=_as_is, response_deserializer=_as_is)(
        message, timeout=patience
    )
    status: grpc.StatusCode = await call.code()
    return status


async def _calls(node: Target, draw: Random, times: int, make: Callable[[], tuple[str, bytes]]) -> set[grpc.StatusCode]:
    """Call so many times at once, each time with what `make` returns; return how that ended."""
    if not (sockets := node.sockets):
        return set()
    async with _channel(draw.choice(sockets)) as channel:
        return set(await asyncio.gather(*(_call(channel, *make()) for _ in range(times))))


@attack("plugin sockets")
async def garbage_for_grpc(node: Target, draw: Random) -> AsyncIterator[None]:
    """Bytes that are no gRPC, or begin as if they were."""
    for _ in range(50):
        beginning = draw.choice([b"", _HTTP2, _HTTP2[:10], b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01"])
        await _say(node, draw, beginning + draw.randbytes(draw.randrange(2000)))
    yield


@attack("plugin sockets")
async def half_open_connections(node: Target, draw: Random) -> AsyncIterator[None]:
    """Connect to plugin sockets and say nothing, or half a beginning."""
    found = [await _connect(node, draw, http=False) for _ in range(_CONNECTIONS)]
    writers = [writer for writer in found if writer is not None]
    for writer in writers:
        writer.write(draw.choice([b"", _HTTP2[:12], _HTTP2]))
    yield
    for writer in writers:
        writer.close()


@attack("plugin sockets")
async def flood_of_requests(node: Target, draw: Random) -> AsyncIterator[None]:
    """Ask by the hundred for units that nobody has, none at all, the same ones again, or of endless names."""

    def request() -> tuple[str, bytes]:
        ids = draw.choice([[], [junk.text(draw)], ["x" * 100_000], ["a", "a"], [str(n) for n in range(2000)]])
        asked: api.AllocateRequest | api.PreferredAllocationRequest
        if draw.random() < 0.5:
            asked = api.AllocateRequest(
                container_requests=[api.ContainerAllocateRequest(devices_ids=ids)] * draw.randrange(3)
            )
            return f"{_SERVICE}Allocate", asked.SerializeToString()
        container = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=ids, must_include_deviceIDs=ids[:1], allocation_size=draw.choice([-1, 0, 1, 2**31 - 1])
        )
        asked = api.PreferredAllocationRequest(container_requests=[container] * draw.randrange(3))
        return f"{_SERVICE}GetPreferredAllocation", asked.SerializeToString()

    await _calls(node, draw, 200, request)
    yield


@attack("plugin sockets")
async def wrong_calls(node: Target, draw: Random) -> AsyncIterator[None]:
    """Methods that there are not, and messages that are none."""

    def call() -> tuple[str, bytes]:
        method = draw.choice([*_METHODS, "ListAndWatch", "Nothing", "", "Register"])
        return draw.choice([_SERVICE, "/", "//", "/v1.DevicePlugin/"]) + method, draw.randbytes(draw.randrange(200))

    await _calls(node, draw, 100, call)
    yield


@attack("plugin sockets")
async def oversized_messages(node: Target, draw: Random) -> AsyncIterator[None]:
    """Messages a byte larger than is taken, which nobody may try to understand."""
    codes = await _calls(node, draw, 3, lambda: (f"{_SERVICE}Allocate", bytes(_TOO_LARGE)))
    assert not codes & {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL}
    yield


@attack("plugin sockets")
async def watchers_that_never_read(node: Target, draw: Random) -> AsyncIterator[None]:
    """Many streams of a device list, which nobody reads, beside the kubelet's own."""
    async with contextlib.AsyncExitStack() as stack:
        for socket in node.sockets:
            channel = await stack.enter_async_context(_channel(socket))
            watch: Watch = channel.unary_stream(f"{_SERVICE}ListAndWatch", request_serializer=_as_is)
            for _ in range(_CONNECTIONS):
                stack.callback(watch(b"").cancel)
        await _calls(node, draw, 1, lambda: (f"{_SERVICE}GetDevicePluginOptions", b""))
        yield


@attack("http")
async def garbage_for_http(node: Target, draw: Random) -> AsyncIterator[None]:
    """Send what is no request, endless lines and headers, or bodies that never end."""
    for _ in range(50):
        path = draw.choice(["/", "/healthz", "/metrics", "/readyz", "/" + "x" * 50_000, "/%00%ff", "*"])
        beginning = f"{draw.choice(['GET', 'POST', 'BREW', ''])} {path} HTTP/1.1\r\n"
        ending = draw.choice(
            ["\r\n", "X: " + "y" * 100_000, "Content-Length: 99999999\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\nzz"]
        )
        await _say(node, draw, beginning.encode() + ending.encode() + draw.randbytes(200), http=True)
    yield


@attack("http")
async def slow_connections(node: Target, draw: Random) -> AsyncIterator[None]:
    """More connections to the HTTP port than it keeps, on which next to nothing comes."""
    found = [await _connect(node, draw, http=True) for _ in range(200)]
    writers = [writer for writer in found if writer is not None]
    for writer in writers:
        writer.write(draw.choice([b"", b"G", b"GET /metrics HTTP/1.1\r\nX: "]))
    yield
    for writer in writers:
        writer.close()


@attack("http")
async def scrapes_that_hang_up(node: Target, draw: Random) -> AsyncIterator[None]:
    """Scrapes by clients that are gone before the answer."""
    for _ in range(100):
        await _say(node, draw, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", http=True)
    yield


@attack("signals")
async def hangups_by_the_hundred(node: Target, draw: Random) -> AsyncIterator[None]:
    """SIGHUP again and again, and signals that mean nothing."""
    for _ in range(draw.randrange(50, 200)):
        node.daemon.process.send_signal(draw.choice([signal.SIGHUP, signal.SIGHUP, signal.SIGWINCH, signal.SIGCONT]))
        await asyncio.sleep(0)
    yield


@attack("signals")
async def stopped_for_a_while(node: Target, draw: Random) -> AsyncIterator[None]:
    """Stop the process for a moment, and let it go on."""
    node.daemon.process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(draw.uniform(0.1, 0.5))
    finally:
        node.daemon.process.send_signal(signal.SIGCONT)
    yield
