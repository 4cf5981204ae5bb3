"""`gpushare inspect` over 5,000 nodes, beside a program that reads and decodes the same and shows nothing."""

import resource
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.cluster.extender import Cluster, cluster
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary
from benchmarks.processes import python
from gpushare_plugin.kube.whole_cluster.reading import PAGE

_NODES = 5000


class _Ran(NamedTuple):
    """Seconds from the start of a process to its end, and those of CPU that it took."""

    wall: float
    cpu: float


async def measure(effort: Effort) -> list[Figure]:
    """Measure the command and its floor in turns, each from the start of its process to the end."""
    shown, floor = list[_Ran](), list[_Ran]()
    async with cluster(effort.times(_NODES)) as large:
        for _ in range(effort.times(8)):
            shown.append(await _ran(large, "-m", "gpushare_plugin", "inspect", "--kubeconfig", large.kubeconfig))
            floor.append(await _ran(large, "-m", "benchmarks.floors.reader", large.kubeconfig, str(PAGE)))
    name = f"inspect, {len(large.names):,} nodes"
    return [
        Figure(
            f"{name}: start -> printed",
            "s",
            Summary.of([each.wall for each in shown]),
            Summary.of([each.wall for each in floor]),
            (Goal("median", 3),),
        ),
        Figure(
            f"{name}: CPU",
            "s",
            Summary.of([each.cpu for each in shown]),
            Summary.of([each.cpu for each in floor]),
        ),
    ]


async def _ran(of: Cluster, *arguments: str | Path) -> _Ran:
    """Run Python with these arguments until it has done its work; no other child ends meanwhile."""
    output, before, began = of.folder / "output", _cpu_of_children(), time.perf_counter()
    async with python(*arguments, output=output) as process:
        if status := await process.process.wait():
            raise RuntimeError(f"exit status {status}: {output.read_text()[-2000:]}")
        return _Ran(time.perf_counter() - began, _cpu_of_children() - before)


def _cpu_of_children() -> float:
    """Return the seconds of CPU of children that have ended (getrusage(2))."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
