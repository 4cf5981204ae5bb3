"""Nodes that are partitioned: daemons and a partitioner as processes; the API server and kubelets are in this one."""

import asyncio
import contextlib
import json
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cluster.objects import NAMESPACE
from benchmarks.daemon import Node, node
from benchmarks.processes import MeasuredProcess, python
from gpushare_plugin.base.files.lock import lock
from gpushare_plugin.base.tasks import background
from gpushare_plugin.config.directives import PARTITIONING
from gpushare_plugin.gpus.exchange import read_message, write_message
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION
from gpushare_plugin.mps.exchange import MpsRoot, MpsSettings, MpsStatus
from gpushare_plugin.slices.slice import named_slice
from gpushare_plugin.slices.wanted import WANTED_SLICES, decode
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.store.place import collection
from gpushare_plugin.testing.cluster.store.selectors import Selector
from gpushare_plugin.testing.kubelet import EmbeddedKubelet

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_ROOM = {"cpu": "64", "memory": "512Gi", "pods": "250"}
_LOOK_EVERY = 0.05
_STATUS_EVERY = 10.0
"""Seconds between two looks of a kubelet at the status of its Node (nodeStatusUpdateFrequency)."""


class Served(NamedTuple):
    """When a pod was created, its slice decided, listed to the kubelet, and allocatable on its Node, in seconds."""

    created: float
    decided: float
    listed: float
    allocatable: float


class Partitioned:
    """The cluster, and what happened in it."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        """Have no nodes yet."""
        self._server = server
        self._folder = folder
        self._listed: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        """When the kubelet of a node counted one slice more of a resource than ever."""

    def create(self, name: str, size: str) -> None:
        """Create a pod that asks for a slice."""
        limits = {f"nvidia.com/gpu-{size}": "1"}
        container = {"name": "main", "image": "i", "resources": {"limits": limits, "requests": limits}}
        self._server.store.create(
            PODS, {"metadata": {"name": name}, "spec": {"containers": [container]}, "status": {"phase": "Pending"}}
        )

    @contextlib.asynccontextmanager
    async def node(self, name: str) -> AsyncIterator[None]:
        """Run a daemon with eight GPUs that MPS serves, and its kubelet."""
        labels = {PARTITIONING: "mps"}
        body = {"metadata": {"name": name, "labels": labels}, "status": {"capacity": _ROOM, "allocatable": _ROOM}}
        self._server.store.create(NODES, body)
        with node({}) as made:
            root = MpsRoot(made.folder / "mps")
            root.path.mkdir()
            made.configure({"version": "v1", "flags": {"mpsRoot": str(root.path)}})
            async with (
                EmbeddedKubelet(made.folder) as kubelet,
                self._daemon(made, name) as process,
                background() as spawn,
            ):
                spawn("device manager", lambda: self._watch(name, kubelet))
                spawn("status", lambda: self._publish(name, kubelet))
                with lock(root.lock):
                    await process.outlives(_serve(root))
                    await process.outlives(self._recorded(name))
                    yield

    def _daemon(self, made: Node, name: str) -> contextlib.AbstractAsyncContextManager[MeasuredProcess]:
        kubeconfig = str(self._server.kubeconfig(made.folder / "kubeconfig"))
        on = ("--partitioning", "true", "--follow-pods", "true")
        return made.daemon("--node-name", name, "--kubeconfig", kubeconfig, *on)

    @contextlib.asynccontextmanager
    async def partitioner(self) -> AsyncIterator[MeasuredProcess]:
        """Run the partitioner; pods never take their slices, and keep them."""
        kubeconfig = self._server.kubeconfig(self._folder / "kubeconfig")
        async with python(
            *("-m", "gpushare_plugin", "partition", "--kubeconfig", kubeconfig, "--patience", "3600"),
            output=self._folder / "partitioner.log",
        ) as process:
            yield process

    async def all_served(self, count: int) -> None:
        """Wait until so many slices are allocatable."""
        while self._shown() < count:  # noqa: ASYNC110 - other processes change it
            await asyncio.sleep(_LOOK_EVERY)

    def _shown(self) -> int:
        """Return how many slices the Nodes show."""
        statuses = (node["status"]["allocatable"] for node in self._server.store.find(NODES))
        return sum(int(count) for each in statuses for resource, count in each.items() if resource not in _ROOM)

    def served(self) -> dict[str, Served]:
        """Return what happened to each pod, by name: of pods with one size on a node, the first has the first slice."""
        pods = {body["metadata"]["uid"]: (at, body["metadata"]["name"]) for at, body in reversed(self._history(PODS))}
        allocatable: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for key, at in self._allocatable():
            allocatable[key].append(at)
        turns: defaultdict[tuple[str, str], int] = defaultdict(int)
        found: dict[str, Served] = {}
        for at, body in self._history(NODES):
            text = body["metadata"].get("annotations", {}).get(WANTED_SLICES)
            for uid, (kept, *_) in decode(text).pods.items() if text else ():
                created, name = pods[uid]
                if name not in found:
                    key = body["metadata"]["name"], named_slice(kept.slice).resource
                    turn, turns[key] = turns[key], turns[key] + 1
                    found[name] = Served(created, at, self._listed[key][turn], allocatable[key][turn])
        return found

    def _allocatable(self) -> Iterator[tuple[tuple[str, str], float]]:
        """Yield each slice that became allocatable, by node and resource, and when."""
        most: defaultdict[tuple[str, str], int] = defaultdict(int)
        for at, body in self._history(NODES):
            for resource, count in (body["status"].get("allocatable") or {}).items():
                key = body["metadata"]["name"], resource
                while resource not in _ROOM and most[key] < int(count):
                    most[key] += 1
                    yield key, at

    def _history(self, path: str) -> list[tuple[float, Any]]:
        changes = self._server.store.since(0, collection(path), Selector(()))
        return [(change.at, json.loads(change.body)) for _, change in changes]

    async def _watch(self, name: str, kubelet: EmbeddedKubelet) -> None:
        """Note when the kubelet counts a slice."""
        counts: dict[str, int] = {}
        now = asyncio.get_running_loop().time
        while True:
            await kubelet.wait_for(lambda seen: seen.allocatable() != counts, within=3600)  # noqa: B023 - as it is
            counts = kubelet.allocatable()
            for resource, count in counts.items():
                times = self._listed[name, resource]
                times += [now()] * (count - len(times))

    async def _publish(self, name: str, kubelet: EmbeddedKubelet) -> None:
        """Write what the kubelet counts into the Node, as rarely as a real kubelet does."""
        while True:
            await asyncio.sleep(_STATUS_EVERY)
            texts = {resource: str(count) for resource, count in kubelet.allocatable().items()}
            self._server.store.patch(NODES, name, {"status": {"capacity": texts, "allocatable": texts}})

    async def _recorded(self, name: str) -> None:
        while GPUS_ANNOTATION not in (self._server.store.find(NODES, name)[0]["metadata"].get("annotations") or {}):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(_LOOK_EVERY)


async def _serve(root: MpsRoot) -> None:
    """Serve the GPUs that the daemon wants under MPS, as far as it can see."""
    while (desired := read_message(root.wanted, MpsSettings)) is None:  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(_LOOK_EVERY)
    write_message(root.status, MpsStatus(in_force=desired))


@contextlib.asynccontextmanager
async def partitioned(nodes: int) -> AsyncIterator[tuple[Partitioned, MeasuredProcess]]:
    """Run so many nodes and a partitioner, one daemon after another."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="gs-") as folder:
        async with ApiServer() as server, contextlib.AsyncExitStack() as stack:
            cluster = Partitioned(server, Path(folder))
            for number in range(nodes):
                await stack.enter_async_context(cluster.node(f"node-{number}"))
            yield cluster, await stack.enter_async_context(cluster.partitioner())
