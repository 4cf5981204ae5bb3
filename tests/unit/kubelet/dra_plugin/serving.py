"""A DRA plugin beside an embedded kubelet, and claims that are prepared as a test says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from gpushare_plugin.base.published import Published
from gpushare_plugin.core.prepared_claim import ClaimId, PreparedDevice
from gpushare_plugin.kubelet.dra_plugin.claim_service import DeviceHealth
from gpushare_plugin.kubelet.dra_plugin.plugin import DraPlugin
from gpushare_plugin.kubelet.dra_plugin.sockets import PLUGINS, REGISTRY
from tests.unit.testing.dra.driver import DRIVER
from tests.unit.testing.dra.node import NODE, DraNode, dra_node
from tests.waiting import until

HEALTHY = DeviceHealth(NODE, "gpu-0", "Healthy")


def cdi_name(uid: str) -> str:
    """Return the CDI name of a prepared claim."""
    return f"{DRIVER}/claim={uid}"


@dataclass(eq=False)
class Claims:
    """Prepares every claim with one share; `answers` are others, by UID, and `during` is awaited in each call."""

    answers: dict[str, tuple[PreparedDevice, ...] | str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    during: Callable[[], Awaitable[object]] | None = None
    prepared: list[Sequence[ClaimId]] = field(default_factory=list)
    unprepared: list[Sequence[ClaimId]] = field(default_factory=list)
    health: Published[tuple[DeviceHealth, ...]] = field(default_factory=lambda: Published((HEALTHY,)))

    async def prepare(self, ids: Sequence[ClaimId]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """Prepare."""
        self.prepared.append(ids)
        if self.during is not None:
            await self.during()
        return {each.uid: (a_share(each.uid),) for each in ids} | self.answers

    async def unprepare(self, ids: Sequence[ClaimId]) -> Mapping[str, str]:
        """Give back."""
        self.unprepared.append(ids)
        return self.errors


def a_share(uid: str) -> PreparedDevice:
    """Return the share that a claim gets."""
    return PreparedDevice("gpu", NODE, "gpu-0", "GPU-0", "memory", share_id=uid, cdi_devices=(cdi_name(uid),))


@dataclass(eq=False, slots=True)
class PluginNode:
    """A node whose DRA driver is ours."""

    node: DraNode
    root: Path

    @asynccontextmanager
    async def plugin(self, claims: Claims | None = None, **settings: Any) -> AsyncIterator[DraPlugin]:
        """Run a plugin for as long as the block lasts."""
        plugin = DraPlugin(self.root, DRIVER, claims or Claims(), **settings)
        task = asyncio.create_task(plugin.run())
        try:
            await until(lambda: plugin.served)
            yield plugin
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until_registered(self, plugin: DraPlugin, times: int = 1) -> None:
        """Let the kubelet look once, and wait until the kubelet has taken the plugin so many times and can call it."""
        await self.node.clock.skip(1)
        await self.until_known(plugin, times)

    async def until_known(self, plugin: DraPlugin, times: int) -> None:
        """Wait until the kubelet has taken the plugin so many times and can call it."""
        await until(lambda: plugin.registered.value.times == times)
        await self.node.kubelet.wait_for(lambda kubelet: DRIVER in kubelet.connected_drivers)

    @property
    def sockets(self) -> list[str]:
        """The names of the sockets that plugins have made, in the two directories."""
        return sorted(each.name for directory in self.directories for each in directory.glob("*.sock"))

    @property
    def registration(self) -> Path:
        """The only socket at which a plugin registers."""
        (found,) = self.directories[0].glob("*.sock")
        return found

    @property
    def endpoint(self) -> Path:
        """The only socket at which a plugin is called."""
        (found,) = self.directories[1].glob("*.sock")
        return found

    @property
    def directories(self) -> tuple[Path, Path]:
        """The directories with the sockets of plugins."""
        return self.root / REGISTRY, self.root / PLUGINS / DRIVER


@asynccontextmanager
async def plugin_node(root: Path, **settings: Any) -> AsyncIterator[PluginNode]:
    """Run a kubelet and an API server for as long as the block lasts."""
    async with dra_node(root, **settings) as node:
        yield PluginNode(node, root)


@asynccontextmanager
async def connected(socket: Path) -> AsyncIterator[grpc.aio.Channel]:
    """Connect to a socket, by a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        await channel.channel_ready()
        yield channel
