"""A restart of the daemon: from its start until the kubelet may allocate every unit again, those that pods hold too."""

import time

from benchmarks.daemon import Config, Node, memory, node, replicas
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod

_SHARED = {"memory": ("aliyun.com/gpu-mem", memory("GiB"), 640), "replicas": ("nvidia.com/gpu", replicas(80), 80)}
_PODS = 5


async def measure(effort: Effort) -> list[Figure]:
    """Measure units of memory and replicas, with pods that hold some of them over the restart."""
    return [
        Figure(
            f"daemon started again -> {units} units of {what} are healthy",
            "ms",
            Summary.of(await _restarts(resource, config, units, effort.times(10))),
            goals=(Goal("median", 1000),),
            note=f"{_PODS} pods hold units; the kubelet is the embedded one, and the daemon was killed",
        )
        for what, (resource, config, units) in _SHARED.items()
    ]


async def _restarts(resource: str, config: Config, units: int, times: int) -> list[float]:
    with node(config) as gpus:
        async with EmbeddedKubelet(gpus.folder) as kubelet:
            await _healthy_after_start(gpus, kubelet, resource, units)
            async with gpus.daemon():
                await kubelet.wait_for(lambda known: known.allocatable() == {resource: units})
                for number in range(_PODS):
                    await kubelet.admit(Pod(f"pod-{number}", [Container("main", {resource: 1})]))
            return [await _healthy_after_start(gpus, kubelet, resource, units) for _ in range(times)]


async def _healthy_after_start(gpus: Node, kubelet: EmbeddedKubelet, resource: str, units: int) -> float:
    """Return the milliseconds from the start of a daemon until all units are healthy; then kill it."""
    before = time.perf_counter()
    async with gpus.daemon() as process:
        await process.outlives(kubelet.wait_for(lambda known: known.allocatable() == {resource: units}))
        taken = (time.perf_counter() - before) * 1000
        process.process.kill()
        await process.process.wait()
    await kubelet.wait_for(lambda known: known.allocatable() == {resource: 0})
    return taken
