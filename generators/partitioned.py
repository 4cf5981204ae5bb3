"""A partitioned node under a partitioner, with pods that come, run and go: what the dashboard shows of slices.

The partitioner is the real one, in this process. Of the node there is only its object in the API server: its daemon,
its kubelet and kube-scheduler are simulated here.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpushare_plugin.base.structs import replace
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.annotations import ALLOCATION
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, GpuRecord, NodeRecord, ResourceRecord, encode
from gpushare_plugin.partitioner.service import PartitionerSettings, serve
from gpushare_plugin.slices.slice import named_slice
from gpushare_plugin.slices.wanted import WANTED_SLICES, KeptSlice, Wanted, decode
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.ports import claim_port

_NODE, _PODS = "node-c", "/api/v1/namespaces/slices/pods"
_GPUS, _GIB = 4, 40
_SIZES = ("5gb", "10gb", "10gb", "20gb", "30gb")
_TOO_LARGE = "80gb"
_ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110"}
_RUNS, _EVERY, _CORDONED = 15, 2, range(13, 18)
"""Seconds that a pod runs, between two pods, and of each 20 those in which the node is cordoned."""


def start(server: ApiServer, folder: Path, tasks: list["asyncio.Task[None]"]) -> int:
    """Start a partitioner; return the port of its metrics."""
    metadata = {"name": _NODE, "annotations": {GPUS_ANNOTATION: encode(_record(Wanted()))}}
    server.store.create(NODES, {"metadata": metadata, "spec": {}, "status": {"allocatable": _ROOM}})
    port = claim_port()
    kubeconfig = server.kubeconfig(folder / "partitioner")
    partitioner = PartitionerSettings("kube-system", probe_address=f"127.0.0.1:{port}", kubeconfig=kubeconfig)
    tasks.append(asyncio.create_task(serve(partitioner)))
    return port


async def live(server: ApiServer, seconds: int) -> None:
    """Let pods come and go for some seconds."""
    chance = random.Random(0)  # noqa: S311 - the same for each picture
    for second in range(seconds):
        server.store.update(NODES, _NODE, {("spec", "unschedulable"): second % 20 in _CORDONED})
        if second % _EVERY == 0:
            size = _TOO_LARGE if second % 10 == 0 else chance.choice(_SIZES)
            _create(server, f"pod-{second}", size)
        for pod in server.store.find(_PODS):
            if int(pod["metadata"]["name"].partition("-")[2]) + _RUNS < second:
                server.store.delete(_PODS, pod["metadata"]["name"])
        await asyncio.sleep(0.5)
        wanted = _wanted(server)
        _bind(server, wanted)
        server.store.update(NODES, _NODE, {("metadata", "annotations", GPUS_ANNOTATION): encode(_record(wanted))})
        await asyncio.sleep(0.5)


def _create(server: ApiServer, name: str, size: str) -> None:
    limits = {f"nvidia.com/gpu-{size}": "1"}
    containers = [{"name": "main", "image": "i", "resources": {"limits": limits}}]
    metadata = {"name": name, "namespace": "slices"}
    server.store.create(_PODS, {"metadata": metadata, "spec": {"containers": containers}})


def _wanted(server: ApiServer) -> Wanted:
    (node,) = (each for each in server.store.find(NODES) if each["metadata"]["name"] == _NODE)
    text = node["metadata"]["annotations"].get(WANTED_SLICES)
    return Wanted() if text is None else decode(text)


def _bind(server: ApiServer, wanted: Wanted) -> None:
    """Bind the pods whose slices the node has offered for a second, as kube-scheduler does once the kubelet says so."""
    (node,) = (each for each in server.store.find(NODES) if each["metadata"]["name"] == _NODE)
    offered = {
        (each["uuid"], each.get("resource"))
        for each in json.loads(node["metadata"]["annotations"][GPUS_ANNOTATION])["gpus"]
    }
    for pod in server.store.find(_PODS):
        for kept in wanted.pods.get(pod["metadata"]["uid"], ()):
            resource = named_slice(kept.slice).resource
            if (kept.gpu, resource) in offered and not node["spec"].get("unschedulable"):
                server.store.update(_PODS, pod["metadata"]["name"], _bound(kept, resource))


def _bound(kept: KeptSlice, resource: str) -> dict[tuple[str, ...], Any]:
    allocation = {"version": 1, "containers": {"main": {resource: {kept.gpu: 1}}}}
    return {("spec", "nodeName"): _NODE, ("metadata", "annotations"): {ALLOCATION: json.dumps(allocation)}}


def _record(wanted: Wanted) -> NodeRecord:
    """Return what the daemon of the node publishes once it has made what is wanted."""
    gpus = tuple(each for index in range(_GPUS) for each in _records(wanted, index))
    names = sorted({each.resource for each in gpus if each.resource})
    resources = tuple(ResourceRecord(name=name, kind="slices") for name in names)
    return NodeRecord(gpus=gpus, resources=resources, partitioning="mps")


def _records(wanted: Wanted, index: int) -> Iterator[GpuRecord]:
    product = "NVIDIA A100-SXM4-40GB"
    alone = GpuRecord(index=index, uuid=f"GPU-{index}", product=product, memory_mib=_GIB * 1024)
    slices = wanted.gpus.get(alone.uuid, {})
    if not slices:
        yield alone
    for name, count in slices.items():
        meant = named_slice(name)
        yield replace(alone, mode="mps", resource=meant.resource, units=count, unit_mib=1024 * meant.gib)
