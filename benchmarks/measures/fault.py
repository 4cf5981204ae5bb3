"""A fault: from the driver's event until every stream has the new device list."""

import time
from collections.abc import Sequence

from benchmarks.daemon import Answers, Node, bare_server, node, replicas, serving
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary
from benchmarks.kubelet.plugin import Lists, undisturbed
from benchmarks.measures.allocate import RECOVERABLE_XID

_PROBE_SECONDS = 0.05


async def measure(effort: Effort) -> list[Figure]:
    """Measure a short list and a long one, with two streams each."""
    return [await _faults(80, 3, effort.times(60)), await _faults(8000, 15, effort.times(40))]


async def _faults(units: int, limit: float, times: int) -> Figure:
    with node(replicas(units, goodProbes=2, probeSeconds=_PROBE_SECONDS)) as gpus:
        async with serving(gpus) as daemon:
            second = daemon.plugin.lists()
            await second.next()
            taken = await _rounds(gpus, [daemon.lists, second], times, recovers=True)
            answers = Answers(devices=daemon.first_list)
        async with bare_server(gpus, answers, "--events") as floor:
            second = floor.plugin.lists()
            await second.next()
            least = await _rounds(gpus, [floor.lists, second], times, recovers=False)
    return Figure(
        f"fault -> two streams have the list, {units:,} units",
        "ms",
        Summary.of(taken),
        Summary.of(least),
        (Goal("median", limit),),
    )


async def _rounds(gpus: Node, streams: Sequence[Lists], times: int, *, recovers: bool) -> list[float]:
    taken = []
    with undisturbed():
        for round_ in range(times):
            before = time.perf_counter()
            gpus.nvml.raise_event(round_ % len(gpus.nvml.gpus), data=RECOVERABLE_XID)
            came = [await stream.next() for stream in streams]
            taken.append((max(received.at for received in came) - before) * 1000)
            if recovers:
                for stream in streams:
                    await stream.next()
    return taken
