"""One round of decisions of automatic partitioning: 1,000 nodes of 8 GPUs, 500 pods that wait for slices."""

import json
import tempfile
from pathlib import Path
from typing import Any, cast

from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary, single
from benchmarks.processes import python

_NODES, _PODS, _ROUNDS = 1000, 500, 8

_CLUSTERS = {"with room": (0.7, 0.8), "without room": (1.0, 1.0)}
"""How much of the GPUs is cut into slices, and how many of these pods hold: all of them, or none, find room."""


async def measure(effort: Effort) -> list[Figure]:
    """Measure rounds with different pods each, the first of a new process among them, and their memory."""
    nodes, pods = effort.times(_NODES), effort.times(_PODS)
    figures = []
    for words, (cut, held) in _CLUSTERS.items():
        with tempfile.TemporaryDirectory() as folder:
            arguments = map(str, (nodes, pods, effort.times(_ROUNDS), cut, held))
            found = await _measured(Path(folder), *arguments)
        name = f"partition round, {nodes:,} nodes, {pods:,} pods, {words}"
        figures += [
            Figure(
                f"{name}: CPU",
                "s",
                Summary.of(found["seconds"]),
                goals=(Goal("worst", 1),),
                note=f"{found['served']:.0f} pods get slices; the worst is the first round of a process",
            ),
            single(
                f"{name}: memory of a round",
                "MiB",
                found["most"] - found["before"],
                note=f"the process has {found['most']:.0f} MiB at most, {found['before']:.0f} with the nodes alone",
            ),
        ]
    return figures


async def _measured(folder: Path, *arguments: str) -> dict[str, Any]:
    """Return what a process of its own measured."""
    output = folder / "output"
    async with python("-m", "benchmarks.cluster.partition", *arguments, output=output) as process:
        if status := await process.process.wait():
            raise RuntimeError(f"exit status {status}: {output.read_text()[-2000:]}")
        return cast("dict[str, Any]", json.loads(output.read_text()))
