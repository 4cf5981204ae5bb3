"""A node with GPUs: the parts of the node, and the consequences of changes of the config, the GPUs and the pods.

Each part holds the current state of one changing thing. After any change the node computes the whole offer again and
passes the offer to the sessions; the sessions send changed resources to the kubelet.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpushare_plugin.base.published import Published
from gpushare_plugin.base.structs import Struct, field, replace
from gpushare_plugin.base.tasks import Spawn
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.config.schema.sections import Config, Dra
from gpushare_plugin.config.unreported_memory import sized
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.health import Cordon, GpuEvent
from gpushare_plugin.core.holding import Confirmed, Unknown
from gpushare_plugin.core.namespaces import WITH_NAMESPACES, ContainerNamespace
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.gpus.host import Host
from gpushare_plugin.gpus.source import GpuSource
from gpushare_plugin.kubelet.allocations.reader import HoldingsReader
from gpushare_plugin.kubelet.device_plugin.directory import PluginDirectory
from gpushare_plugin.kubelet.device_plugin.session import Session
from gpushare_plugin.kubelet.device_plugin.steering import Steering
from gpushare_plugin.mig.exchange import DEFAULT_ROOT, MigRoot
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.mps.link import MpsLink
from gpushare_plugin.node.configuration import Accepted, Configuration
from gpushare_plugin.node.gpus.host import HostSource
from gpushare_plugin.node.gpus.looks import Looks
from gpushare_plugin.node.gpus.mig_needs import NodeMig
from gpushare_plugin.node.gpus.mps_needs import NodeMps
from gpushare_plugin.node.gpus.slices import NodeSlices
from gpushare_plugin.node.gpus.state import Gpus
from gpushare_plugin.node.gpus.withdrawals import NodeWithdrawals
from gpushare_plugin.node.news.news import News
from gpushare_plugin.node.offer import NodeOffer
from gpushare_plugin.node.packing import NodePacking
from gpushare_plugin.node.pods.limits import NodeLimits
from gpushare_plugin.node.sessions import Sessions
from gpushare_plugin.sharing.cut import PresentUnits, few_slices, unsuitable
from gpushare_plugin.sharing.snapshot import limit_rules, planned_snapshot
from gpushare_plugin.slices.wanted import SliceRequest

if TYPE_CHECKING:
    from gpushare_plugin.node.claims.hand_over import HandOver

ASK_KUBELET_EVERY = 2.0
"""Seconds between questions to the kubelet about holdings while units are retired; otherwise there are no questions."""

RETRY_START_EVERY = 1.0
"""Seconds between attempts to start, until the holdings of pods are known."""


RENEW_AFTER_LOOKS = 30
"""Looks at the kubelet's record without news after which the kubelet is made to write the record again.

One minute: pods that have ended then lose their MPS namespaces.
"""


class Outside(Struct, frozen=True):
    """The surroundings of a node: the driver, the kubelet, the background tasks and the news."""

    source: GpuSource
    """The source of the GPUs."""
    directory: PluginDirectory
    """The device plugin directory of the kubelet."""
    reader: HoldingsReader
    """Reads the holdings of pods."""
    spawn: Spawn
    """Runs the sessions in the background."""
    news: News
    """Takes the news of the node."""
    clock: Callable[[], float]
    """Measures, in seconds, how long units have been retired."""
    steering: Steering | None = None
    """Knows the promises to pods, None without knowledge of pods."""
    host: Host = field(default_factory=Host)
    """The host beside the GPUs."""
    mig_root: Path = DEFAULT_ROOT
    """The directory shared with `gpushare mig`."""
    driver_limits_root: Path | None = None
    """The directory shared with `gpushare driver-limits`; None where that is not to run."""
    ask_every: float = ASK_KUBELET_EVERY
    """Seconds between questions to the kubelet about holdings, while units are retired."""
    asked_for: Callable[[], AbstractSet[str]] = frozenset
    """Returns the resources that containers of this node request and have no units of yet, as far as known."""


class ServedNode:
    """The GPUs of this node and the sessions that offer them."""

    def __init__(self, accepted: Accepted, inventory: Inventory, outside: Outside) -> None:
        """Prepare to offer the GPUs of a first look by an accepted config; the node offers nothing before `start`."""
        news = outside.news
        self._reader = outside.reader
        self._clock = outside.clock
        self._ask_every = outside.ask_every
        self._configuration = Configuration(accepted, inventory, news, outside.host)
        self._gpus = Gpus(inventory, self.config.health, news)
        source = HostSource(outside.source, outside.host, lambda: self.config)
        self._looks = Looks(source, self._gpus, self._looked)
        self._offer = NodeOffer(news, outside.clock)
        # Containers have mounts by the root and the protocol of MPS: both stay the same until this process restarts.
        flags = self.config.flags
        self._mps = NodeMps(
            MpsRoot(Path(flags.mps_root)), self.apply, news, outside.reader.recorded, lambda: self._offer.resources
        )
        self._packing = NodePacking()
        self._spawn = outside.spawn
        self._sessions = Sessions(
            outside.directory,
            outside.spawn,
            news,
            outside.steering,
            recent=outside.reader.recent,
            allocated=self._packing.see,
            before_start=self._mps.before_start if flags.mps_protocol == WITH_NAMESPACES else None,
        )
        self._mig = NodeMig(MigRoot(outside.mig_root), self._looks, outside.clock)
        follows_pods = outside.steering is not None
        self.limits = NodeLimits(outside.driver_limits_root, self.apply, news, follows_pods=follows_pods)
        """The driver limits of containers, as ordered from `gpushare driver-limits`."""
        self.withdrawals = NodeWithdrawals(outside.clock, outside.asked_for)
        """The withdrawn slices, and the slices for the Node to show."""
        self._slices = NodeSlices(self._mig, self.withdrawals, news)
        self._gpus.may_vanish = self._mig.may_vanish
        self._request = SliceRequest()
        self._pods_matter = asyncio.Event()
        self._ask_now = asyncio.Event()
        self._claims: HandOver | None = None
        self.allocations_known = False
        """Whether the holdings of pods were known once, and the node offers."""
        self.snapshot = Published(self._snapshot())
        """The newest snapshot of the node."""

    @property
    def config(self) -> Config:
        """The config in effect."""
        return self._configuration.config

    @property
    def sessions(self) -> Mapping[str, Session]:
        """The sessions, by the name of the resource."""
        return self._sessions.by_resource

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The resources served now."""
        return tuple(session.resource for session in self._sessions.by_resource.values())

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """The tasks of the sessions, including ending tasks."""
        return self._sessions.tasks

    @property
    def dra(self) -> Dra | None:
        """The section of the config in effect that gives GPUs by claim."""
        return self.config.dra

    @property
    def mps(self) -> MpsLink:
        """The exchange with `gpushare mps`."""
        return self._mps.link

    # ------------------------------------------------------------------ what pods hold

    async def start(self) -> None:
        """Start to offer once the holdings of pods are known; pods keep their units of an earlier mode."""
        held = await self._reader.at_start()
        if isinstance(held, Unknown):
            return
        modes = self._mps.modes_before(self._configuration.plan)
        self._offer.start(held, self._gpus.inventory, modes)
        if self._claims is not None:
            self._claims.resume(modes)
        self._slices.follow(self._request)
        self.allocations_known = True
        self.apply()
        self._packing.resume(self.resources, held)
        self._spawn("packing", partial(self._packing.learn, self.apply))

    async def track_allocations(self) -> None:
        """Ask the kubelet for the holdings of pods: until the first answer, while units are retired, for new slices."""
        while not self.allocations_known:
            await asyncio.sleep(RETRY_START_EVERY)
            await self.start()
        while True:
            await self._pods_matter.wait()
            self._ask_now.clear()
            await self.ask_kubelet()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._offer.pause(self.withdrawals.pause(self._ask_every))):
                    await self._ask_now.wait()

    async def ask_kubelet(self) -> None:
        """Ask the kubelet once for the holdings of pods, and stop listing retired units without a holder."""
        # A later slice request waits for the next answer: the kubelet may have given this answer before the request.
        request = self._request
        held = await self._reader.confirmed(self._clock())
        if isinstance(held, Unknown) and held.answered:
            # Until the kubelet is trusted, only the renewed checkpoint shows free units; otherwise all count as held.
            held = await self._read_renewed()
        self._offer.update_holdings(held)
        if self._slices.is_new(request) and self._offer.waits_for_record(self._units.offered.keys()):
            # Holdings of ended pods must not seem to block the requested slices.
            self._offer.update_holdings(await self._read_renewed())
        self._slices.follow(request)
        self.apply()
        if self._offer.waits_for_record(self._slices.surplus(self._configuration.partitioning)):
            self._offer.update_holdings(await self._read_renewed())
            self.apply()
        await self._serve_retired()

    async def _serve_retired(self) -> None:
        """Serve the resources of units that pods held before the start, where only that shows the units to be free.

        The kubelet writes its checkpoint, without ended pods, when it gets a device list, allocates, or forgets
        a resource whose plugin is gone for 5 minutes (`writeCheckpoint` in kubernetes 1.36,
        pkg/kubelet/cm/devicemanager/manager.go). A node whose GPUs are all given by claim has nothing else to list.
        """
        names = frozenset[str]() if self.sessions else self._offer.only_recorded(self._gpus.inventory)
        if names and (served := await self._reader.healthy()) is not None and not names <= served:
            self._offer.serve(names - served)
            self.apply()

    async def track_namespaces(self) -> None:
        """Request MPS namespaces for what containers hold, whenever the kubelet has written its record."""
        written, looks = None, 0
        while True:
            await self._mps.has_namespaces.wait()
            if written != (record := self._reader.record):
                written = record
                await self._mps.follow()
            elif (looks := looks + 1) % RENEW_AFTER_LOOKS == 0:
                # After the question, the kubelet writes no pods that have ended.
                await self._reader.read()
                self._sessions.refresh_record()
            await asyncio.sleep(self._ask_every)

    async def _read_renewed(self) -> Confirmed | Unknown:
        """Make the kubelet write a new checkpoint, without ended pods, and return the holdings of pods."""
        self._sessions.refresh_record()
        await self._reader.next_record()
        return await self._reader.confirmed(self._clock())

    # ------------------------------------------------------------------ what else changes

    def keep_namespaces(self, namespaces: Iterable[ContainerNamespace]) -> None:
        """Keep the MPS namespaces that claims need, in place of those of the last call."""
        self._mps.keep(namespaces)

    async def until_made(self, namespaces: Iterable[ContainerNamespace]) -> str:
        """Wait a while until MPS namespaces exist; return why one does not exist, empty when all exist."""
        return await self._mps.link.until_made(namespaces)

    def share_with(self, claims: "HandOver") -> None:
        """Keep GPUs that belong to claims from the device plugin, and the other way round."""
        self._claims = claims
        self.apply()

    def reload(self, loaded: Loaded) -> None:
        """Put another config in effect, or reject the config and keep the current config."""
        if self._configuration.reload(loaded, self._gpus.inventory):
            self._follow_config()
            self.apply()
        else:
            self._publish()

    def keep_config(self, reason: str) -> None:
        """Keep the config in effect because the new config is unreadable, and show people the reason."""
        self._configuration.keep(reason)
        self._publish()

    def event(self, event: GpuEvent) -> None:
        """Record an event of the driver."""
        before = self._gpus.faulty
        if self._gpus.event(event) == "ignore":
            return
        self._looks.reconsider()
        # There can be thousands of events; only the first event of a GPU changes the offer.
        if self._gpus.faulty != before:
            self.apply()

    def cordon(self, cordon: Cordon) -> None:
        """Cordon exactly these GPUs: the kubelet allocates no unit of a cordoned GPU."""
        if self._gpus.cordon(cordon):
            self.apply()

    def request_slices(self, request: SliceRequest) -> None:
        """Cut a partitioned node into the requested slices, after the next answer of the kubelet about holdings."""
        if request != self._request:
            self._request = request
            self._ask_now.set()
            self._pods_matter.set()

    async def follow_mig(self) -> None:
        """Look at the GPUs after each change by `gpushare mig`, until cancelled."""
        await self._mig.watch()

    async def rescan(self) -> None:
        """Look at the GPUs at intervals; raises DriverChangedError."""
        await self._looks.run()

    async def look(self) -> None:
        """Look at the GPUs once; raises DriverChangedError."""
        await self._looks.look()

    def _looked(self) -> None:
        self._mig.looked()
        if self._configuration.fit(self._gpus.inventory):
            self._follow_config()
        self.apply()

    def _follow_config(self) -> None:
        self._gpus.follow(self.config.health)
        self._looks.reconsider()

    # ------------------------------------------------------------------ what follows

    def apply(self) -> None:
        """Compute the offer from the current state; the sessions send changed resources to the kubelet."""
        if not self.allocations_known:
            return
        inventory = sized(self._gpus.inventory, self.config.unreported_memory)
        kind, manage_mig = self._configuration.partitioning, self.config.partitioning.mig_mode == "manage"
        if kind is not None:
            cut = self._slices.cut(kind, inventory, self._units, self._offer.resources, manage=manage_mig)
            self._configuration.cut(cut, inventory)
        plan = self._configuration.plan
        if self._claims is not None:
            plan = self._claims.hold_back(plan, inventory.parts, self._offer.occupied(inventory))
        self._offer.advance(plan, inventory)
        if self._claims is not None:
            self._claims.settle(self._offer.occupied(inventory))
        if kind == "mig":
            self._mig.order(inventory, self._units, manage=manage_mig)
        else:
            self._mig.release()
        self._mps.want(plan, self._offer.modes_in_use, inventory)
        means, promised = self._configuration.driver_limits, limit_rules(plan.modes)
        self.limits.want(limit_rules(self._offer.modes_in_use), means, promised.keys())
        unserved = {**self.limits.unlimited, **self._mps.unserved}
        unhealthy = self._mig.unsafe(inventory) | self._gpus.cordons | unserved | self._gpus.faults
        now = {"unhealthy": unhealthy, "withdrawn": self.withdrawals.ids}
        learned = {name: self._packing.following(each) for name, each in self._offer.resources.items()}
        resources = {name: replace(each, **now) for name, each in learned.items()}
        self._sessions.serve(resources)
        self.withdrawals.publish(kind, resources)
        pending = self._offer.depends_on_pods or self.withdrawals.ids or self._slices.surplus(kind)
        arriving = self._claims is not None and self._claims.waits_for_pods
        if pending or arriving or self._mig.waits or self._ask_now.is_set():
            self._pods_matter.set()
        else:
            self._pods_matter.clear()
        self._publish()

    @property
    def _units(self) -> PresentUnits:
        return self._offer.units(self._gpus.inventory)

    def _publish(self) -> None:
        self.snapshot.publish(self._snapshot())

    def _snapshot(self) -> Snapshot:
        found = snapshot(self._configuration, self._gpus, self._offer, self._mps, self._slices, self._mig)
        if (claims := self._claims) is not None and (claims.waiting or claims.notices):
            waiting, notices = {**found.waiting, **claims.waiting}, (*found.notices, *claims.notices)
            found = replace(found, waiting=waiting, notices=notices)
        unlimited = self.limits.unlimited
        return replace(found, unlimited=unlimited, unhealthy={**unlimited, **found.unhealthy}) if unlimited else found


def snapshot(  # noqa: PLR0913, PLR0917 - every part of a node
    configuration: Configuration, gpus: Gpus, offer: NodeOffer, mps: NodeMps, slices: NodeSlices, mig: NodeMig
) -> Snapshot:
    """Return the current state of the node."""
    partitioning = configuration.partitioning
    notices = slices.notices(partitioning)
    planned = planned_snapshot(configuration.config, gpus.inventory, configuration.plan, offer.modes_in_use)
    return replace(
        planned,
        needs_mps=planned.needs_mps or partitioning == "mps" or mps.in_use,
        resources=tuple(offer.resources.values()),
        unhealthy=mps.unserved | gpus.faults,
        unserved=mps.unserved,
        config=configuration.standing,
        cordoned=gpus.cordons,
        waiting={**mig.reasons, **offer.waiting},
        notices=(*configuration.notices, *notices, *gpus.notices),
        partitioning=partitioning,
        unsuitable=unsuitable(planned.inventory.cards) if partitioning == "mps" else {},
        mig_rooms=mig.rooms if partitioning == "mig" else {},
        most_slices=few_slices(planned.inventory.cards) if partitioning == "mps" else {},
    )
