"""The policy `packing` in an extender of 5,000 nodes: its answers, its memory beside that of `binpack`, and lessons."""

import itertools
from functools import partial

from benchmarks.cluster.extender import Cluster, Extender, cluster, extender
from benchmarks.cluster.objects import MEMORY, a_pod
from benchmarks.cluster.requests import pods, question
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary, single
from benchmarks.kubelet.plugin import milliseconds, undisturbed
from benchmarks.measures.extender import answers

_NODES = 5000
_QUESTIONS = 1200
_PODS = 2500
"""Pods that are counted: a lesson is due after every 1,000."""


async def measure(effort: Effort) -> list[Figure]:
    """Measure two extenders, one after the other, beside a large cluster where pods come and go."""
    async with cluster(effort.times(_NODES)) as large:
        async with extender(large) as ready:
            with large.busy():
                await _asked(large, ready, effort.times(_QUESTIONS))
            before = ready.process.memory().resident
        async with extender(large, "--placement", "packing") as ready:
            with large.busy():
                asked = await answers(large, ready, effort.times(_QUESTIONS), "packing: ")
                memory = ready.process.memory().resident - before
                others = await _others(large, ready, effort.times(_QUESTIONS))
                lessons = await _lessons(large, ready, effort.times(_PODS))
    note = f"{len(large.names):,} nodes of 8 GPUs; what the extender takes beyond that with binpack"
    state = single("packing: memory of the state", "MiB", max(0.0, memory), Goal("worst", 100), note=note)
    return [state, *asked, others, lessons]


async def _asked(of: Cluster, ready: Extender, times: int) -> None:
    """Ask what `answers` asks, so that the extender keeps as much of it."""
    for pod in itertools.islice(pods(), times):
        for verb in ("filter", "prioritize"):
            await ready.caller.post(verb, question(pod, of.names))


async def _others(of: Cluster, ready: Extender, times: int) -> Figure:
    """Measure the scores for pods without GPUs."""
    asked = question(a_pod("without", {}), of.names)
    with undisturbed():
        spent = [await milliseconds(partial(ready.caller.post, "prioritize-others", asked)) for _ in range(times)]
    return Figure("packing: prioritize-others", "ms", Summary.of(spent), goals=(Goal("p99", 10),))


async def _lessons(of: Cluster, ready: Extender, times: int) -> Figure:
    """Measure filter for pods that count, while lessons are due."""
    spent = list[float]()
    with undisturbed():
        for number in range(times):
            pod = a_pod(f"counts-{number}", {MEMORY: 1 + number % 40})
            pod["metadata"]["uid"] = f"uid-of-counts-{number}"
            spent.append(await milliseconds(partial(ready.caller.post, "filter", question(pod, of.names))))
    note = f"{times:,} pods of 40 sizes, with a lesson after every 1,000"
    return Figure("packing: filter while lessons are due", "ms", Summary.of(spent), goals=(Goal("p99", 10),), note=note)
