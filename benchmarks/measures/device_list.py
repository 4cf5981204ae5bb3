"""The whole device list: what building and sending it costs the daemon, and how long it is."""

import time

from benchmarks.daemon import Answers, Node, Serving, bare_server, memory, node, replicas, serving
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary, single
from benchmarks.kubelet.plugin import undisturbed
from benchmarks.measures.allocate import RECOVERABLE_XID

_CARDS = 16
"""As many as the stand-in has room for: each can fail once, and each failure makes one list."""


async def measure(effort: Effort) -> list[Figure]:
    """Measure a long list and the longest, and the length of one of memory units."""
    return [*await _cost(8000, effort), *await _cost(60_000, effort), await _memory_units()]


async def _cost(units: int, effort: Effort) -> list[Figure]:
    # Nobody looks at the cards meanwhile, so they stay unhealthy and nothing else is counted.
    with node(replicas(units, _CARDS, probeSeconds=3600, rescanSeconds=3600), _CARDS) as gpus:
        async with serving(gpus) as daemon:
            opened, opened_cpu = await _first_lists(daemon, effort.times(20))
            changed = await _changes(gpus, daemon, effort.times(_CARDS))
            answers = Answers(devices=daemon.first_list)
        async with bare_server(gpus, answers, "--events") as floor:
            least_opened, least_opened_cpu = await _first_lists(floor, effort.times(20))
            least_changed = await _changes(gpus, floor, effort.times(_CARDS))
    name = f"list of {units:,} units"
    return [
        Figure(
            f"{name}, first on one more stream",
            "ms",
            Summary.of(opened),
            Summary.of(least_opened),
            note=f"{len(daemon.first_list):,} bytes",
        ),
        Figure(
            f"{name}, first on one more stream: CPU",
            "ms",
            Summary.of(opened_cpu),
            Summary.of(least_opened_cpu),
            (Goal("median", 1.25, of_floor=True),),
            note="the floor sends the bytes it has",
        ),
        Figure(
            f"{name}, built and sent again: CPU",
            "ms",
            Summary.of(changed),
            Summary.of(least_changed),
            (Goal("median", 2.0, of_floor=True),),
            note="the floor serialises once and sends",
        ),
    ]


async def _first_lists(served: Serving, times: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds until a new stream has its list, and the CPU milliseconds of the server for it."""
    taken, cpu = [], []
    with undisturbed():
        for _ in range(times):
            used, before = served.process.cpu_seconds(), time.perf_counter()
            stream = served.plugin.lists()
            received = await stream.next()
            taken.append((received.at - before) * 1000)
            cpu.append((served.process.cpu_seconds() - used) * 1000)
            await stream.close()
    return taken, cpu


async def _changes(gpus: Node, served: Serving, times: int) -> list[float]:
    """Return the server's CPU milliseconds for each of some changed lists on one stream."""
    cpu = []
    for gpu in range(times):
        used = served.process.cpu_seconds()
        gpus.nvml.raise_event(gpu, data=RECOVERABLE_XID)
        await served.lists.next()
        cpu.append((served.process.cpu_seconds() - used) * 1000)
    return cpu


async def _memory_units() -> Figure:
    """Measure a node that says where its cards are: the stand-in's NUMA nodes come from a file."""
    with node(memory("64MiB")) as gpus:
        file = gpus.folder / "gpus.yaml"
        file.write_text("gpus:\n- {memory: 80GiB, count: 4, numaNode: 0}\n- {memory: 80GiB, count: 4, numaNode: 1}\n")
        async with serving(gpus, "--simulate", str(file)) as daemon:
            return single(
                "list of 10,240 memory units with NUMA node: length",
                "bytes",
                len(daemon.first_list),
                Goal("worst", 400_000),
            )
