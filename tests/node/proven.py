"""A node whose processes are real, and whose GPUs, MPS and limits are in the hands of a test, with a proof."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.config.schema.sections import Overuse
from gpushare_plugin.core.effect import Effect
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.usage import ContainerUsage, GpuUsage, Owner, Process
from gpushare_plugin.gpus import containers
from gpushare_plugin.gpus.source import GpuSource
from gpushare_plugin.kubelet.allocations.reader import HoldingsReader
from gpushare_plugin.kubelet.device_plugin.steering import Steering
from gpushare_plugin.mps.exchange import ListedClient, MpsStatus
from gpushare_plugin.node.news.news import News, NewsItem
from gpushare_plugin.node.pods.init_containers import ContainerIds
from gpushare_plugin.node.pods.proof import Proof
from gpushare_plugin.node.pods.usage import UsageTracker
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.nodes import Cards
from tests.shown import ShownProcesses
from tests.unit.kubelet.serving import running
from tests.unit.sharing.settings import GPU_MEM

GIB = 1024 * MIB
ID = "0123456789abcdef" * 4


@dataclass
class ProvenNode:
    """A node whose processes are real, and whose GPUs and MPS are in the hands of a test."""

    kubelet: EmbeddedKubelet
    made: Snapshot
    shown: ShownProcesses
    listed: MpsStatus = field(default_factory=MpsStatus)
    heard: list[NewsItem] = field(default_factory=list)
    unknown: str | None = None
    source: GpuSource | None = None
    cgroups: Path = Path("/nowhere")
    container_ids: ContainerIds = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the tracker."""
        self.cards = Cards(self.made.inventory)
        holdings = HoldingsReader(self.kubelet.plugin_directory, self.kubelet.pod_resources_socket)
        source = self.source or self.cards
        proof = Proof(holdings, source, lambda: self.listed, cgroup_root=self.cgroups, procfs=self.shown.procfs)
        self.tracker = UsageTracker(source, holdings, proof, News(self.heard.append), self._evict)

    async def _evict(self, namespace: str, pod: str, uid: str) -> bool:
        raise AssertionError((namespace, pod, uid))

    async def admit(self, pod: Pod) -> Mapping[str, str]:
        """Start a pod, and return what its only container was given."""
        (started,) = (await self.kubelet.admit(pod)).containers.values()
        return started.environment

    def start(self, pod: Pod, environment: Mapping[str, str | None], mapped: Path | None = None) -> Process:
        """Start a program of the pod that uses the first GPU."""
        owner = Owner(pod.uid, ID)
        found = {name: value for name, value in environment.items() if value is not None}
        return Process(self.shown.start(owner, found, mapped), "python", GIB, 0.5, owner)

    def list_clients(self, *clients: ListedClient) -> None:
        """Let `gpushare mps` report these clients, asked for now."""
        self.listed = MpsStatus(clients=clients, clients_asked_at=containers.now())

    async def look(self, *processes: Process, gpu: int = 0) -> Effect | None:
        """Look at a GPU with these processes; return the effect of the limit of the only container on the GPU."""
        used = [GpuUsage(each.uuid, 8 * GIB, GIB, 0.5, (), self.unknown) for each in self.made.inventory.gpus]
        used[gpu] = GpuUsage(used[gpu].uuid, 8 * GIB, GIB, 0.5, None if self.unknown else processes, self.unknown)
        self.cards.samples = tuple(used)
        (effect,) = (each.effect for each in await self.usages() if each.gpu == used[gpu].uuid)
        return effect

    async def usages(self) -> tuple[ContainerUsage, ...]:
        """Look, and return the usage of all containers."""
        self.heard.clear()
        await self.tracker.look(self.made, Overuse(), self.container_ids)
        assert self.tracker.usage is not None
        return self.tracker.usage.containers


@asynccontextmanager
async def proven(  # noqa: PLR0913 - the parts of a node
    kubelet: EmbeddedKubelet,
    shown: ShownProcesses,
    made: Snapshot,
    steering: Steering | None = None,
    *,
    source: GpuSource | None = None,
    cgroups: Path = Path("/nowhere"),
) -> AsyncIterator[ProvenNode]:
    """Serve the resources of a node, and look at the node; without a `source`, the GPUs are in the test's hands."""
    async with running(kubelet.plugin_directory, *made.resources, steering=steering):
        names = {resource.name: len(resource.units) for resource in made.resources}
        await kubelet.wait_for(lambda node: node.allocatable() == names)
        yield ProvenNode(kubelet, made, shown, source=source, cgroups=cgroups)


def a_pod(units: int = 2, resource: str = GPU_MEM) -> Pod:
    """Return a pod of one container."""
    return Pod("pod", [Container("main", {resource: units})])
