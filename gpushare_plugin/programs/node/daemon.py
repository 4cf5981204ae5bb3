"""The daemon put together: everything is built here, runs in one task group, and ends by a signal."""

import asyncio
import contextlib
import math
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from gpushare_plugin.adapters.cluster.settings import CONFIG, Labels, settled
from gpushare_plugin.adapters.host.mps.exchange import MpsRoot
from gpushare_plugin.adapters.host.source import GpuSource, read_inventory
from gpushare_plugin.adapters.kubelet.allocations.reader import AllocationReader
from gpushare_plugin.adapters.kubelet.allocations.trust import PodName, TrustDelays
from gpushare_plugin.adapters.kubelet.device_plugin.directory import PluginDirectory, refuse_long_path
from gpushare_plugin.adapters.kubelet.paths import DEFAULT_PLUGIN_DIRECTORY, DEFAULT_POD_RESOURCES_SOCKET
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.foundation.backoff import Backoff
from gpushare_plugin.foundation.errors import (
    ConfigError,
    DriverChangedError,
    GpushareError,
    NoGpuLibraryError,
    UnresponsiveGpusError,
)
from gpushare_plugin.foundation.published import Published
from gpushare_plugin.foundation.signals import on_signal, until_stopped
from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.model.health import GpuEvent
from gpushare_plugin.model.snapshot import Snapshot
from gpushare_plugin.programs.node.node import Node, decide, tell_left_out

if TYPE_CHECKING:
    from gpushare_plugin.adapters.cluster.member import Member

_log = structlog.get_logger()

SLOW_DRIVER = 10.0
"""Seconds after which a first look that has no answer is worth a line in the log."""

_NO_GPU = Snapshot(notices=("no GPU of this node answers yet",))
"""What others are told before there is a node to tell of."""

EVENT_THREAD_SILENCE = 60.0
"""Seconds without a sign of life after which the thread that waits for the driver's events counts as stuck."""


@dataclass(frozen=True, slots=True)
class Membership:
    """This node as a member of a cluster: its name, and whether NVIDIA's node labels are ours to write.

    `kubeconfig` tells where the API server is, None that this is a pod of its cluster.
    """

    node_name: str
    kubeconfig: Path | None = None
    node_labels: bool = True


@dataclass(frozen=True, slots=True)
class Daemon:
    """All that one daemon is made of.

    `configs` is where the settings come from, read again after each change. `source` finds the GPUs, where the settings
    say. `http_address` is where probes and scrapes are answered, None for nowhere. `own_pod` is the pod this process
    runs in, None where it is not known; `patience` is how long the kubelet must have been there before it is believed
    that nobody holds a unit. `membership` is None where there is no API server to talk to. `log_lines_dropped` counts
    the lines that the log has lost.
    """

    configs: Configs
    source: Callable[[Loaded], GpuSource]
    directory: Path = DEFAULT_PLUGIN_DIRECTORY
    pod_resources: Path = DEFAULT_POD_RESOURCES_SOCKET
    http_address: str | None = None
    own_pod: PodName | None = None
    patience: TrustDelays = field(default_factory=TrustDelays)
    membership: Membership | None = None
    log_lines_dropped: Callable[[], int] = lambda: 0


async def run(daemon: Daemon) -> None:
    """Serve this node's GPUs until SIGTERM or SIGINT; raises as `serve` does."""
    await until_stopped(serve(daemon))


async def serve(daemon: Daemon) -> None:
    """Serve this node's GPUs until cancelled.

    Raises ConfigError when the settings cannot be used, NoGpuLibraryError when there is no GPU and `failOnInitError` is
    set, and AlreadyServedError when another daemon serves the directory; all before anything is registered. Raises
    DriverChangedError, at any time, when only a new process can use the driver.
    """
    life = _Life(daemon)
    try:
        async with _in_background("HTTP", life.serve_http):
            await life.run()
    except ExceptionGroup as group:
        # A group of tasks wraps what ended it.
        changed = group.subgroup(DriverChangedError)
        raise changed.exceptions[0] if changed is not None else group from None


async def look(source: GpuSource) -> Inventory:
    """Read the GPUs once; raises NoGpuLibraryError when none answers."""

    def overdue() -> None:
        # A driver that takes its time must not look like a daemon that does nothing.
        _log.warning("the driver has not answered yet, still waiting", seconds=SLOW_DRIVER)

    inventory = await read_inventory(source, patience=SLOW_DRIVER, overdue=overdue)
    tell_left_out(inventory.failed)
    if not inventory.gpus:
        kind = UnresponsiveGpusError if inventory.failed else NoGpuLibraryError
        raise kind(
            f"no usable GPU on this node: {len(inventory.failed)} found that cannot be used, at least one that can "
            "expected; see nvidia-smi, or keep this daemon off nodes without GPUs"
        )
    return inventory


def _told(inventory: Inventory) -> Inventory:
    _log.info("node", driver=inventory.driver_version, cuda=".".join(map(str, inventory.cuda_version)))
    for gpu in inventory.gpus:
        _log.info(
            "gpu",
            index=gpu.index,
            uuid=gpu.uuid,
            name=gpu.name,
            memory_mib=gpu.memory_mib,
            numa_node=gpu.numa_node,
            pci_bus_id=gpu.pci_bus_id,
            mig=gpu.mig_enabled,
        )
    return inventory


class _Life:
    """One life of the daemon: its tasks, its event thread, and whether they are well."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._loop = asyncio.get_running_loop()
        self._heard_at: float | None = None
        self._node: Node | None = None
        self._member: Member | None = None
        self._no_gpu = False
        # A page is made to its end though its client has gone; with one thread, another waits for that.
        self._page_thread = ThreadPoolExecutor(1, "metrics")
        self._outdated = asyncio.Event()
        self._over: str | None = None

    async def run(self) -> None:
        """Find the GPUs, offer them, and keep that in step, until cancelled; raises as `serve` does."""
        # What a node without GPUs should do does not depend on its labels.
        loaded = settled({}, self._daemon.configs)
        self._source = self._daemon.source(loaded)
        inventory = await self._first_look(loaded)
        refuse_long_path(self._daemon.directory)
        async with self._joined() as self._member:
            if inventory is None:
                inventory = await self._wait_for_gpus(loaded)
            await self._offer(inventory)

    async def _offer(self, inventory: Inventory) -> None:
        """Offer these GPUs, and keep that in step."""
        daemon, labels = self._daemon, self._labels
        loaded = settled(labels, daemon.configs, starting=True)
        try:
            decided = decide(loaded, inventory)
        except ConfigError as error:
            if CONFIG not in labels:
                raise
            # One label must not take the node's GPUs away: live, such a config would be refused, too.
            for line in error.lines:
                _log.error("the config of this node's label does not suit it; as without the label", problem=line)
            loaded = settled({**labels, CONFIG: ""}, daemon.configs, starting=True)
            decided = decide(loaded, inventory)
        with contextlib.closing(PluginDirectory(daemon.directory)) as directory:
            with contextlib.suppress(OSError):  # not there yet, or not usable: sessions claim it once it is
                directory.claim()
            reader = AllocationReader(directory, daemon.pod_resources, own_pod=daemon.own_pod, delays=daemon.patience)
            async with asyncio.TaskGroup() as tasks:

                def spawn(name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
                    return tasks.create_task(_guarded(work), name=name)

                self._node = node = Node(loaded, self._source, directory, reader, _mps_root(loaded), spawn)
                if self._member is not None:
                    node.cordon(self._member.cordon(inventory))
                await node.begin(inventory, decided)
                spawn("plugin directory", directory.watch)
                spawn("kubelet", reader.watch)
                spawn("rescan", self._rescan)
                spawn("settle", node.settle)
                spawn("MPS", node.mps.watch)
                spawn("settings", self._follow)
                spawn("reload", self._reload_again_and_again)
                if self._member is not None:
                    follow = partial(self._member.follow_requests, labels, node.snapshot, node.cordon, self._reload)
                    spawn("node requests", follow)
                    spawn("own Node", partial(self._member.publish_node, node.snapshot))
                on_signal(signal.SIGHUP, self._told_to_reload)
                self._listen()
                await asyncio.Event().wait()

    async def _rescan(self) -> None:
        """Look at the GPUs again and again; ends with DriverChangedError alone, and all else with it."""
        assert self._node is not None  # noqa: S101 - there is nothing to look at again before
        try:
            await self._node.rescan()
        except DriverChangedError as error:
            self._over = str(error)
            raise

    async def _first_look(self, loaded: Loaded) -> Inventory | None:
        """Read the GPUs; None where there is none yet and the settings allow that."""
        try:
            return _told(await look(self._source))
        except DriverChangedError:
            raise
        except NoGpuLibraryError as error:
            # Settings that are wrong anyway are not worth waiting for: report every problem together.
            if loaded.problems:
                raise ConfigError(loaded.lines(loaded.problems)) from None
            if loaded.config is None or loaded.config.flags.fail_on_init_error:
                raise
            self._no_gpu = not isinstance(error, UnresponsiveGpusError)
            _log.warning("no GPU yet, looking again", reason=str(error))
            return None

    async def _wait_for_gpus(self, loaded: Loaded) -> Inventory:
        """Look again and again; meanwhile the cluster is told that there is no GPU, whatever was told before."""
        assert loaded.config is not None  # noqa: S101 - settings with problems never get here
        backoff = Backoff(first=1.0, most=30.0)
        async with _in_background("own Node", self._tell_no_gpu):
            while True:
                # GPUs that are there and silent are looked at as often as any that is at fault.
                most = math.inf if self._no_gpu else loaded.config.health.probe_seconds
                await asyncio.sleep(min(backoff.next(), most))
                if (inventory := await self._first_look(loaded)) is not None:
                    return inventory

    async def _tell_no_gpu(self) -> None:
        if self._member is not None:
            await self._member.publish_node(Published(_NO_GPU))

    # ------------------------------------------------------------------ the cluster

    @contextlib.asynccontextmanager
    async def _joined(self) -> "AsyncIterator[Member | None]":
        """Follow what the cluster asks of this node, where there is one, and wait a little for its first word."""
        membership = self._daemon.membership
        if membership is None:
            yield None
            return
        from gpushare_plugin.adapters.cluster.client import Client  # noqa: PLC0415 - large, and only where there is a cluster
        from gpushare_plugin.adapters.cluster.member import Member  # noqa: PLC0415 - as above

        async with Client(membership.kubeconfig) as client:
            member = Member(client, membership.node_name, node_labels=membership.node_labels)
            async with (
                _in_background("Node", member.follow_node),
                _in_background("cordon ConfigMap", member.follow_configmap),
            ):
                await member.answered()
                yield member

    @property
    def _labels(self) -> Labels:
        """The labels of this node that settings depend on."""
        return self._member.labels if self._member is not None else {}

    # ------------------------------------------------------------------ settings

    async def _follow(self) -> None:
        # The settings may have changed since they were read: there may have been no GPU for a long time.
        self._reload()
        await self._daemon.configs.watch(self._reload)

    def _told_to_reload(self) -> None:
        _log.info("SIGHUP: reading the settings again")
        self._reload()

    def _reload(self) -> None:
        """Have the settings loaded as they are now, or once more if they are being loaded; returns at once."""
        self._outdated.set()

    async def _reload_again_and_again(self) -> None:
        """Load the settings whenever they may be others: one load at a time, so that the newest come last."""
        assert self._node is not None  # noqa: S101 - nothing follows the settings before there is a node
        while True:
            self._outdated.clear()
            try:
                # In a thread: a large file takes a while, and the kubelet must not wait for it.
                loaded = await asyncio.to_thread(settled, self._labels, self._daemon.configs)
            except GpushareError as error:
                _log.error("settings cannot be read, the old ones stay in force", reason=str(error))
            else:
                self._node.reload(loaded)
            await self._outdated.wait()

    # ------------------------------------------------------------------ the driver's events

    def _listen(self) -> None:
        """Wait for events in a thread that cannot keep the process from ending: a driver may never return."""
        node = self._node
        assert node is not None  # noqa: S101 - there are no events before there are GPUs

        def report(event: GpuEvent) -> None:
            self._from_thread(partial(node.event, event))

        def beat() -> None:
            self._from_thread(self._heard)

        arguments = (report, beat)
        threading.Thread(target=self._source.watch_events, args=arguments, name="gpu-events", daemon=True).start()

    def _from_thread(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are ending
            self._loop.call_soon_threadsafe(call)

    def _heard(self) -> None:
        self._heard_at = self._loop.time()

    # ------------------------------------------------------------------ probes and metrics

    async def serve_http(self) -> None:
        """Answer `/healthz`, `/readyz` and `/metrics` where they are asked for; ends at once where they are not."""
        if self._daemon.http_address is not None:
            from gpushare_plugin.telemetry.http import serve_http  # noqa: PLC0415 - only where it is asked for

            await serve_http(self._daemon.http_address, self._complaints, self._missing_registrations, self._metrics)

    def _complaints(self) -> list[str]:
        """Return what is wrong with the process itself; that this runs shows that the event loop does."""
        if self._over is not None:
            return [self._over]
        if self._heard_at is None or self._loop.time() - self._heard_at < EVENT_THREAD_SILENCE:
            return []
        return [f"the thread that waits for GPU events has been silent for more than {EVENT_THREAD_SILENCE:g} s"]

    def _missing_registrations(self) -> list[str]:
        if self._node is None:
            # A node that is allowed to have no GPU has nothing to register: it must not hold up a rollout.
            return [] if self._no_gpu else ["no GPU of this node has answered yet"]
        if not self._node.resumed:
            return ["it is not known yet what pods hold from before"]
        return [
            f"{name}: not registered with the kubelet"
            for name, session in self._node.sessions.items()
            if not session.registered
        ]

    async def _metrics(self, accept: str) -> tuple[str, bytes]:
        """Return content type and body of the metrics of now, in the format that is accepted."""
        snapshot = _NO_GPU
        if self._node is not None:
            standings = {name: session.standing for name, session in self._node.sessions.items()}
            snapshot = replace(self._node.snapshot.value, standings=standings)
        # Many GPUs make a long page, and the kubelet must not wait for it.
        dropped = self._daemon.log_lines_dropped()
        return await self._loop.run_in_executor(self._page_thread, _exposition, snapshot, dropped, accept)


def _exposition(snapshot: Snapshot, log_lines_dropped: int, accept: str) -> tuple[str, bytes]:
    from gpushare_plugin.telemetry.metrics import View, exposition  # noqa: PLC0415 - large, and only where somebody scrapes

    return exposition(View(snapshot, log_lines_dropped), accept)


def _mps_root(loaded: Loaded) -> MpsRoot:
    assert loaded.config is not None  # noqa: S101 - settings with problems never get here
    return MpsRoot(Path(loaded.config.flags.mps_root))


@contextlib.asynccontextmanager
async def _in_background(name: str, work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run `work` beside the body of the context."""
    task = asyncio.create_task(_guarded(work), name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _guarded(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`; if it breaks, say so loudly and start it again, unless that takes another process."""
    backoff = Backoff(first=1.0, most=60.0)
    while True:
        try:
            return await work()
        except DriverChangedError:
            raise
        except GpushareError as error:
            wait = backoff.next()
            _log.error("failed, trying again", reason=str(error), wait_seconds=wait)
            await asyncio.sleep(wait)
        except Exception:  # noqa: BLE001 - one broken task must not take the others down
            wait = backoff.next()
            task = asyncio.current_task()
            _log.exception(
                "a task broke; this is a defect of gpushare, please report it",
                task=task.get_name() if task else "",
                wait_seconds=wait,
            )
            await asyncio.sleep(wait)
