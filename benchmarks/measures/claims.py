"""`NodePrepareResources` for claims that are prepared already, and `GetInfo` while 50 pods come at once.

What is measured is the plugin alone: what prepares a claim is not.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary
from benchmarks.kubelet.claims import DRIVER, Asked, request
from benchmarks.kubelet.plugin import Call, in_turns, milliseconds, undisturbed
from benchmarks.processes import python
from gpushare_plugin.kubelet.api.pluginregistration_pb2 import InfoRequest
from gpushare_plugin.kubelet.dra_plugin.sockets import PLUGINS, REGISTRY

PODS = 50
"""Pods that come to a node at the same time."""

_LOOK_EVERY = 0.005
_US = 1000.0


async def measure(effort: Effort) -> list[Figure]:
    """Measure both."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="gs-") as name:
        folder = Path(name)
        async with _plugin(folder) as plugin, _floor(folder, plugin) as floor:
            return [await _prepare(plugin, floor, effort), await _info(plugin, floor, folder, effort)]


async def _prepare(plugin: Asked, floor: Asked, effort: Effort) -> Figure:
    taken, least = await in_turns([_prepared(plugin), _prepared(floor)], effort.times(5000))
    return Figure(
        "NodePrepareResources, a prepared claim",
        "µs",
        Summary.of([each * _US for each in taken]),
        Summary.of([each * _US for each in least]),
        (Goal("median", 1.5, of_floor=True),),
    )


async def _info(plugin: Asked, floor: Asked, folder: Path, effort: Effort) -> Figure:
    """Ask who serves, first while nobody else asks, then while pods come."""
    (idle,) = await in_turns([_told(plugin)], effort.times(2000))
    measured, bare = [await _meanwhile(each, folder, effort) for each in (plugin, floor)]
    return Figure(
        f"GetInfo while {PODS} pods come at once, again and again",
        "µs",
        measured,
        Summary.of([Summary.of(idle).median * _US]),
        (Goal("worst", 20.0, of_floor=True),),
        note=f"the worst took {measured.worst:.0f}, with a bare server {bare.worst:.0f}; the floor is the median while "
        "nobody else asks",
    )


async def _meanwhile(asked: Asked, folder: Path, effort: Effort) -> Summary:
    """Ask who serves while pods come."""
    async with _pods(asked, folder / "pods.log"):
        taken = list[float]()
        with undisturbed():
            end = time.perf_counter() + effort.seconds(5.0)
            while not taken or time.perf_counter() < end:
                taken.append(await milliseconds(_told(asked)))
    return Summary.of([each * _US for each in taken])


@contextlib.asynccontextmanager
async def _pods(plugin: Asked, output: Path) -> AsyncIterator[None]:
    """Have pods come as long as the block lasts; the block begins when the first pods have been answered."""

    async def answered() -> None:
        while not _has_content(output):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(_LOOK_EVERY)

    arguments = ("-m", "benchmarks.kubelet.pods", plugin.endpoint, str(PODS))
    async with python(*arguments, output=output) as process:
        await process.outlives(answered())
        yield


def _has_content(file: Path) -> bool:
    return file.stat().st_size > 0


def _prepared(asked: Asked) -> Call:
    pod = request()
    return lambda: asked.calls.NodePrepareResources(pod)


def _told(asked: Asked) -> Call:
    return lambda: asked.registration.GetInfo(InfoRequest())


@contextlib.asynccontextmanager
async def _plugin(folder: Path) -> AsyncIterator[Asked]:
    root = folder / "kubelet"
    root.mkdir()
    async with python("-m", "benchmarks.kubelet.claims", root, output=folder / "plugin.log") as process:
        endpoint = await process.outlives(_first(root / PLUGINS / DRIVER))
        registration = await process.outlives(_first(root / REGISTRY))
        async with Asked(endpoint, registration) as asked:
            yield asked


@contextlib.asynccontextmanager
async def _floor(folder: Path, plugin: Asked) -> AsyncIterator[Asked]:
    answer, endpoint, registration = (folder / name for name in ("answer", "e", "r"))
    answer.write_bytes((await plugin.calls.NodePrepareResources(request())).SerializeToString())
    arguments = ("-m", "benchmarks.floors.claims", endpoint, registration, answer)
    async with python(*arguments, output=folder / "floor.log"), Asked(endpoint, registration) as asked:
        yield asked


async def _first(directory: Path) -> Path:
    """Wait for the only socket of a directory."""
    while not (found := _sockets(directory)):  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(_LOOK_EVERY)
    return found[0]


def _sockets(directory: Path) -> list[Path]:
    return list(directory.glob("*.sock"))
