"""One daemon follows another on a node: for how long the kubelet refuses pods, and how many of a stream of pods."""

import asyncio
import time
from contextlib import AsyncExitStack

from benchmarks.daemon import Node, memory, node
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary
from benchmarks.processes import MeasuredProcess
from gpushare_plugin.testing.kubelet import AdmissionError, Container, EmbeddedKubelet, Pod

RESOURCE = "aliyun.com/gpu-mem"
UNITS = 640
_BETWEEN_PODS = 0.002
_SETTLING = 0.3
"""Seconds before and after an exchange in which pods are admitted."""
_LOOK_EVERY = 0.02


async def measure(effort: Effort) -> list[Figure]:
    """Measure a daemon that starts after the end of the one before, and one that stands by, with two kubelets."""
    times = effort.times(10)
    after = await _exchanges(times, knows_sockets=False, stands_by=False)
    until_1_36 = await _exchanges(times, knows_sockets=False, stands_by=True)
    from_1_37 = await _exchanges(times, knows_sockets=True, stands_by=True)
    note = "the kubelet is the embedded one; a pod every 2 ms"
    return [
        Figure("next daemon starts -> pods are admitted", "ms", Summary.of(after), note=note),
        Figure("next daemon stands by, kubelet of 1.36: pods are refused for", "ms", Summary.of(until_1_36), note=note),
        Figure(
            "next daemon stands by, kubelet of 1.37: pods are refused for",
            "ms",
            Summary.of(from_1_37),
            goals=(Goal("worst", 0),),
            note=note,
        ),
    ]


async def _exchanges(times: int, *, knows_sockets: bool, stands_by: bool) -> list[float]:
    """Return for how many milliseconds pods were refused, for each exchange of the daemon."""
    with node(memory("GiB")) as gpus:
        async with EmbeddedKubelet(gpus.folder, knows_sockets=knows_sockets) as kubelet, AsyncExitStack() as stack:
            daemon = await stack.enter_async_context(gpus.daemon())
            await _serves(kubelet, daemon)
            found = []
            for _ in range(times):
                refused: list[float] = []
                stream = asyncio.create_task(_pods(kubelet, refused))
                await asyncio.sleep(_SETTLING)
                daemon = await _exchange(stack, gpus, daemon, stands_by=stands_by)
                await _serves(kubelet, daemon)
                await asyncio.sleep(_SETTLING)
                stream.cancel()
                await asyncio.wait([stream])
                found.append(1000 * (refused[-1] - refused[0]) if refused else 0.0)
            return found


async def _serves(kubelet: EmbeddedKubelet, daemon: MeasuredProcess) -> None:
    await daemon.outlives(kubelet.wait_for(lambda known: known.allocatable() == {RESOURCE: UNITS}))


async def _exchange(stack: AsyncExitStack, gpus: Node, daemon: MeasuredProcess, *, stands_by: bool) -> MeasuredProcess:
    """End a daemon, and return the one that follows."""
    if not stands_by:
        await _end(daemon)
    following = await stack.enter_async_context(gpus.daemon("--stand-by", "true"))
    if stands_by:
        await following.outlives(_stands_by(following))
        await _end(daemon)
    return following


async def _end(daemon: MeasuredProcess) -> None:
    daemon.process.terminate()
    await daemon.process.wait()


async def _stands_by(daemon: MeasuredProcess) -> None:
    while "standing_by" not in daemon.output.read_text():  # noqa: ASYNC110 - another process writes the file
        await asyncio.sleep(_LOOK_EVERY)


async def _pods(kubelet: EmbeddedKubelet, refused: list[float]) -> None:
    """Admit pods until cancelled, and add the time of each refusal."""
    while True:
        pod = Pod("pod", [Container("main", {RESOURCE: 3})])
        try:
            await kubelet.admit(pod)
        except AdmissionError:
            refused.append(time.perf_counter())
        else:
            kubelet.delete(pod)
        await asyncio.sleep(_BETWEEN_PODS)
