"""A partitioned node: a daemon that follows the wanted slices of its own Node, an API server, a kubelet, and MPS."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from msgspec import structs

from gpushare_plugin.config.directives import PARTITIONING
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.kubelet.allocations.trust import TrustDelays
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, NodeRecord, decode
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.node import daemon as app
from gpushare_plugin.node.node import ServedNode
from gpushare_plugin.node.status import Serving
from gpushare_plugin.slices.wanted import WANTED_SLICES, SliceCounts, Wanted, encode
from gpushare_plugin.testing.cluster import ApiServer, granted
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod, StartedContainer
from tests.chart.rendering import objects
from tests.node.living import gone
from tests.nodes import Cards
from tests.served import served_by_mps
from tests.unit.kube.cluster import NODE, a_node, annotate, label
from tests.waiting import until

SLICE = "nvidia.com/gpu-{}"


def published_record(server: ApiServer) -> NodeRecord | None:
    """Return the record on the only Node of a cluster."""
    (node,) = server.store.find(NODES, NODE)
    text = node["metadata"].get("annotations", {}).get(GPUS_ANNOTATION)
    return decode(text) if text else None


class PartitionedNode:
    """A node with the label of nos, whose GPUs are cut into the slices that a test wants."""

    def __init__(self, server: ApiServer, kubelet: EmbeddedKubelet, folder: Path, inventory: Inventory) -> None:
        """Have these GPUs; nothing runs before `start`."""
        self.server = server
        self.kubelet = kubelet
        self.cards = Cards(inventory)
        self.root = MpsRoot(folder / "mps")
        self.file = folder / "config.yaml"
        self.configure()
        self._kubeconfig = server.kubeconfig(folder / "kubeconfig")
        self._task: asyncio.Task[None] | None = None
        self.partitioning = True
        self.follow_pods = False
        self.clock = time.monotonic
        self.trust_delays = TrustDelays(unknown=0)
        a_node(server)
        label(server, PARTITIONING, "mps")

    def configure(self, rest: str = "") -> None:
        """Replace the config file, which shares nothing unless `rest` says so."""
        new = self.file.with_suffix(".new")
        quick = "health: {goodProbes: 1, probeSeconds: 0.01, rescanSeconds: 0.05}"
        new.write_text(f"flags: {{mpsRoot: {self.root.path}}}\n{quick}\n{rest}")
        new.replace(self.file)

    def want(self, *slices: SliceCounts, **gpus: SliceCounts) -> None:
        """Want these slices of the GPUs, in order, and of those named by UUID."""
        of_gpus = dict(zip((gpu.uuid for gpu in self.cards.inventory.cards), slices, strict=False))
        annotate(self.server, WANTED_SLICES, encode(Wanted(of_gpus | gpus)))

    def annotate(self, key: str, value: str | None) -> None:
        """Set another annotation of the Node, or this one to something else."""
        annotate(self.server, key, value)

    async def start(self) -> None:
        """Start the daemon."""
        daemon = app.Daemon(
            Configs(file=self.file),
            lambda _: self.cards,
            self.kubelet.plugin_directory,
            self.kubelet.pod_resources_socket,
            membership=app.Membership(NODE, self._kubeconfig, cordon_configmap=False, follow_pods=self.follow_pods),
            trust_delays=self.trust_delays,
            partitioning=self.partitioning,
            clock=self.clock,
        )
        self._daemon = app.NodeDaemon(daemon)
        self._task = asyncio.create_task(self._daemon.run())

    async def stop(self) -> None:
        """Stop the daemon; the kubelet and the pods go on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            await gone(self.kubelet)

    @property
    def serving(self) -> Serving:
        """The daemon's parts, once it serves."""
        assert isinstance(self._daemon.status.phase, Serving)
        return self._daemon.status.phase

    async def served(self) -> ServedNode:
        """Wait until the daemon knows what pods hold, and return its node."""
        await until(
            lambda: isinstance(self._daemon.status.phase, Serving) and self._daemon.status.phase.node.allocations_known
        )
        return self.serving.node

    @property
    def snapshot(self) -> Snapshot:
        """What the daemon publishes; empty before it serves."""
        phase = self._daemon.status.phase
        return phase.node.snapshot.value if isinstance(phase, Serving) else Snapshot()

    @property
    def record(self) -> NodeRecord | None:
        """What the daemon has published on the Node."""
        return published_record(self.server)

    @property
    def allocatable(self) -> dict[str, str]:
        """The slices that the status of the Node shows, by size; sizes of which there are none aside."""
        (node,) = self.server.store.find(NODES, NODE)
        found = (node.get("status") or {}).get("allocatable") or {}
        return {name.removeprefix(SLICE.format("")): count for name, count in found.items() if count != "0"}

    async def shows(self, **counts: int) -> None:
        """Wait until the Node shows exactly so many slices of each size, such as `_10gb`."""
        expected = {size.removeprefix("_"): str(count) for size, count in counts.items()}
        await until(lambda: self.allocatable == expected, lambda: str(self.allocatable))

    def tick(self) -> None:
        """Have the kubelet write the status of its Node: what it counts at this moment, as it does every 10 s."""
        counts = (self.kubelet.capacity(), self.kubelet.allocatable())
        capacity, allocatable = ({name: str(count) for name, count in each.items()} for each in counts)
        self.server.store.patch(NODES, NODE, {"status": {"capacity": capacity, "allocatable": allocatable}})

    async def recorded(self, record: Mapping[str, object]) -> None:
        """Wait until the record on the Node has these fields."""

        def there() -> bool:
            return self.record is not None and structs.asdict(self.record).items() >= record.items()

        await until(there, lambda: str(self.record))

    async def offers(self, **counts: int) -> None:
        """Wait until the kubelet counts exactly so many healthy slices of each size, such as `_10gb`."""
        expected = {SLICE.format(size.removeprefix("_")): count for size, count in counts.items()}
        await self.kubelet.wait_for(lambda seen: {k: v for k, v in seen.allocatable().items() if v} == expected)

    async def runs(self, size: str, name: str = "pod") -> StartedContainer:
        """Let a pod in that asks for a slice, and return its container as started."""
        admitted = await self.kubelet.admit(Pod(name, [Container("main", {SLICE.format(size): 1})], uid=name))
        return admitted.containers["main"]

    def end(self, name: str = "pod") -> None:
        """End the pod of this name."""
        self.kubelet.delete(next(pod for pod in self.kubelet.pods.values() if pod.name == name))


@contextlib.asynccontextmanager
async def partitioned(kubelet: EmbeddedKubelet, folder: Path, inventory: Inventory) -> AsyncIterator[PartitionedNode]:
    """Run an API server with the rights of the chart, and a partitioned node whose daemon is to be started."""
    async with ApiServer(granted(objects({"partitioning": {"enabled": True}}), "gpushare")) as server:
        node = PartitionedNode(server, kubelet, folder, inventory)
        with served_by_mps(node.root, inventory):
            try:
                yield node
            finally:
                await node.stop()
