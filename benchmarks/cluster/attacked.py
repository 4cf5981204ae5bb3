"""A cluster with a hostile tenant: an extender and a partitioner as processes, and pods of others that they serve."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster.extender import Caller, Cluster, cluster, extender
from benchmarks.cluster.objects import MEMORY, NAMESPACE, Object, a_pod
from benchmarks.cluster.requests import question
from benchmarks.cluster.tenant import PODS as HOSTILE_PODS
from benchmarks.cluster.tenant import name_of
from benchmarks.cluster.wire import decoded
from benchmarks.processes import MeasuredProcess, python
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, GpuRecord, NodeRecord, encode
from gpushare_plugin.slices.wanted import WANTED_SLICES

_GPUS = 8
_GIB = 80
_SLICE = "nvidia.com/gpu-10gb"
_ROOM = {"cpu": "127", "memory": "1056269392Ki", "pods": "110"}
_LABEL = "benchmark.example/partitioned"
_LOOK_EVERY = 0.01
_SETTLE = 2.0
"""Seconds after which the programs have seen that pods are gone."""


@dataclass(frozen=True, slots=True)
class Attacked:
    """The cluster, the two programs, and what calls the extender."""

    of: Cluster
    extender: MeasuredProcess
    partitioner: MeasuredProcess
    caller: Caller
    port: int

    async def placed(self, name: str) -> float:
        """Return the milliseconds from a new pod that wants memory to its Binding; then it is deleted."""
        began = time.perf_counter()
        pod = await self.of.create(a_pod(name, {MEMORY: 4}))
        asked = question(pod, self.of.names)
        await self.caller.post("filter", asked)
        scores = decoded(await self.caller.post("prioritize", asked))
        await self.caller.bind(pod, max(scores, key=lambda each: each["Score"])["Host"])
        spent = time.perf_counter() - began
        await self._delete(pod)
        return 1000 * spent

    async def partitioned(self, name: str) -> float:
        """Return the milliseconds from a new pod that wants a slice to the Node that is to make it; see `placed`."""
        began = time.perf_counter()
        pod = await self.of.create(a_pod(name, {_SLICE: 1}))
        while not await self._is_kept(pod["metadata"]["uid"]):  # noqa: ASYNC110 - another process decides it
            await asyncio.sleep(_LOOK_EVERY)
        spent = time.perf_counter() - began
        await self._delete(pod)
        return 1000 * spent

    async def _is_kept(self, uid: str) -> bool:
        nodes = decoded(await self.of.client.request("GET", NODES, {"labelSelector": f"{_LABEL}=true"}))["items"]
        return any(uid in node["metadata"]["annotations"].get(WANTED_SLICES, "") for node in nodes)

    async def _delete(self, pod: Object) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
        await self.of.client.request("DELETE", path)

    @contextlib.asynccontextmanager
    async def tenant(self, count: int, seconds: float, where: str = HOSTILE_PODS) -> AsyncIterator[None]:
        """Have a tenant create so many pods in so many seconds; they are deleted when it has, and all have seen it."""
        arguments = map(str, (self.of.kubeconfig, self.port, len(self.of.names), count, seconds, where))
        output = self.of.folder / "tenant.log"
        async with python("-m", "benchmarks.cluster.tenant", *arguments, output=output) as process:
            yield
            if await process.process.wait():
                raise RuntimeError(output.read_text()[-2000:])
        for number in range(count):
            await self.of.client.request("DELETE", f"{where}/{name_of(number)}")
        await asyncio.sleep(_SETTLE)

    @property
    def memory(self) -> dict[str, float]:
        """The resident MiB of both programs now."""
        return {"extender": self.extender.memory().resident, "partitioner": self.partitioner.memory().resident}

    @property
    def lost(self) -> int:
        """How often one of them has lost its Lease."""
        return sum(each.output.read_text().count("leadership_lost") for each in (self.extender, self.partitioner))


@contextlib.asynccontextmanager
async def attacked(nodes: int, partitioned: int) -> AsyncIterator[Attacked]:
    """Run both programs beside so many nodes that share memory, and so many that are partitioned."""
    async with cluster(nodes) as of:
        for number in range(partitioned):
            await of.client.request("POST", NODES, body=_partitioned_node(f"partitioned-{number}"))
        async with (
            extender(of) as ready,
            python(
                *("-m", "gpushare_plugin", "partition", "--kubeconfig", of.kubeconfig, "--patience", "3600"),
                output=Path(of.folder, "partitioner.log"),
            ) as partitioner,
        ):
            found = Attacked(of, ready.process, partitioner, ready.caller, ready.port)
            await partitioner.outlives(found.partitioned("first"))
            yield found


def _partitioned_node(name: str) -> Object:
    gpus = tuple(
        GpuRecord(index=index, uuid=f"GPU-{name}-{index}", product="NVIDIA A100-SXM4-80GB", memory_mib=_GIB * 1024)
        for index in range(_GPUS)
    )
    record = encode(NodeRecord(gpus=gpus, resources=(), partitioning="mps"))
    metadata = {"name": name, "labels": {_LABEL: "true"}, "annotations": {GPUS_ANNOTATION: record}}
    return {"metadata": metadata, "spec": {}, "status": {"capacity": _ROOM, "allocatable": _ROOM}}
