"""A restart of the kubelet: from the new `kubelet.sock` until the daemon has registered again."""

import asyncio
import time

from benchmarks.daemon import Node, connected, node, replicas
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary
from benchmarks.kubelet.registration import RegistrationServer
from benchmarks.processes import MeasuredProcess, python

_PAUSE = 0.1
"""Seconds the kubelet is away."""


async def measure(effort: Effort) -> list[Figure]:
    """Measure the daemon, and a process that does nothing but register."""
    times = effort.times(30)
    with node(replicas(80)) as gpus:
        async with RegistrationServer(gpus.plugin_directory) as kubelet, gpus.daemon() as process:
            taken = await _restarts(gpus, kubelet, process, times, listens=True)
        floor = python(*("-m", "benchmarks.floors.registrar", gpus.plugin_directory), output=gpus.folder / "floor.log")
        async with RegistrationServer(gpus.plugin_directory) as kubelet, floor as process:
            least = await _restarts(gpus, kubelet, process, times, listens=False)
    return [
        Figure(
            "kubelet.sock created again -> Register",
            "ms",
            Summary.of(taken),
            Summary.of(least),
            (Goal("median", 20), Goal("worst", 1200)),
            note="all sockets are removed, as the kubelet does; the floor serves nothing",
        )
    ]


async def _restarts(
    gpus: Node, kubelet: RegistrationServer, process: MeasuredProcess, times: int, *, listens: bool
) -> list[float]:
    taken = []
    registered = await process.outlives(kubelet.next())
    for _ in range(times):
        if listens:
            async with connected(process, gpus.plugin_directory / registered.request.endpoint):
                await kubelet.stop()
        else:
            await kubelet.stop()
        await asyncio.sleep(_PAUSE)
        await kubelet.start()
        before = time.perf_counter()
        registered = await process.outlives(kubelet.next())
        taken.append((registered.at - before) * 1000)
    return taken
