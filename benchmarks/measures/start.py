"""Process start: until the first `Register`, beside the imports that no daemon can do without."""

import asyncio
import os
import time
from pathlib import Path

from benchmarks.daemon import Node, node, replicas
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary, single
from benchmarks.kubelet.registration import RegistrationServer
from benchmarks.processes import python

_SLOW_MS = 200


async def measure(effort: Effort) -> list[Figure]:
    """Measure a driver that starts at once, one that takes its time, and what is imported before it is needed."""
    taken, least = [], []
    with node(replicas(80)) as gpus:
        for _ in range(effort.times(10)):
            taken.append(await _start(gpus))
            least.append(await _imports(gpus.folder))
        modules = await _modules(gpus)
    with node(replicas(80), init_delay_ms=_SLOW_MS) as gpus:
        slow = [await _start(gpus) for _ in range(effort.times(5))]
        initialised = sum(count for name, count in gpus.nvml.calls().items() if name.startswith("nvmlInit"))
    floor = Summary.of(least)
    kubernetes = [name for name in modules if name.split(".")[0] in {"kubernetes", "kubernetes_asyncio"}]
    return [
        Figure("process start -> Register", "ms", Summary.of(taken), floor, (Goal("median", 1.15, of_floor=True),)),
        Figure(f"process start -> Register, NVML takes {_SLOW_MS} ms", "ms", Summary.of(slow), floor),
        single(
            "process start, NVML initialised",
            "times",
            initialised / len(slow),
            Goal("worst", 1),
        ),
        single(
            "process start, modules of the Kubernetes client imported",
            "modules",
            len(kubernetes),
            Goal("worst", 0),
            note=f"of {len(modules)} modules",
        ),
    ]


async def _start(gpus: Node) -> float:
    """Return the milliseconds from the start of the process to its registration."""
    async with RegistrationServer(gpus.plugin_directory) as kubelet:
        before = time.perf_counter()
        async with gpus.daemon() as process:
            return ((await process.outlives(kubelet.next())).at - before) * 1000


async def _imports(folder: Path) -> float:
    """Return the milliseconds from the start of Python until it has imported the libraries."""
    there = asyncio.Event()
    loop = asyncio.get_running_loop()
    pipe = folder / "imported"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    loop.add_reader(descriptor, there.set)
    try:
        before = time.perf_counter()
        async with python("-m", "benchmarks.floors.imports", output=pipe) as process:
            await process.outlives(there.wait())
            return (time.perf_counter() - before) * 1000
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        pipe.unlink()


async def _modules(gpus: Node) -> list[str]:
    """Return the modules the daemon has imported by its registration."""
    async with (
        RegistrationServer(gpus.plugin_directory) as kubelet,
        gpus.daemon(interpreter=("-X", "importtime")) as process,
    ):
        await process.outlives(kubelet.next())
        lines = process.output.read_text().splitlines()
    return [line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")]
