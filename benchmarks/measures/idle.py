"""A quiet node: what the daemon costs while nothing happens.

With grpcio 1.85 the goals are out of reach: an idle `grpc.aio` process wakes up 6 to 11 times a second.
"""

import asyncio
import time

from benchmarks.daemon import Answers, bare_server, node, replicas, serving
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, single
from benchmarks.processes import MeasuredProcess

_SECONDS = 20.0
_SETTLING = 3.0
"""Seconds after which what starting brought about is over."""


async def measure(effort: Effort) -> list[Figure]:
    """Measure the daemon, and a bare server, each with one open stream."""
    with node(replicas(80)) as gpus:
        async with serving(gpus) as daemon:
            cpu, wakeups, threads = await _watch(daemon.process, effort)
            answers = Answers(devices=daemon.first_list)
        async with bare_server(gpus, answers) as floor:
            least_cpu, least_wakeups, _ = await _watch(floor.process, effort)
    return [
        single("idle: CPU", "% of a core", cpu, Goal("worst", 0.05), floor=least_cpu),
        single("idle: wake-ups", "1/s", wakeups, Goal("worst", 2), floor=least_wakeups, note=threads),
    ]


async def _watch(process: MeasuredProcess, effort: Effort) -> tuple[float, float, str]:
    """Return the share of a core in percent, the wake-ups a second, and those of each thread that woke."""
    await asyncio.sleep(effort.seconds(_SETTLING))
    began, cpu, wakeups = time.perf_counter(), process.cpu_seconds(), process.wakeups()
    await asyncio.sleep(effort.seconds(_SECONDS))
    passed, used = time.perf_counter() - began, process.cpu_seconds() - cpu
    woken = {thread: (count - wakeups.get(thread, 0)) / passed for thread, count in process.wakeups().items()}
    busiest = sorted((rate for rate in woken.values() if rate), reverse=True)
    note = f"by thread, of {len(woken)}: {', '.join(f'{rate:.1f}' for rate in busiest)}"
    return 100 * used / passed, sum(woken.values()), note
