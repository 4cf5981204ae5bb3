"""A node whose settings, GPUs and health change while an embedded kubelet watches."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import yaml

from gpushare_plugin.adapters.host.mps.exchange import MpsRoot
from gpushare_plugin.adapters.kubelet.allocations.reader import AllocationReader
from gpushare_plugin.adapters.kubelet.allocations.trust import TrustDelays
from gpushare_plugin.adapters.kubelet.device_plugin.directory import PluginDirectory
from gpushare_plugin.config.loading.load import Loaded, load
from gpushare_plugin.programs.node.node import Node, decide
from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from tests.nodes import Cards

QUICK = {"goodProbes": 2, "probeSeconds": 0.01, "rescanSeconds": 0.05}
"""Settings of `health` under which nothing takes long."""


class Life:
    """A node, the file its settings come from, and everything it runs beside an embedded kubelet."""

    def __init__(self, cards: Cards, kubelet: EmbeddedKubelet, group: asyncio.TaskGroup) -> None:
        """Hold all that a test may want to change; nothing runs before `start`."""
        self.cards = cards
        self.kubelet = kubelet
        self.file = kubelet.plugin_directory.parent / "config.yaml"
        self.mps_root = MpsRoot(self.file.parent / "mps")
        self.patience = TrustDelays(unknown=0)
        self._group = group

    async def start(self, **sections: object) -> None:
        """Begin a life of gpushare with these settings."""
        loaded = written(self.file, **sections)
        self._directory = directory = PluginDirectory(self.kubelet.plugin_directory)
        with suppress(OSError):
            directory.claim()
        reader = AllocationReader(directory, self.kubelet.pod_resources_socket, delays=self.patience)
        self.node = Node(
            loaded, self.cards, directory, reader, self.mps_root, self._spawn, clock=lambda: 2000 * time.monotonic()
        )
        await self.node.begin(self.cards.inventory, decide(loaded, self.cards.inventory))
        self._tasks = [
            self._spawn("directory", directory.watch),
            self._spawn("rescan", self.node.rescan),
            self._spawn("settle", self.node.settle),
            self._spawn("MPS", self.node.mps.watch),
        ]

    async def stop(self) -> None:
        """End this life of gpushare; the kubelet and the pods live on."""
        ending = (*self._tasks, *self.node.tasks)
        for task in ending:
            task.cancel()
        await asyncio.wait(ending)
        self._directory.close()

    async def restart(self, **sections: object) -> None:
        """Begin another life of gpushare, perhaps with other settings."""
        await self.stop()
        await self.start(**sections)

    def _spawn(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        async def working() -> None:
            await work()

        return self._group.create_task(working(), name=name)

    def reload(self, **sections: object) -> None:
        """Put other settings into the file and in force, as the daemon does when the file changes."""
        self.node.reload(written(self.file, **sections))

    async def healthy(self, counts: dict[str, int]) -> None:
        """Wait until the kubelet counts exactly so many healthy units of each resource, none at all left out."""
        await self.kubelet.wait_for(
            lambda node: {name: count for name, count in node.allocatable().items() if count} == counts
        )


def written(file: Path, **sections: object) -> Loaded:
    """Write a settings file and read it."""
    file.write_text(yaml.safe_dump({"version": "v1", "health": QUICK, **sections}))
    return load(file)


@asynccontextmanager
async def living(kubelet: EmbeddedKubelet, cards: Cards, **sections: object) -> AsyncIterator[Life]:
    """Run a node beside `kubelet`, with the GPUs of `cards` and these settings."""
    async with asyncio.TaskGroup() as group:
        life = Life(cards, kubelet, group)
        await life.start(**sections)
        try:
            yield life
        finally:
            await life.stop()
