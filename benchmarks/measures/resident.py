"""Resident memory, once everything is registered and listed.

Memory is mostly imports: Python, asyncio, gRPC and pydantic take 39 MiB, the package `kubernetes` 14 MiB more.
"""

import asyncio

from benchmarks.daemon import Config, node, replicas, serving
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, single
from benchmarks.processes import Memory, python
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.testing.cluster import ApiServer

_NODE = "gpu-1"


async def measure(_effort: Effort) -> list[Figure]:
    """Measure a short list and the longest, beside a process that imports the same libraries."""
    with node(replicas(80)) as gpus:
        output = gpus.folder / "imported"
        async with python("-m", "benchmarks.floors.imports", output=output) as process:
            while not output.read_text():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.02)
            floor = process.memory()
    return [
        _figure("80 units", await _daemon(replicas(80)), floor, 45),
        _figure("80 units, with an API server", await _in_a_cluster(replicas(80)), floor, 75),
        _figure("60,000 units", await _daemon(replicas(60_000)), floor, 120),
    ]


async def _daemon(config: Config) -> Memory:
    with node(config) as gpus:
        async with serving(gpus) as daemon:
            return daemon.process.memory()


async def _in_a_cluster(config: Config) -> Memory:
    """Measure once the node is published to a server, and the daemon follows it there."""
    async with ApiServer() as server:
        server.store.update(NODES, _NODE, {("metadata", "labels", "kubernetes.io/hostname"): _NODE}, "kubelet")
        with node(config) as gpus:
            kubeconfig = server.kubeconfig(gpus.folder / "kubeconfig")
            async with serving(gpus, "--kubeconfig", str(kubeconfig), "--node-name", _NODE) as daemon:
                while not {"watch", "patch"} <= {each.verb for each in server.asked}:  # noqa: ASYNC110 - the server's own task notes it
                    await asyncio.sleep(0.02)
                return daemon.process.memory()


def _figure(name: str, memory: Memory, floor: Memory, limit: float) -> Figure:
    return single(
        f"resident memory, {name}",
        "MiB",
        memory.resident,
        Goal("worst", limit),
        floor=floor.resident,
        note=f"PSS {memory.proportional:.1f}, own {memory.own:.1f}; floor's own {floor.own:.1f}",
    )
