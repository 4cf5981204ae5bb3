"""The composition root: builds every part of the daemon, and runs the parts until a signal ends the daemon."""

import asyncio
import contextlib
import math
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from gpushare_plugin.base.errors import ConfigError, DriverChangedError, EvictionError
from gpushare_plugin.base.published import Published
from gpushare_plugin.base.signals.ending import on_signal, until_stopped
from gpushare_plugin.base.structs import Struct, field, replace
from gpushare_plugin.base.tasks import Spawn, background, beside
from gpushare_plugin.config.directives import CONFIG, Labels
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.config.sources.labelled import load_effective_config
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.recent import RecentAllocations
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.usage import Usage
from gpushare_plugin.gpus.exchange import refuse_one_directory
from gpushare_plugin.gpus.host import CGROUP_ROOT, NO_FACTS, PROCFS, Host, HostFacts
from gpushare_plugin.gpus.source import GpuSource, in_thread
from gpushare_plugin.kubelet.allocations.pod_resources import healthy_devices
from gpushare_plugin.kubelet.allocations.quiet import QuietLister
from gpushare_plugin.kubelet.allocations.reader import HoldingsReader
from gpushare_plugin.kubelet.allocations.trust import PodName, TrustDelays
from gpushare_plugin.kubelet.claim_files import GIVEN_COPIES
from gpushare_plugin.kubelet.device_plugin.directory import PluginDirectory, refuse_long_path
from gpushare_plugin.kubelet.device_plugin.succession import Succession
from gpushare_plugin.kubelet.paths import DEFAULT_PLUGIN_DIRECTORY, DEFAULT_POD_RESOURCES_SOCKET
from gpushare_plugin.mig.exchange import DEFAULT_ROOT as DEFAULT_MIG_ROOT
from gpushare_plugin.mig.exchange import MigRoot
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.mps.link import MpsLink
from gpushare_plugin.node.claims.entrance import ClaimPlaces, Entrance
from gpushare_plugin.node.configuration import Accepted, Reloads, accept
from gpushare_plugin.node.gpus import looks
from gpushare_plugin.node.gpus.events import EventThread
from gpushare_plugin.node.gpus.waiting import NoGpu, first_gpus, look_or_wait
from gpushare_plugin.node.news.counts import XidCounts
from gpushare_plugin.node.news.log import NewsLog
from gpushare_plugin.node.news.news import LabelConfigRejected, News, ReloadRequested, Subscriber
from gpushare_plugin.node.node import ASK_KUBELET_EVERY, Outside, ServedNode
from gpushare_plugin.node.status import NO_GPU, DaemonStatus, Ending, Serving, StandingBy, WithoutGpus
from gpushare_plugin.observe.daemon_socket import serve_document, socket_path

if TYPE_CHECKING:
    from gpushare_plugin.kube.events.event import Backlog
    from gpushare_plugin.kube.own_node.member import Member
    from gpushare_plugin.node.pods.proof import Proof
    from gpushare_plugin.node.pods.reconciler import PromiseReconciler
    from gpushare_plugin.node.pods.usage import UsageTracker
    from gpushare_plugin.observe.metrics.node import View


_log = structlog.get_logger()


DEFAULT_CLAIM_SPECS = Path("/var/run/cdi")
"""The directory of CDI for specifications that programs make for a while."""


class Membership(Struct, frozen=True):
    """This node as a member of a cluster."""

    node_name: str
    """The name of the Node."""
    kubeconfig: Path | None = None
    """The file with the address of the API server; None in a pod of the cluster."""
    node_labels: bool = True
    """Whether gpushare writes NVIDIA's node labels."""
    cordon_configmap: bool = True
    """Whether the daemon reads the ConfigMap that cordons GPUs."""
    follow_pods: bool = False
    """Whether the daemon follows the pods of the node; requires rights on pods."""
    events: bool = False
    """Whether the daemon sends Kubernetes Events; requires rights on Events."""


class Daemon(Struct, frozen=True):
    """The options of one daemon."""

    configs: Configs
    """The source of the config; the daemon reads the config again after each change."""
    source: Callable[[Loaded], GpuSource]
    """Returns the source of the GPUs for a config."""
    directory: Path = DEFAULT_PLUGIN_DIRECTORY
    """The device plugin directory of the kubelet."""
    pod_resources: Path = DEFAULT_POD_RESOURCES_SOCKET
    """The pod-resources socket of the kubelet."""
    kubelet_root: Path | None = None
    """The root directory of the kubelet, None for the parent of `directory`."""
    http_address: str | None = None
    """The address for probes and scrapes, None for no HTTP server."""
    own_pod: PodName | None = None
    """The pod of this process, None where the pod is unknown."""
    trust_delays: TrustDelays = field(default_factory=TrustDelays)
    """How long the same kubelet must have run before a unit without a holder in its answers counts as free."""
    membership: Membership | None = None
    """The node in its cluster, None without an API server."""
    container_metrics: bool = False
    """Whether there are metrics for each container."""
    hami_metrics: bool = False
    """Whether gauges also have the names of HAMi."""
    aliyun_metrics: bool = False
    """Whether gauges also have the names of Aliyun."""
    log_lines_dropped: Callable[[], int] = lambda: 0
    """Returns the number of lines lost by the log."""
    partitioning: bool = False
    """Whether a node label can turn on partitioning; annotations of the Node then name the wanted slices."""
    mig_root: Path = DEFAULT_MIG_ROOT
    """The directory shared with `gpushare mig`."""
    cdi_spec_dirs: tuple[Path, ...] = ()
    """The directories of CDI specifications, of which a later one counts more; none for simulated GPUs."""
    claim_specs: Path = DEFAULT_CLAIM_SPECS
    """The directory for the CDI specifications of claims, which a reboot empties."""
    cgroup_root: Path = CGROUP_ROOT
    """Where the host's tree of cgroups is mounted."""
    procfs: Path = PROCFS
    """Where the kernel shows the processes of the node."""
    driver_limits_root: Path | None = None
    """The directory shared with `gpushare driver-limits`, which sets driver limits; None where that is not to run."""
    clock: Callable[[], float] = time.monotonic
    """Measures, in seconds, how long units have been retired."""
    ask_every: float = ASK_KUBELET_EVERY
    """Seconds between questions to the kubelet about the units held by pods, while units are retired."""
    stand_by: bool = False
    """Whether the daemon waits for the end of another daemon that serves the directory, and takes over then."""


async def run(daemon: Daemon) -> None:
    """Serve this node's GPUs until a signal ends the process; raises the errors of `serve`."""
    await until_stopped(serve(daemon))


async def serve(daemon: Daemon) -> None:
    """Serve this node's GPUs until cancelled.

    Raises before any registration with the kubelet: ConfigError for an unusable config, NoGpuLibraryError without a GPU
    where `failOnInitError` is set, AlreadyServedError when another daemon serves the directory and this one does not
    stand by. Raises DriverChangedError, at any time, when only a new process can use the driver.
    """
    root = NodeDaemon(daemon)
    async with background() as spawn:
        if daemon.http_address is not None:
            spawn("HTTP", partial(root.status.serve, daemon.http_address))
        await root.run()


async def look(source: GpuSource) -> Inventory:
    """Read the GPUs once, outside a daemon; raises NoGpuLibraryError when no GPU answers."""
    return await looks.first_look(source, News(NewsLog().log))


class NodeDaemon:
    """Builds the parts of one daemon and runs the parts, phase by phase."""

    def __init__(self, daemon: Daemon) -> None:
        """Prepare to run a daemon with these options."""
        self._daemon = daemon
        self._xids = XidCounts()
        self._backlog, subscribers = _events(daemon.membership)
        self._news = News(NewsLog(daemon.clock).log, self._xids.count, *subscribers)
        self._api_errors: Mapping[str, int] = {}
        self._recent = RecentAllocations()
        self._host = Host(
            daemon.cdi_spec_dirs, cgroup_root=daemon.cgroup_root, limits_agent=daemon.driver_limits_root is not None
        )
        self._directory = PluginDirectory(daemon.directory)
        self._succession = Succession(self._directory)
        self.status = DaemonStatus(QuietLister(daemon.directory, daemon.pod_resources, self._recent), self._view)
        """Answers probes, scrapes and `gpushare list`."""

    def _view(self, snapshot: Snapshot) -> "View":
        """Return the content of a scrape, with copies of all counters, because a thread makes the page."""
        from gpushare_plugin.observe.metrics.node import View  # noqa: PLC0415 - needed for scrapes only

        daemon = self._daemon
        return View(
            snapshot,
            daemon.log_lines_dropped(),
            daemon.container_metrics,
            daemon.hami_metrics,
            daemon.aliyun_metrics,
            daemon.membership.node_name if daemon.membership else "",
            dict(self._xids.counts),
            dict(self._api_errors),
            self._backlog.dropped if self._backlog else None,
        )

    async def run(self) -> None:
        """Find and serve the GPUs until cancelled; raises the errors of `serve`."""
        # Until GPUs are found, the labels of the Node do not matter.
        loaded = load_effective_config({}, self._daemon.configs)
        source = self._daemon.source(loaded)
        refuse_long_path(self._daemon.directory)
        # The waits for the driver and for the API server run side by side; an error of the driver ends both waits.
        async with (
            beside(self._look(source, loaded)) as looking,
            joined(self._daemon.membership) as cluster,
            background() as spawn,
        ):
            claims = self._claims(cluster)
            spawn("DRA plugin", claims.answer)
            waits = self._daemon.stand_by and self._succession.is_needed
            if waits:
                await self._stand_by(await looking, cluster, claims)
            if cluster is not None:
                self._api_errors = cluster.api_errors
                spawn("node condition", partial(cluster.keep_condition, lambda: self.status.phase.readiness))
                if self._backlog is not None:
                    spawn("Events", partial(cluster.send_events, self._backlog))
            # The daemon before may have made MIG instances since the first look.
            found = await (self._look(source, loaded) if waits else looking)
            if isinstance(found, NoGpu):
                found = await self._wait_for_gpus(source, loaded, found, cluster)
            async with self.serving(source, found, cluster, claims):
                await asyncio.Event().wait()

    def _claims(self, cluster: "Member | None") -> Entrance:
        daemon = self._daemon
        root = daemon.kubelet_root or daemon.directory.parent
        copies = daemon.directory / GIVEN_COPIES
        places = ClaimPlaces(root, daemon.pod_resources, daemon.claim_specs, daemon.cgroup_root, copies)
        return Entrance(places, cluster, self._news)

    async def _stand_by(self, found: Inventory | NoGpu, cluster: "Member | None", claims: Entrance) -> None:
        """Wait for the end of the daemon that serves this node; raises ConfigError for a config that cannot be used."""
        if isinstance(found, Inventory):
            accepted = await self._accept(cluster.labels if cluster is not None else {}, found)
            if accepted.config.dra is not None:
                accepted = await self._with_host(accepted, found)
                mps = MpsLink(MpsRoot(Path(accepted.config.flags.mps_root)), lambda: None)
                await claims.stand_by(accepted.config.dra, accepted.plan, found.parts, mps.until_made)
        # Whoever sees that this daemon is ready may end the other one, which has to know by then that this one waits.
        await self._succession.line_up()
        before, self.status.phase = self.status.phase, StandingBy()
        _log.info("standing_by", path=str(self._daemon.directory))
        await self._succession.follow()
        _log.info("taking_over", path=str(self._daemon.directory))
        self.status.phase = before

    async def _look(self, source: GpuSource, loaded: Loaded) -> Inventory | NoGpu:
        found = await look_or_wait(source, loaded, self._news)
        if isinstance(found, NoGpu):
            self.status.phase = WithoutGpus(expected=found.unresponsive)
        return found

    async def _wait_for_gpus(
        self, source: GpuSource, loaded: Loaded, found: NoGpu, cluster: "Member | None"
    ) -> Inventory:
        """Look for GPUs at intervals, and meanwhile publish a node without GPUs; return the first GPUs."""
        async with background() as spawn:
            if cluster is not None:
                spawn("own Node", partial(cluster.publish_node, Published(NO_GPU)))
            return await first_gpus(partial(self._look, source, loaded), found)

    @contextlib.asynccontextmanager
    async def serving(
        self,
        source: GpuSource,
        inventory: Inventory,
        cluster: "Member | None",
        claims: Entrance | None = None,
    ) -> AsyncIterator[Serving]:
        """Serve these GPUs; every task of the node runs in this context and ends with the context.

        `cluster` is None without an API server: the node then gets no requests from a cluster and publishes nothing.
        `claims` answers the kubelet beside this context.
        """
        claims = claims or self._claims(cluster)
        daemon, labels = self._daemon, cluster.labels if cluster is not None else {}
        accepted = await self._accept(labels, inventory)
        if daemon.partitioning:  # otherwise nothing is exchanged with `gpushare mig`
            refuse_one_directory(MpsRoot(Path(accepted.config.flags.mps_root)), MigRoot(daemon.mig_root))
        with contextlib.closing(self._directory) as directory, contextlib.closing(self._host):
            with contextlib.suppress(OSError):  # missing or not usable yet: sessions claim the directory later
                directory.claim()
            accepted = await self._with_host(accepted, inventory)
            own_pod, delays = daemon.own_pod, daemon.trust_delays
            reader = HoldingsReader(
                daemon.directory,
                daemon.pod_resources,
                recent=self._recent,
                own_pod=own_pod,
                delays=delays,
                takes_over=self._succession.takes_over,
            )
            # At the end, what answers the kubelet ends last: a daemon that stands by registers before.
            handing_over = self._succession.handing_over(lambda: self._recent.in_call)
            async with background() as keep, handing_over, background() as spawn:
                pods = self._pods(cluster, reader)
                outside = self._outside(source, directory, reader, keep, pods)
                node = ServedNode(accepted, inventory, outside)
                events = EventThread(source, node.event)
                load = partial(self._load, cluster, lambda: node.snapshot.value.inventory)
                reloads = Reloads(load, node.reload, node.keep_config, self._news)
                self.status.phase = phase = Serving(node, reloads, events, pods, claims=lambda: claims.state)
                if cluster is not None:
                    node.cordon(cluster.cordon(inventory))
                    node.request_slices(cluster.requested_slices(node.snapshot.value))
                if pods is not None:
                    # Before the first call of the kubelet, the promises and the holdings of pods must be known.
                    await pods.learn()
                    keep("pods", partial(pods.run, lambda: node.resources))
                # Before the first offer, the GPUs that belong to claims must be known.
                await claims.begin(node)
                keep("claims", partial(claims.serve, node))
                await node.start()
                keep("plugin directory", directory.watch)
                spawn("succession", partial(self._succession.finish, lambda: not phase.missing))
                spawn("kubelet", reader.watch)
                spawn("rescan", partial(self._rescan, node))
                spawn("allocations", node.track_allocations)
                spawn("claims of the next daemon", claims.follow)
                spawn("MPS", node.mps.watch)
                spawn("MPS namespaces", node.track_namespaces)
                spawn("MIG", node.follow_mig)
                watched = pods.watched if pods is not None else None
                spawn("driver limits", partial(node.limits.run, watched, reader, node.snapshot, phase.claims))
                spawn("usage", partial(self._follow_usage, source, node, cluster, reader, phase, claims))
                spawn(
                    "own socket",
                    partial(serve_document, socket_path(daemon.directory), directory.claim, self.status.report),
                )
                spawn("config", partial(self._follow_configs, reloads))
                spawn("reload", reloads.run)
                if cluster is not None:
                    self._take_part(spawn, cluster, phase, labels)
                on_signal(signal.SIGHUP, partial(self._reload_on_signal, reloads))
                events.start()
                yield phase

    def _outside(
        self,
        source: GpuSource,
        directory: PluginDirectory,
        reader: HoldingsReader,
        keep: Spawn,
        pods: "PromiseReconciler | None",
    ) -> Outside:
        daemon, steering = self._daemon, pods.steering if pods is not None else None
        outside = Outside(
            source,
            directory,
            reader,
            keep,
            self._news,
            daemon.clock,
            host=self._host,
            mig_root=daemon.mig_root,
            driver_limits_root=daemon.driver_limits_root,
            ask_every=daemon.ask_every,
        )
        return (
            outside if steering is None else replace(outside, steering=steering, asked_for=lambda: steering.asked_for)
        )

    def _take_part(self, spawn: Spawn, cluster: "Member", serving: Serving, labels: Labels) -> None:
        """Follow the requests of the cluster and publish on the Node; the config already follows these `labels`."""
        node = serving.node
        follow_requests = cluster.follow_requests
        spawn("node requests", partial(follow_requests, labels, node.snapshot, node.cordon, serving.reloads.request))
        if self._daemon.partitioning:
            spawn("wanted slices", partial(cluster.follow_slices, node.snapshot, node.request_slices))
            healthy, withdrawals = partial(healthy_devices, self._daemon.pod_resources), node.withdrawals
            spawn("slices", partial(cluster.publish_slices, withdrawals.schedulable, healthy, withdrawals))
        spawn("own Node", partial(cluster.publish_node, node.snapshot))
        if serving.pods is not None:
            spawn("pod annotations", partial(cluster.publish_pods, serving.pods.annotations))

    def _pods(self, cluster: "Member | None", reader: HoldingsReader) -> "PromiseReconciler | None":
        """Return the part that compares holdings with promises, None where the daemon does not follow pods."""
        if cluster is None or cluster.pods is None:
            return None
        from gpushare_plugin.node.pods.reconciler import PromiseReconciler  # noqa: PLC0415 - only where pods are followed

        return PromiseReconciler(cluster.pods, reader, self._news)

    async def _follow_usage(  # noqa: PLR0913, PLR0917 - everything that takes part in the usage
        self,
        source: GpuSource,
        node: ServedNode,
        cluster: "Member | None",
        reader: HoldingsReader,
        phase: Serving,
        claims: Entrance,
    ) -> None:
        """Look at the usage of the GPUs at intervals."""
        # Registration with the kubelet must not wait for this import: a thread alone takes turns with the event loop.
        for session in tuple(node.sessions.values()):
            await session.tried.wait()
        track, prove = await asyncio.to_thread(_usage_tracker)
        evict = cluster.evict if cluster is not None else _refuse_eviction
        late, daemon = node.limits.late, self._daemon
        proof = prove(
            reader, source, lambda: node.mps.status, late=late, cgroup_root=daemon.cgroup_root, procfs=daemon.procfs
        )
        tracker = track(source, reader, proof, self._news, evict, self._daemon.clock)

        def found(usage: Usage) -> None:
            claims.learn(usage)
            if phase.pods is not None:
                phase.pods.learn_effects(usage)

        # After a failure, this method runs again, with another tracker.
        if isinstance(self.status.phase, Serving):
            self.status.phase = replace(self.status.phase, usage=tracker)
        await tracker.run(
            lambda: replace(node.snapshot.value, claims=claims.state),
            lambda: node.config,
            lambda: cluster.container_ids if cluster is not None else {},
            lambda: phase.held_by_claim,
            found,
        )

    async def _accept(self, labels: Labels, inventory: Inventory) -> Accepted:
        """Return the config for the start; raises ConfigError when the config cannot be served."""
        load = partial(load_effective_config, configs=self._daemon.configs, partitioning=self._daemon.partitioning)
        loaded = load(labels, starting=True)
        try:
            return accept(loaded, inventory, facts=await self._facts(loaded, inventory))
        except ConfigError as error:
            if CONFIG not in labels:
                raise
            # A label must not take the node's GPUs away: a running daemon would only reject the config of the label.
            self._news.publish(LabelConfigRejected(error.lines))
            loaded = load({**labels, CONFIG: ""}, starting=True)
            return accept(loaded, inventory, facts=await self._facts(loaded, inventory))

    async def _facts(self, loaded: Loaded, inventory: Inventory) -> HostFacts:
        """Return what decides whether a config can be served; the names of CDI devices do not."""
        if loaded.config is None or not loaded.config.sharing.includes_driver:
            return NO_FACTS
        return await in_thread(partial(self._host.preview, inventory, loaded.config), "host")

    async def _with_host(self, accepted: Accepted, inventory: Inventory) -> Accepted:
        """Return the config for what a look at the host finds, if the config needs a look."""
        config = accepted.config
        if not (config.flags.plugin.uses_cdi or config.sharing.includes_driver):
            return accepted
        await in_thread(partial(self._host.look, inventory, config), "host")
        return accept(accepted.loaded, inventory, facts=self._host.facts)

    def _load(self, cluster: "Member | None", inventory: Callable[[], Inventory]) -> Loaded:
        """Load the config, and look at what the config needs of the host before the config is in effect."""
        labels = cluster.labels if cluster is not None else {}
        loaded = load_effective_config(labels, self._daemon.configs, partitioning=self._daemon.partitioning)
        if loaded.config is not None:
            self._host.look(inventory(), loaded.config)
        return loaded

    async def _rescan(self, node: ServedNode) -> None:
        """Look at the GPUs at intervals; DriverChangedError ends the looks and the daemon."""
        try:
            await node.rescan()
        except DriverChangedError as error:
            self.status.phase = Ending(str(error), self.status.phase)
            raise

    async def _follow_configs(self, reloads: Reloads) -> None:
        # The config may have changed between the first load and the start of the watch.
        reloads.request()
        await self._daemon.configs.watch(reloads.request)

    def _reload_on_signal(self, reloads: Reloads) -> None:
        self._news.publish(ReloadRequested())
        reloads.request()


def _usage_tracker() -> "tuple[type[UsageTracker], type[Proof]]":
    from gpushare_plugin.node.pods.proof import Proof  # noqa: PLC0415 - nothing to register needs it
    from gpushare_plugin.node.pods.usage import UsageTracker  # noqa: PLC0415 - as above

    return UsageTracker, Proof


async def _refuse_eviction(namespace: str, pod: str, uid: str) -> bool:  # noqa: ARG001 - as `Evict`
    reason = "pods are evicted through the API server, and this daemon uses none: set --node-name (NODE_NAME)"
    raise EvictionError(reason, retry_after=math.inf)


def _events(membership: Membership | None) -> "tuple[Backlog | None, tuple[Subscriber, ...]]":
    """Return the backlog of Events and the subscriber that makes Events of news, or neither without Events."""
    if membership is None or not membership.events:
        return None, ()
    from gpushare_plugin.kube.events.event import Backlog  # noqa: PLC0415 - only where requested
    from gpushare_plugin.node.news.events import NewsEvents  # noqa: PLC0415 - as above

    backlog = Backlog()
    return backlog, (NewsEvents(membership.node_name, backlog.put).publish,)


@contextlib.asynccontextmanager
async def joined(membership: Membership | None) -> "AsyncIterator[Member | None]":
    """Follow the requests in node labels, annotations and ConfigMaps; yields None without an API server.

    Waits for the first answers of the API server, for a limited time (`own_node.member.FIRST_ANSWER`).
    """
    if membership is None:
        yield None
        return
    from gpushare_plugin.kube.client import Client  # noqa: PLC0415 - large, and only where there is a cluster
    from gpushare_plugin.kube.own_node.member import Member  # noqa: PLC0415 - as above

    async with Client(membership.kubeconfig) as client, background() as spawn:
        member = Member(
            client,
            membership.node_name,
            node_labels=membership.node_labels,
            cordon_configmap=membership.cordon_configmap,
            follow_pods=membership.follow_pods,
        )
        spawn("Node", member.follow_node)
        spawn("cordon ConfigMap", member.follow_configmap)
        if member.pods is not None:
            spawn("pods of this node", member.pods.follow)
        await member.answered()
        yield member
