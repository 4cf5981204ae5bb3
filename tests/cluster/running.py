"""The whole cluster in one process, everything over real sockets: who asks whom is as in a real one."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec

from gpushare_plugin.extender.service import ExtenderSettings, serve
from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.kube.nodes import node_of
from gpushare_plugin.kube.objects import ApiNode, ApiPod
from gpushare_plugin.kube.pods import pod_of
from gpushare_plugin.kubelet.allocations.pod_resources import list_pods
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import AdmittedPod
from tests.cluster.objects import PODS, Object, delete
from tests.cluster.scheduler import Entry, Scheduler
from tests.cluster.tasks import alongside
from tests.cluster.worker import Lifetime, NodeKind, Worker
from tests.waiting import until

Units = Counter[tuple[str, str, str]]
"""Units by pod, resource and GPU."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Everything that a test looks at."""

    server: ApiServer
    scheduler: Scheduler
    workers: Sequence[Worker]
    client: Client
    extender: str

    async def create(self, pod: Object) -> None:
        """Create a pod, as its owner does."""
        await self.client.request("POST", PODS, body=pod)

    async def delete(self, pod: Object) -> None:
        """Delete a pod, as its owner does."""
        await delete(self.client, pod)

    def started(self, pod: Object) -> AdmittedPod:
        """Return a pod that runs, as its kubelet started it."""
        uid = pod["metadata"]["uid"]
        return next(worker.admitted[uid] for worker in self.workers if uid in worker.admitted)

    @property
    def pods(self) -> list[Object]:
        """All pods as the scheduler has seen them."""
        return list(self.scheduler.cache.pods.values())

    def units_by_account(self, worker: Worker) -> Units:
        """Return who has what on a node, by the account that anybody can make of what the API server has now."""
        account, cache = ClusterAccount(), self.scheduler.cache
        account.put_node(node_of(msgspec.convert(cache.nodes[worker.name], ApiNode)))
        for pod in cache.pods.values():
            if pod["spec"].get("nodeName") == worker.name:
                account.put_pod(pod_of(msgspec.convert(pod, ApiPod)))
        found: Units = Counter()
        for resource, each in account.account_of(worker.name).resources.items():
            for holding in each.holdings:
                found[holding.pod.name, resource, holding.gpu] += holding.units
        return found

    async def units_by_pod_resources(self, worker: Worker) -> Units:
        """Return which pod has what on a node, as its kubelet shows it: without init containers, which have ended."""
        resources = {resource.name: resource for resource in worker.resources}
        found: Units = Counter()
        for holding in (await list_pods(worker.kubelet.pod_resources_socket)).holdings:
            for gpu, units in resources[holding.resource].gpus_of(holding.ids).items():
                found[holding.pod, holding.resource, gpu] += units
        return found

    async def used_by_extender(self) -> dict[str, dict[int, int]]:
        """Return the units of memory that are used on each GPU of each node, as the extender shows it."""
        async with aiohttp.request("GET", f"{self.extender}/gpushare-scheduler/inspect") as response:
            shown = await response.json()
        return {node["name"]: {gpu["id"]: gpu["usedGPU"] for gpu in node["devs"]} for node in shown["nodes"]}


def used(worker: Worker) -> dict[tuple[str, str], int]:
    """Return how many units of each GPU the containers of a node have, init containers included, by its kubelet."""
    return {
        (resource.name, gpu): units
        for resource in worker.resources
        for gpu, units in resource.gpus_of(worker.kubelet.held(resource.name)).items()
    }


@asynccontextmanager
async def running(folder: Path, kinds: Mapping[str, NodeKind], lifetime: Lifetime, seed: int) -> AsyncIterator[Cluster]:
    """Run a cluster of these nodes, whose containers run for as long as `lifetime` says."""
    async with _nodes(folder, kinds, lifetime) as nodes, AsyncExitStack() as stack:
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        extender = ExtenderSettings(
            address="127.0.0.1:0", namespace="kube-system", kubeconfig=nodes.kubeconfig, started=port.set_result
        )
        await stack.enter_async_context(alongside(serve(extender)))
        url = f"http://127.0.0.1:{await port}"
        yield await stack.enter_async_context(scheduled(nodes.server, nodes.workers, nodes.client, seed, url))


@asynccontextmanager
async def running_alone(
    folder: Path, kinds: Mapping[str, NodeKind], lifetime: Lifetime, seed: int, worker: type[Worker] = Worker
) -> AsyncIterator[Cluster]:
    """Run a cluster as `running` does, with a scheduler that asks no extender; each node is a `worker`."""
    async with (
        _nodes(folder, kinds, lifetime, worker) as nodes,
        scheduled(nodes.server, nodes.workers, nodes.client, seed) as cluster,
    ):
        yield cluster


@dataclass(frozen=True, slots=True)
class _Nodes:
    server: ApiServer
    workers: Sequence[Worker]
    client: Client
    kubeconfig: Path


@asynccontextmanager
async def _nodes(
    folder: Path, kinds: Mapping[str, NodeKind], lifetime: Lifetime, worker: type[Worker] = Worker
) -> AsyncIterator[_Nodes]:
    async with ApiServer() as server, AsyncExitStack() as stack:
        kubeconfig = server.kubeconfig(folder / "kubeconfig")
        client = await stack.enter_async_context(Client(kubeconfig))
        workers = [
            worker(name, kind, folder / f"{number}", client, kubeconfig)
            for number, (name, kind) in enumerate(kinds.items())
        ]
        for each in workers:
            await stack.enter_async_context(each.working(lifetime))
        yield _Nodes(server, workers, client, kubeconfig)


@asynccontextmanager
async def scheduled(
    server: ApiServer, workers: Sequence[Worker], client: Client, seed: int, extender: str = ""
) -> AsyncIterator[Cluster]:
    """Schedule once all nodes are ready; `extender` is the URL of one that is asked."""
    await until(lambda: all(_ready(node) for node in server.store.find(NODES)))
    entries = [Entry(extender)] if extender else []
    scheduler = Scheduler(client, entries, random.Random(seed))  # noqa: S311 - no secret
    async with alongside(scheduler.run()):
        yield Cluster(server, scheduler, workers, client, extender)


def _ready(node: Object) -> bool:
    return "gpushare/gpus" in (node["metadata"].get("annotations") or {}) and bool(node["status"].get("allocatable"))
