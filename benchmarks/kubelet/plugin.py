"""The client that asks the daemon and its floors alike, and the timing of its calls."""

import asyncio
import contextlib
import gc
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import grpc

from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc

LIST_AND_WATCH = "/v1beta1.DevicePlugin/ListAndWatch"
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
)
_PATIENCE = 60.0
"""Seconds until a measurement gives up on what it waits for."""
_TURNS = 10
"""How often calls take turns, so that what else the machine does meanwhile hits all alike."""

Call = Callable[[], Awaitable[object]]


class Received(NamedTuple):
    """A device list as it came, and when (seconds of `time.perf_counter`)."""

    at: float
    content: bytes


class Lists:
    """One `ListAndWatch` stream; lists are taken as bytes, so that reading them costs the reader little."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Open the stream."""
        self._received: asyncio.Queue[Received] = asyncio.Queue()
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(LIST_AND_WATCH)
        self._call = method(b"", wait_for_ready=True)
        self._reading = asyncio.create_task(self._read())

    async def next(self) -> Received:
        """Wait for the next list."""
        async with asyncio.timeout(_PATIENCE):
            return await self._received.get()

    async def close(self) -> None:
        """Hang up."""
        self._call.cancel()
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            async for content in self._call:
                self._received.put_nowait(Received(time.perf_counter(), content))


class Plugin:
    """A connection to a device plugin, as the kubelet has one."""

    def __init__(self, socket: Path) -> None:
        """Prepare to connect to `socket`, which need not be there yet."""
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        self.calls: rpc.DevicePluginAsyncStub = rpc.DevicePluginStub(self._channel)
        self._streams: list[Lists] = []

    async def __aenter__(self) -> Self:
        """Return the connection itself; it is made by the first call that waits for it."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hang up."""
        for stream in self._streams:
            await stream.close()
        await self._channel.close()

    def lists(self) -> Lists:
        """Open a `ListAndWatch` stream, which ends with the connection at the latest."""
        stream = Lists(self._channel)
        self._streams.append(stream)
        return stream


def preferred(available: Sequence[str], size: int) -> api.PreferredAllocationRequest:
    """Return the kubelet's question for `size` of the `available` units, for one container."""
    container = api.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=size)
    return api.PreferredAllocationRequest(container_requests=[container])


def allocation(ids: Sequence[str]) -> api.AllocateRequest:
    """Return the kubelet's request for these units, for one container."""
    return api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=ids)])


def unit_ids(content: bytes) -> list[str]:
    """Return the IDs in a device list, in its order."""
    return [device.ID for device in api.ListAndWatchResponse.FromString(content).devices]


async def _nothing() -> None:
    """Do nothing."""


async def in_turns(calls: Sequence[Call], times: int, after: Sequence[Call] = ()) -> list[list[float]]:
    """Make each call `times` times, one after another, in turns, and return the milliseconds each took.

    What comes `after` a call, for each of them, is not measured.
    """
    taken: list[list[float]] = [[] for _ in calls]
    turn = -(-times // _TURNS)
    with undisturbed():
        while len(taken[-1]) < times:
            for call, then, each in zip(calls, after or [_nothing] * len(calls), taken, strict=True):
                for _ in range(min(turn, times - len(each))):
                    each.append(await milliseconds(call))
                    await then()
    return taken


async def milliseconds(call: Call) -> float:
    """Return how long one call takes."""
    before = time.perf_counter()
    await call()
    return (time.perf_counter() - before) * 1000


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Keep this process's own garbage collection out of the figures."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
