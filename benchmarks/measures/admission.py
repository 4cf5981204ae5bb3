"""Pods admitted by the embedded kubelet, one after another, and where the time goes."""

import time

from benchmarks.daemon import Answers, Node, bare_server, memory, node
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Summary
from benchmarks.kubelet.plugin import Plugin, allocation, preferred, undisturbed, unit_ids
from benchmarks.processes import MeasuredProcess
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod

RESOURCE = "aliyun.com/gpu-mem"
UNITS = 640


async def measure(effort: Effort) -> list[Figure]:
    """Measure the daemon, and a bare plugin for the same kubelet."""
    times = effort.times(300)
    with node(memory("GiB")) as gpus:
        async with EmbeddedKubelet(gpus.folder) as kubelet, gpus.daemon() as process:
            await kubelet.wait_for(lambda known: known.allocatable() == {RESOURCE: UNITS})
            taken, daemon_cpu, kubelet_cpu = await _admit(kubelet, process, times)
            answers = await _answers(gpus, kubelet)
        async with (
            EmbeddedKubelet(gpus.folder) as kubelet,
            bare_server(gpus, answers, "--register", kubelet.socket, RESOURCE) as floor,
        ):
            await kubelet.wait_for(lambda known: known.allocatable() == {RESOURCE: UNITS})
            least, floor_cpu, _ = await _admit(kubelet, floor.process, times)
    return [
        Figure(
            f"pod admitted, {UNITS} units free",
            "ms",
            Summary.of(taken),
            Summary.of(least),
            note=f"CPU a pod: daemon {daemon_cpu:.2f} ms, bare plugin {floor_cpu:.2f} ms, kubelet {kubelet_cpu:.2f} ms",
        ),
        Figure("pods admitted", "pods/s", _rate(taken), _rate(least)),
    ]


async def _admit(kubelet: EmbeddedKubelet, process: MeasuredProcess, times: int) -> tuple[list[float], float, float]:
    """Return the milliseconds of each pod, and the CPU milliseconds a pod of the plugin and of this process.

    Each pod ends before the next comes, so all of them find the same node.
    """
    taken = []
    plugin_cpu, own_cpu = process.cpu_seconds(), time.process_time()
    with undisturbed():
        for number in range(times):
            pod = Pod(f"pod-{number}", [Container("main", {RESOURCE: 1})])
            before = time.perf_counter()
            await kubelet.admit(pod)
            taken.append((time.perf_counter() - before) * 1000)
            kubelet.delete(pod)
    plugin_cpu, own_cpu = process.cpu_seconds() - plugin_cpu, time.process_time() - own_cpu
    return taken, 1000 * plugin_cpu / times, 1000 * own_cpu / times


async def _answers(gpus: Node, kubelet: EmbeddedKubelet) -> Answers:
    (registration,) = kubelet.registrations
    async with Plugin(gpus.plugin_directory / registration.endpoint) as plugin:
        devices = (await plugin.lists().next()).content
        ids = unit_ids(devices)
        chosen = await plugin.calls.GetPreferredAllocation(preferred(ids, 1))
        granted = await plugin.calls.Allocate(allocation(ids[:1]))
    return Answers(granted.SerializeToString(), chosen.SerializeToString(), devices)


def _rate(milliseconds: list[float]) -> Summary:
    rate = 1000 * len(milliseconds) / sum(milliseconds)
    return Summary(rate, rate, rate, len(milliseconds))
