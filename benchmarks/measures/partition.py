"""From a pod that asks for a slice to the slice in the allocatable resources of a Node, and where the time goes."""

import asyncio
from collections.abc import Sequence

from benchmarks.cluster.partitioned import Served, partitioned
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary, single

_NODES, _PODS = 20, 200
_RATE = 10.0
"""Pods a second."""
_SIZES = ("10gb", "5gb", "20gb", "10gb", "40gb")


async def measure(effort: Effort) -> list[Figure]:
    """Measure pods that come all at once, then pods that come one after another, in the same cluster."""
    nodes, pods = effort.times(_NODES), effort.times(_PODS)
    async with partitioned(nodes) as (cluster, process):
        cluster.create("first", _SIZES[0])
        await process.outlives(cluster.all_served(1))
        for number in range(pods):
            cluster.create(f"burst-{number}", _SIZES[number % len(_SIZES)])
        await process.outlives(cluster.all_served(1 + pods))
        cpu = process.cpu_seconds()
        for number in range(pods):
            cluster.create(f"rate-{number}", _SIZES[number % len(_SIZES)])
            await asyncio.sleep(1 / _RATE)
        await process.outlives(cluster.all_served(1 + 2 * pods))
        cpu = 1000 * (process.cpu_seconds() - cpu) / pods
        memory = process.memory().resident
        served = cluster.served()
    where = f"{nodes} nodes of 8 GPUs, {pods} pods"
    return [
        *_figures(f"{where} at once", [each for name, each in served.items() if name.startswith("burst")]),
        *_figures(f"{where}, {_RATE:g} a second", [each for name, each in served.items() if name.startswith("rate")]),
        single("partitioner: CPU a pod", "ms", cpu, note=f"{_RATE:g} pods a second, {nodes} nodes"),
        single("partitioner: resident memory", "MiB", memory),
    ]


def _figures(where: str, served: Sequence[Served]) -> list[Figure]:
    """Return how long slices took in all, and each part of that."""
    parts = {
        "decided and written": [each.decided - each.created for each in served],
        "listed to the kubelet": [each.listed - each.decided for each in served],
        "allocatable on the Node": [each.allocatable - each.listed for each in served],
    }
    medians = "; ".join(f"{name} {Summary.of(times).median:.3f} s" for name, times in parts.items())
    name = f"pod -> slice allocatable, {where}"
    total = Figure(
        name,
        "s",
        Summary.of([each.allocatable - each.created for each in served]),
        goals=(Goal("median", 2), Goal("p99", 5)),
        note=f"medians: {medians}; the daemons write the status of the Nodes, the kubelets only every 10 s",
    )
    return [total, *(Figure(f"{name}: {part}", "s", Summary.of(times)) for part, times in parts.items())]
