"""A node whose settings, GPUs and health change while an embedded kubelet watches."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import yaml

from gpushare_plugin.config.load import Loaded, load
from gpushare_plugin.kubelet.directory import PluginDirectory
from gpushare_plugin.node import Node, decide
from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from tests.nodes import Cards

QUICK = {"goodProbes": 2, "probeSeconds": 0.01, "rescanSeconds": 0.05}
"""Settings of `health` under which nothing takes long."""


class Life:
    """A running node, and the file its settings come from."""

    def __init__(self, node: Node, cards: Cards, kubelet: EmbeddedKubelet, file: Path) -> None:
        """Hold all that a test may want to change."""
        self.node = node
        self.cards = cards
        self.kubelet = kubelet
        self.file = file

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
    file = kubelet.plugin_directory.parent / "config.yaml"
    loaded = written(file, **sections)
    with closing(PluginDirectory(kubelet.plugin_directory)) as directory:
        async with asyncio.TaskGroup() as group:

            def spawn(name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
                async def working() -> None:
                    await work()

                return group.create_task(working(), name=name)

            node = Node(
                loaded,
                cards,
                directory,
                kubelet.pod_resources_socket,
                spawn,
                kubelet_warm_up=0,
                clock=lambda: 2000 * time.monotonic(),
            )
            node.begin(cards.inventory, decide(loaded, cards.inventory))
            tasks = [
                spawn("directory", directory.watch),
                spawn("rescan", node.rescan),
                spawn("settle", node.settle),
            ]
            try:
                yield Life(node, cards, kubelet, file)
            finally:
                for task in (*tasks, *node.tasks):
                    task.cancel()
