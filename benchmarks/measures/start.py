"""Process start: until the first `Register`, beside the imports that no daemon can do without."""

import asyncio
import os
import time
from pathlib import Path
from statistics import median

from benchmarks.daemon import Node, node, replicas
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary, single
from benchmarks.kubelet.registration import RegistrationServer
from benchmarks.processes import python

_START = "process start -> Register"
_SLOW_MS = 200
_VERY_SLOW_MS = 1000


async def measure(effort: Effort) -> list[Figure]:
    """Measure a driver that starts at once, two that take their time, and what is imported before it is needed."""
    taken, slow, very_slow, least = list[float](), list[float](), list[float](), list[float]()
    with (
        node(replicas(80)) as free,
        node(replicas(80), init_delay_ms=_SLOW_MS) as slower,
        node(replicas(80), init_delay_ms=_VERY_SLOW_MS) as slowest,
    ):
        # Also leaves byte code of every module, as an image has it.
        modules = await _modules(free)
        await _imports(free.folder)
        # In turns, so that what else the machine does meanwhile hits all alike.
        for _ in range(effort.times(10)):
            taken.append(await _start(free))
            least.append(await _imports(free.folder))
            slow.append(await _start(slower))
            very_slow.append(await _start(slowest))
        initialised = sum(count for name, count in slower.nvml.calls().items() if name.startswith("nvmlInit"))
    floor = Summary.of(least)
    return [
        Figure(_START, "ms", Summary.of(taken), floor, (Goal("median", 1.5, of_floor=True),)),
        Figure(f"{_START}, NVML takes {_SLOW_MS} ms", "ms", Summary.of(slow), floor),
        Figure(f"{_START}, NVML takes {_VERY_SLOW_MS} ms", "ms", Summary.of(very_slow), floor),
        _longer(f"{_START}, NVML takes {_SLOW_MS} ms: longer than with a free NVML", slow, median(taken), 60),
        _longer(f"{_START}, NVML takes {_VERY_SLOW_MS} ms: longer than NVML itself", very_slow, _VERY_SLOW_MS, 150),
        single("process start, NVML initialised", "times", initialised / len(slow), Goal("worst", 1)),
        _kubernetes(modules),
    ]


def _longer(name: str, taken: list[float], than: float, most: float) -> Figure:
    """Return by how many milliseconds the median is longer than something else."""
    return single(name, "ms", median(taken) - than, Goal("median", most))


def _kubernetes(modules: list[str]) -> Figure:
    client = [name for name in modules if name.split(".")[0] in {"kubernetes", "kubernetes_asyncio"}]
    return single(
        "process start, modules of the Kubernetes client imported",
        "modules",
        len(client),
        Goal("worst", 0),
        note=f"of {len(modules)} modules",
    )


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
