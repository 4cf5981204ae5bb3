"""The claims of a node: builds the parts that give GPUs by claim, and runs the parts beside the device plugin."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import structlog

from gpushare_plugin.base.published import Published, changes
from gpushare_plugin.base.tasks import background
from gpushare_plugin.claims.device import Device
from gpushare_plugin.claims.devices import device_name
from gpushare_plugin.core.claim_state import ClaimState
from gpushare_plugin.core.prepared_claim import ClaimId, PreparedDevice
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.usage import Usage
from gpushare_plugin.gpus.cgroups import pod_runs
from gpushare_plugin.kube.dra.claims import Claims
from gpushare_plugin.kube.dra.resource_slices import UNREAD, ResourceSlices
from gpushare_plugin.kube.own_node.member import Member
from gpushare_plugin.kubelet.claim_files import CLAIM_RECORDS
from gpushare_plugin.kubelet.dra_plugin.claim_service import DeviceHealth
from gpushare_plugin.kubelet.dra_plugin.plugin import DraPlugin
from gpushare_plugin.node.claims.cdi_files import CdiFiles
from gpushare_plugin.node.claims.entrance import ClaimPlaces, PluginSide
from gpushare_plugin.node.claims.given import GivenFile
from gpushare_plugin.node.claims.gpus import ClaimGpus, UntilMade, offered_devices
from gpushare_plugin.node.claims.hand_over import LOOK_EVERY, ClaimStanding, HandOver
from gpushare_plugin.node.claims.leftovers import Leftovers
from gpushare_plugin.node.claims.order import OrderPauses
from gpushare_plugin.node.claims.preparation import Preparation
from gpushare_plugin.node.claims.records import ClaimRecords, boot_id
from gpushare_plugin.node.claims.statuses import AFTER_ANSWERS, Statuses
from gpushare_plugin.node.claims.users import ClaimUsers
from gpushare_plugin.node.news.news import DraDriverWaits, GpusNotOfferedToClaims, GpusOfferedToClaims, News
from gpushare_plugin.sharing.plan import Plan

_log = structlog.get_logger()


class NodeClaims:
    """The claims of a node, as `kubelet.dra_plugin.claim_service.ClaimService` and beside the device plugin."""

    def __init__(
        self, driver: str, places: ClaimPlaces, cluster: Member, news: News, others: Sequence[str] = ()
    ) -> None:
        """Prepare to give GPUs of a node in its `cluster` by claim, as the DRA driver `driver`.

        `others` are the names of further DRA drivers, under which GPUs were given by claim before.
        Raises GpushareError for a path that is too long for sockets, OSError without the ID of the boot.
        """
        self.driver = driver
        """The name of the DRA driver."""
        self.ended = asyncio.Event()
        """Set when no GPU belongs to claims of this DRA driver any more, and another name is to be served."""
        self._others = [GivenFile(*places.given(each)) for each in others]
        self._cluster = cluster
        self._news = news
        directory = places.directory(driver)
        self._claims = Claims(cluster.client, driver, cluster.name)
        self._records = ClaimRecords(directory / CLAIM_RECORDS, boot_id())
        files = CdiFiles(places.specifications, driver)
        self._standing = Published(ClaimStanding())
        self._given = GivenFile(*places.given(driver))
        self._gpus = ClaimGpus(self._standing, self._given)
        runs = partial(pod_runs, places.cgroups)
        self.preparation = Preparation(driver, self._records, files, self._claims.allocated, self._gpus, runs)
        """Prepares claims."""
        self.plugin = DraPlugin(places.kubelet_root, driver, self)
        """The side of the kubelet."""
        self.resource_slices = ResourceSlices(cluster.client, driver, cluster.name)
        """The side of the API server."""
        self._leftovers = Leftovers(
            driver, self.preparation, self._records, files, self._claims.all_allocated, places.pod_resources
        )
        self._statuses = Statuses(self._claims, self.preparation.prepared)
        self._users = ClaimUsers(self.preparation, self._claims.allocated)
        self._wanted: Published[tuple[Device, ...] | None] = Published(None)
        self._waiting_driver = driver
        self._decided = asyncio.Event()
        self.health: Published[tuple[DeviceHealth, ...]] = Published(())
        """The health of all devices."""

    @property
    def state(self) -> ClaimState:
        """The claims now, for people."""
        trouble = self.resource_slices.trouble.value if self._wanted.value is not None else ""
        return ClaimState(
            self.driver,
            self.preparation.prepared.value,
            trouble,
            self.plugin.calls.durations,
            dict(self.preparation.refusals),
            self.resource_slices.written,
            self.resource_slices.mended,
        )

    async def prepare(self, ids: Sequence[ClaimId]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """Prepare the claims of a pod."""
        return await self.preparation.prepare(ids)

    async def unprepare(self, ids: Sequence[ClaimId]) -> Mapping[str, str]:
        """Give claims back."""
        return await self.preparation.unprepare(ids)

    def learn(self, usage: Usage) -> None:
        """Take in what a look at the usage found out about the limits and the pods of claims."""
        self._statuses.learn(usage)
        self._users.learn(usage)

    async def begin(self, node: PluginSide) -> None:
        """Keep what earlier claims have on a node that offers nothing yet; raises ClaimRecordError."""
        await self.preparation.look()
        self._hand_over = self._from_files(self._news, partial(self._why_not, node))
        self._keep_namespaces(node)
        self._gpus.until_made = node.until_made
        node.share_with(self._hand_over)

    async def stand_by(self, plan: Plan, parts: Mapping[str, str], until_made: UntilMade) -> None:
        """Prepare claims beside another daemon, which keeps the ledger by the same config; raises ClaimRecordError.

        `parts` are the cards of MIG instances, by UUID of the instance. `until_made` waits for the MPS namespaces that
        the other daemon requests for the claims.
        """
        await self.preparation.look()
        self._gpus.until_made = until_made
        self._from_files().stand_by(plan, parts)

    def _from_files(self, news: News | None = None, why_not: Callable[[], str] = lambda: "") -> HandOver:
        return HandOver(
            self._given,
            self.preparation.prepared.value,
            self._standing,
            news,
            unreadable=self._records.unreadable.values(),
            others=self._others,
            why_not=why_not,
        )

    def _why_not(self, node: PluginSide) -> str:
        """Return why claims of this DRA driver get no further GPU; empty where they do, or the config has no claims."""
        if node.dra is None or node.dra.driver == self.driver:
            return ""
        return (
            f"dra.driver is {node.dra.driver}, but GPUs of this node may belong to claims of {self.driver}: no GPU is "
            f"given by claim under the new name until all claims of {self.driver} have ended; end their pods"
        )

    def _keep_namespaces(self, node: PluginSide) -> None:
        node.keep_namespaces(each for claim in self.preparation.prepared.value for each in claim.namespaces)

    async def run(self, node: PluginSide, is_left: Callable[[], bool]) -> None:
        """Publish and follow claims until another DRA driver is due; only after `begin`, and beside `plugin.run`.

        `is_left` returns whether no file is left of a GPU or a claim of this DRA driver.
        """
        shown, still = self.resource_slices.devices, self.preparation.still
        leave = partial(self._hand_over.run, shown, device_name, still, self._claims, node.apply)
        async with background() as spawn:
            spawn("GPUs of claims", partial(self._follow, node))
            spawn("devices", partial(self._offer, node))
            spawn("ResourceSlices", self._publish)
            spawn("trouble with ResourceSlices", self._tell_trouble)
            spawn("hand-over", leave)
            spawn("leftovers", self._leftovers.run)
            spawn("status of claims", self._statuses.run)
            spawn("pods of claims", self._users.run)
            await self._until_another_is_due(node, is_left)
        self.ended.set()

    async def _until_another_is_due(self, node: PluginSide, is_left: Callable[[], bool]) -> None:
        async for _ in changes(node.snapshot, self.resource_slices.devices, every=LOOK_EVERY):
            due = self._why_not(node) or self._others
            if due and self._standing.value.known and self.resource_slices.devices.value == frozenset() and is_left():
                return

    async def _follow(self, node: PluginSide) -> None:
        """Keep in line with the GPUs that belong to claims, and with their health."""
        async for _ in changes(self._standing, node.snapshot, self.preparation.prepared):
            standing, snapshot = self._standing.value, node.snapshot.value
            self._tell_driver(node)
            if not standing.known:
                continue
            self._keep_namespaces(node)
            self._gpus.unserved = {**snapshot.unserved, **snapshot.unlimited}
            health = tuple(self._health(uuid, snapshot) for uuid in standing.claimed)
            if health != self.health.value:
                self.health.publish(health)

    def _tell_driver(self, node: PluginSide) -> None:
        """Publish that another name of the DRA driver waits, once for each name."""
        waiting = node.dra.driver if node.dra is not None else self.driver
        if waiting not in {self.driver, self._waiting_driver}:
            self._news.publish(DraDriverWaits(waiting, self.driver))
        self._waiting_driver = waiting

    async def _offer(self, node: PluginSide) -> None:
        """Keep the devices in line with the GPUs that further claims can get."""
        notices: tuple[str, ...] = ()
        orders, again = OrderPauses(), Published[None](None)
        loop = asyncio.get_running_loop()
        async for _ in changes(self._standing, node.snapshot, self.preparation.prepared, again):
            # The kubelet waits for the answer to a claim, and nobody for what follows from the answer.
            await asyncio.sleep(AFTER_ANSWERS)
            standing = self._standing.value
            if not standing.known:
                continue
            found = offered_devices(standing, node.snapshot.value, self.preparation.prepared.value)
            for notice in found.notices:
                if notice not in notices:
                    _log.warning("warning", text=notice)
            notices = found.notices
            wanted = found.devices if node.dra is not None and not self._why_not(node) else None
            if wanted != self._wanted.value:
                if wait := orders.wait(self._wanted.value, wanted, loop.time()):
                    loop.call_later(wait, again.publish, None)
                else:
                    self._wanted.publish(wanted)
            self._decided.set()

    def _health(self, uuid: str, snapshot: Snapshot) -> DeviceHealth:
        reason = snapshot.unhealthy.get(uuid, "")
        return DeviceHealth(self._cluster.name, device_name(uuid), "Unhealthy" if reason else "Healthy", reason)

    async def _publish(self) -> None:
        """Publish the devices once they are known, and the kubelet can have claims prepared.

        A daemon that stood by is registered before it knows the devices, and must keep those of the daemon before.
        """
        await self._decided.wait()
        async for registered in self.plugin.registered.follow():
            if registered.times:
                break
        await self.resource_slices.run(self._wanted, self._cluster.node)

    async def _tell_trouble(self) -> None:
        """Publish why claims cannot get all GPUs that they should, and that they can."""
        told = False
        async for trouble in self.resource_slices.trouble.follow():
            if trouble and trouble != UNREAD:
                self._news.publish(GpusNotOfferedToClaims(trouble))
            elif not trouble:
                count = len(self.resource_slices.devices.value or ())
                self._news.publish(GpusOfferedToClaims(count, again=told))
            told = bool(trouble) and trouble != UNREAD
