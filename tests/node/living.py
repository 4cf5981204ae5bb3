"""A node whose config, GPUs and health change while an embedded kubelet watches."""

import os
import time
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import structlog
import yaml
from structlog.testing import LogCapture

from gpushare_plugin.config.loading.load import Loaded, load
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.kubelet.allocations.trust import TrustDelays
from gpushare_plugin.node.daemon import Daemon, NodeDaemon
from gpushare_plugin.node.node import ASK_KUBELET_EVERY
from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from tests.nodes import Cards

RUNS = int(os.environ.get("GPUSHARE_NODE_RUNS", "12"))
"""Runs of the tests that let anything happen to a node, in any order."""

QUICK = {"goodProbes": 2, "probeSeconds": 0.01, "rescanSeconds": 0.05}
"""Settings of `health` under which nothing takes long."""


class Life:
    """A node run by the daemon's own root beside an embedded kubelet, and its config file."""

    def __init__(self, cards: Cards, kubelet: EmbeddedKubelet) -> None:
        """Hold all that a test may want to change; nothing runs before `start`."""
        self.cards = cards
        self.kubelet = kubelet
        self.file = kubelet.plugin_directory.parent / "config.yaml"
        self.trust_delays = TrustDelays(unknown=0)
        self.cdi_spec_dirs: tuple[Path, ...] = ()
        self.ask_every = ASK_KUBELET_EVERY
        self.limits_root: Path | None = None

    async def start(self, **sections: object) -> None:
        """Start gpushare with this config and the GPUs that are present now."""
        written(self.file, **sections)
        daemon = Daemon(
            Configs(file=self.file),
            lambda _: self.cards,
            self.kubelet.plugin_directory,
            self.kubelet.pod_resources_socket,
            trust_delays=self.trust_delays,
            cdi_spec_dirs=self.cdi_spec_dirs,
            clock=lambda: 2000 * time.monotonic(),
            ask_every=self.ask_every,
            driver_limits_root=self.limits_root,
        )
        self._context = AsyncExitStack()
        serving = NodeDaemon(daemon).serving(self.cards, self.cards.inventory, None)
        self._running = await self._context.enter_async_context(serving)
        self.node = self._running.node

    async def stop(self) -> None:
        """Stop gpushare; the kubelet and the pods go on."""
        await self._context.aclose()
        await gone(self.kubelet)

    async def restart(self, **sections: object) -> None:
        """Restart gpushare, perhaps with another config."""
        await self.stop()
        await self.start(**sections)

    async def reload(self, **sections: object) -> None:
        """Write another config and load it; the daemon may have loaded it before."""
        written(self.file, **sections)
        await self._running.reloads.reload()

    async def healthy(self, counts: dict[str, int]) -> None:
        """Wait until the kubelet counts exactly so many healthy units of each resource, none at all left out."""
        await self.kubelet.wait_for(
            lambda node: {name: count for name, count in node.allocatable().items() if count} == counts
        )


async def gone(kubelet: EmbeddedKubelet) -> None:
    """Wait until the kubelet has noticed that no plugin serves it: until then it counts what the next one may list."""
    await kubelet.wait_for(lambda node: not any(node.allocatable().values()))


def written(file: Path, **sections: Any) -> Loaded:
    """Replace the config file atomically, and read it."""
    flags = {"mpsRoot": str(file.parent / "mps"), **sections.pop("flags", {})}
    new = file.with_suffix(".new")
    new.write_text(yaml.safe_dump({"version": "v1", "flags": flags, "health": QUICK, **sections}))
    new.replace(file)
    return load(file)


@asynccontextmanager
async def living(
    kubelet: EmbeddedKubelet,
    cards: Cards,
    *,
    cdi_spec_dirs: tuple[Path, ...] = (),
    limits_root: Path | None = None,
    **sections: object,
) -> AsyncIterator[Life]:
    """Run a node beside `kubelet`, with the GPUs of `cards`, these CDI specifications and this config.

    `limits_root` is the root of driver limits, None without their agent.
    """
    with no_defects():
        life = Life(cards, kubelet)
        life.cdi_spec_dirs, life.limits_root = cdi_spec_dirs, limits_root
        await life.start(**sections)
        try:
            yield life
        finally:
            await life.stop()


@contextmanager
def no_defects() -> Iterator[None]:
    """Fail at the end when a task broke meanwhile: the daemon logs that and goes on."""
    before = structlog.get_config()
    captured = any(isinstance(each, LogCapture) for each in before["processors"])
    defects = []

    def note(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if event["event"] == "task_crashed":
            defects.append(event)
        if not captured:
            raise structlog.DropEvent
        return event

    structlog.configure(
        processors=[note, *before["processors"]], wrapper_class=structlog.make_filtering_bound_logger(0)
    )
    try:
        yield
    finally:
        structlog.configure(**before)
    assert not defects
