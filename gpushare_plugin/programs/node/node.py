"""A node that has GPUs: its parts, kept in step with the config, the GPUs and the pods.

Each part keeps one thing that can change as it is now; after any change the whole offer is computed again and handed
to the sessions, which send what differs.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpushare_plugin.adapters.host.mps.exchange import MpsRoot
from gpushare_plugin.adapters.host.mps.link import MpsLink
from gpushare_plugin.adapters.host.source import GpuSource
from gpushare_plugin.adapters.kubelet.allocations.ledger import Ledger
from gpushare_plugin.adapters.kubelet.device_plugin.directory import PluginDirectory
from gpushare_plugin.adapters.kubelet.device_plugin.session import Session
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.foundation.published import Published
from gpushare_plugin.foundation.tasks import Spawn
from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.model.health import Cordon, GpuEvent
from gpushare_plugin.programs.node.configuration import Accepted, Configuration
from gpushare_plugin.programs.node.gpus.looks import Looks
from gpushare_plugin.programs.node.gpus.state import Gpus
from gpushare_plugin.programs.node.mps_needs import NodeMps
from gpushare_plugin.programs.node.news.news import News
from gpushare_plugin.programs.node.offer import NodeOffer
from gpushare_plugin.programs.node.sessions import Sessions
from gpushare_plugin.programs.node.snapshot import snapshot
from gpushare_plugin.sharing.snapshot import Snapshot

ASK_KUBELET_EVERY = 2.0
"""Seconds between looks at what pods hold, while units are on their way out; otherwise nobody asks."""

RESUME_EVERY = 1.0
"""Seconds between attempts to learn what pods hold from before."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What a node touches: where it finds its GPUs and the kubelet, what runs its sessions, and who hears its news.

    `ledger` knows what pods hold, `clock` (seconds) how long units have been on their way out.
    """

    source: GpuSource
    directory: PluginDirectory
    ledger: Ledger
    spawn: Spawn
    news: News
    clock: Callable[[], float]


class Node:
    """The GPUs of this node and the sessions that offer them."""

    def __init__(self, accepted: Accepted, inventory: Inventory, outside: Outside) -> None:
        """Prepare to offer what a config means for the GPUs of a first look; nothing is offered before `begin`."""
        news = outside.news
        self._ledger = outside.ledger
        self._clock = outside.clock
        self._configuration = Configuration(accepted, inventory, news)
        self._gpus = Gpus(inventory, self.config.health, news)
        self._looks = Looks(outside.source, self._gpus, self._looked)
        self._offer = NodeOffer(news, outside.clock)
        self._sessions = Sessions(outside.directory, outside.spawn, news)
        # Containers hold mounts of its root, so this is the one for life.
        self._mps = NodeMps(MpsRoot(Path(self.config.flags.mps_root)), self.apply, news)
        self._pods_matter = asyncio.Event()
        self.snapshot = Published(Snapshot())
        self.resumed = False

    @property
    def config(self) -> Config:
        """The config in effect."""
        return self._configuration.config

    @property
    def sessions(self) -> Mapping[str, Session]:
        """The sessions by the name of their resource."""
        return self._sessions.by_resource

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """The tasks of the sessions, those that are ending included."""
        return self._sessions.tasks

    @property
    def mps(self) -> MpsLink:
        """The exchange with `gpushare mps`."""
        return self._mps.link

    # ------------------------------------------------------------------ what pods hold

    async def begin(self) -> None:
        """Begin to offer, once it is known what pods hold from before; they keep what they hold in another way."""
        held = await self._ledger.before()
        if held is None:
            return
        self._offer.resume(held, self._gpus.inventory, self._mps.modes_before(self._configuration.plan))
        self.resumed = True
        self.apply()

    async def settle(self) -> None:
        """Ask the kubelet what pods hold: at first, and for as long as units are on their way out."""
        while not self.resumed:
            await asyncio.sleep(RESUME_EVERY)
            await self.begin()
        while True:
            await self._pods_matter.wait()
            await self.ask_kubelet()
            await asyncio.sleep(ASK_KUBELET_EVERY)

    async def ask_kubelet(self) -> None:
        """Ask the kubelet once what pods hold, and give up what nobody does."""
        self._offer.learn(await self._ledger.account(self._clock()))
        self.apply()
        if self._ledger.awaits_record or self._offer.waits_for_record:
            self._sessions.refresh_record()

    # ------------------------------------------------------------------ what else changes

    def reload(self, loaded: Loaded) -> None:
        """Put another config in effect, or, when anything is wrong with it, publish that and keep the current one."""
        if self._configuration.reload(loaded, self._gpus.inventory):
            self._follow_config()
            self.apply()
        else:
            self._publish()

    def event(self, event: GpuEvent) -> None:
        """Take note of what the driver reported."""
        before = self._gpus.unhealthy
        if self._gpus.event(event) == "ignore":
            return
        self._looks.reconsider()
        # Events can come by the thousand; only the first of a GPU changes what is offered.
        if self._gpus.unhealthy != before:
            self.apply()

    def cordon(self, cordon: Cordon) -> None:
        """Hand out nothing of the GPUs that people took out by hand, until another `cordon` names them no more."""
        if self._gpus.cordon(cordon):
            self.apply()

    async def rescan(self) -> None:
        """Look at the GPUs again and again; raises DriverChangedError."""
        await self._looks.run()

    async def look(self) -> None:
        """Look at the GPUs once; raises DriverChangedError."""
        await self._looks.look()

    def _looked(self) -> None:
        if self._configuration.suit(self._gpus.inventory):
            self._follow_config()
        self.apply()

    def _follow_config(self) -> None:
        self._gpus.follow(self.config.health)
        self._looks.reconsider()

    # ------------------------------------------------------------------ what follows from it

    def apply(self) -> None:
        """Offer what follows from everything known now; sessions send what differs from before."""
        if not self.resumed:
            return
        plan, inventory = self._configuration.plan, self._gpus.inventory
        self._offer.advance(plan, inventory)
        self._mps.want(plan, self._offer.modes_in_use, inventory)
        unhealthy = self._gpus.unhealthy | self._mps.unserved.keys()
        resources = self._offer.resources.items()
        self._sessions.serve({name: replace(resource, unhealthy=unhealthy) for name, resource in resources})
        if self._offer.depends_on_pods:
            self._pods_matter.set()
        else:
            self._pods_matter.clear()
        self._publish()

    def _publish(self) -> None:
        self.snapshot.publish(snapshot(self._configuration, self._gpus, self._offer, self._mps))
