"""Partitioners for tests, the Nodes that they divide, and what the daemons of these do with the annotation."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpushare_plugin.base.structs import replace
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.kube.lease import LeaseTiming
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, GpuRecord, NodeRecord, ResourceRecord, encode
from gpushare_plugin.partitioner.service import PartitionerSettings, serve
from gpushare_plugin.slices.slice import named_slice
from gpushare_plugin.slices.wanted import WANTED_SLICES, Wanted, decode
from gpushare_plugin.testing.cluster import ApiServer
from tests.unit.kube.cluster import QUICK

Json = dict[str, Any]

PODS = "/api/v1/namespaces/team/pods"
EVENTS = "/api/v1/namespaces/team/events"
LEASED = LeaseTiming(duration=30, deadline=25.0, retry=0.05)
"""A Lease that lasts longer than any test, and is tried for often."""
ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110"}


def uuid(node: str, index: int) -> str:
    """Return the UUID of a GPU of a node."""
    return f"GPU-{node}-{index}"


def record(node: str, sizes: tuple[int, ...], slices: Mapping[str, Mapping[str, int]] | None = None) -> str:
    """Return the record of a node whose GPUs have so many GiB and offer these slices, by UUID and size."""
    gpus: list[GpuRecord] = []
    for index, gib in enumerate(sizes):
        alone = GpuRecord(index=index, uuid=uuid(node, index), product="A", memory_mib=gib * 1024)
        offered = (slices or {}).get(alone.uuid, {})
        gpus += [
            replace(
                alone, mode="mps", resource=f"nvidia.com/gpu-{size}", units=count, unit_mib=1024 * named_slice(size).gib
            )
            for size, count in offered.items()
        ] or [alone]
    names = {gpu.resource for gpu in gpus if gpu.resource}
    resources = tuple(ResourceRecord(name=name, kind="slices") for name in sorted(names))
    return encode(NodeRecord(gpus=tuple(gpus), resources=resources, partitioning="mps"))


def create_node(server: ApiServer, name: str, *sizes: int, **more: Any) -> None:
    """Create a Node whose daemon follows the annotation and offers nothing yet; `more` is of its spec."""
    metadata = {"name": name, "annotations": {GPUS_ANNOTATION: record(name, sizes)}}
    server.store.create(NODES, {"metadata": metadata, "spec": more, "status": {"allocatable": ROOM}})


def create_other(server: ApiServer, name: str, of: NodeRecord) -> None:
    """Create a Node with any record."""
    metadata = {"name": name, "annotations": {GPUS_ANNOTATION: encode(of)}}
    server.store.create(NODES, {"metadata": metadata, "spec": {}, "status": {"allocatable": ROOM}})


def offer(server: ApiServer, name: str, *sizes: int) -> None:
    """Offer what is wanted, as the daemon of the node does."""
    counts = {gpu: slices for gpu, slices in wanted(server, name).gpus.items() if slices}
    server.store.update(NODES, name, {("metadata", "annotations", GPUS_ANNOTATION): record(name, sizes, counts)})


def wanted(server: ApiServer, name: str) -> Wanted:
    """Return what is wanted of a node."""
    (found,) = server.store.find(NODES, name)
    text = found["metadata"]["annotations"].get(WANTED_SLICES)
    return Wanted() if text is None else decode(text)


def slices(server: ApiServer, name: str) -> dict[str, dict[str, int]]:
    """Return the slices that are wanted of each GPU of a node that is to have any."""
    return {gpu: dict(counts) for gpu, counts in wanted(server, name).gpus.items() if counts}


def create_pod(server: ApiServer, name: str, size: str, **spec: Any) -> Json:
    """Create a pod that asks for a slice of a size or MIG profile; `spec` is more of that."""
    resource = f"nvidia.com/{'mig' if 'g.' in size else 'gpu'}-{size}"
    container = {"name": "main", "image": "i", "resources": {"limits": {resource: "1"}}}
    return server.store.create(
        PODS,
        {
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"containers": [container], **spec},
            "status": {"phase": "Pending"},
        },
    )


def messages(server: ApiServer, pod: str) -> list[str]:
    """Return the reason and message of each Event of a pod."""
    found = server.store.find(EVENTS)
    return [f"{each['reason']}: {each['message']}" for each in found if each["involvedObject"]["name"] == pod]


@asynccontextmanager
async def partitioner(server: ApiServer, folder: Path, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """Run a partitioner; at the end nothing of it is left running."""
    settings: dict[str, Any] = {
        "namespace": "kube-system",
        "kubeconfig": server.kubeconfig(folder),
        "lease_timing": LEASED,
        "client_timing": QUICK,
    }
    task = asyncio.create_task(serve(PartitionerSettings(**settings | options)))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()
