"""The scheduler extender of 5,000 nodes: its start and memory, its answers, and pods bound a second."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from benchmarks.cluster.extender import COME_AND_GO, Caller, Cluster, Extender, cluster, constant, extender
from benchmarks.cluster.objects import MEMORY, Object, a_pod
from benchmarks.cluster.requests import NEW_EVERY, is_new, pods, question
from benchmarks.cluster.wire import decoded
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary, single
from benchmarks.kubelet.plugin import milliseconds, undisturbed

_NODES = 5000
_NODES_OF_RATE = 1000
_QUESTIONS = 1200
_BINDINGS = 400
_PODS = 1000
_AT_ONCE = 16
"""Bindings in progress at a time; kube-scheduler binds beside its next decision."""


async def measure(effort: Effort) -> list[Figure]:
    """Measure an extender beside a large cluster where pods come and go, and one that binds as fast as it can."""
    async with cluster(effort.times(_NODES)) as large, extender(large) as ready:
        note = f"{len(large.names):,} nodes of 8 GPUs; {COME_AND_GO:g} pods a second end and as many start"
        started = single("extender start -> ready", "s", ready.ready_after, Goal("worst", 10), note=note)
        with large.busy():
            answered = await answers(large, ready, effort.times(_QUESTIONS))
            binding = await _bindings(large, ready.caller, effort.times(_BINDINGS))
        memory = ready.process.memory()
    async with cluster(effort.times(_NODES_OF_RATE)) as small, extender(small) as ready:
        rate = await _rate(small, ready, effort.times(_PODS))
    resident = single(
        "extender: resident memory",
        "MiB",
        memory.resident,
        Goal("worst", 600),
        note=f"PSS {memory.proportional:.1f}, own {memory.own:.1f}",
    )
    return [started, resident, *answered, *binding, rate]


async def answers(of: Cluster, ready: Extender, times: int, name: str = "") -> list[Figure]:
    """Measure filter and prioritize in turns with a server that answers what they answered first.

    The names of the figures begin with `name`.
    """
    verbs, calls = ("filter", "prioritize"), ready.caller
    taken = {verb: Answers([], [], [], []) for verb in verbs}
    first = question(next(pods()), of.names)
    constants = {verb: await calls.post(verb, first) for verb in verbs}
    async with constant(of.folder / f"{name}constant", constants) as floor:
        with undisturbed():
            for number, pod in enumerate(itertools.islice(pods(), times)):
                asked = question(pod, of.names)
                for verb in verbs:
                    before = ready.process.cpu_seconds()
                    spent = await milliseconds(partial(calls.post, verb, asked))
                    taken[verb].cpu.append(1000 * (ready.process.cpu_seconds() - before))
                    taken[verb].all.append(spent)
                    if is_new(number):
                        taken[verb].new.append(spent)
                    taken[verb].floor.append(await milliseconds(partial(floor.post, verb, asked)))
    sizes = {verb: f"{len(first) // 1024} KiB asked, {len(constants[verb]) // 1024} answered" for verb in verbs}
    return [
        figure
        for verb in verbs
        for figure in taken[verb].figures(
            f"{name}{verb}, {len(of.names):,} nodes", f"{sizes[verb]}; {taken[verb].tail}"
        )
    ]


class Answers(NamedTuple):
    """Milliseconds: of all requests, CPU of the extender meanwhile, of requests like no other, and of the floor."""

    all: list[float]
    cpu: list[float]
    new: list[float]
    floor: list[float]

    @property
    def tail(self) -> str:
        """Which part is of a new kind."""
        return f"one of {NEW_EVERY} requests is like no other"

    def figures(self, name: str, note: str) -> Iterator[Figure]:
        """Yield the figure of all, and that of new requests, where there were any."""
        floor = Summary.of(self.floor)
        yield Figure(name, "ms", Summary.of(self.all), floor, (Goal("p99", 10),), note)
        yield Figure(f"{name}: CPU of the extender", "ms", Summary.of(self.cpu))
        if self.new:
            yield Figure(f"{name}, a new request", "ms", Summary.of(self.new), floor)


async def _bindings(of: Cluster, calls: Caller, times: int) -> list[Figure]:
    """Measure bind in turns with the Binding that it makes, posted by this process."""
    taken, alone = list[float](), list[float]()
    with undisturbed():
        for number in range(times):
            pod = await of.create(a_pod(f"bound-{number}", {MEMORY: 4}))
            node = _best(await calls.post("prioritize", question(pod, of.names)))
            taken.append(await milliseconds(partial(calls.bind, pod, node)))
            annotations = await of.annotations(pod)
            other = await of.create(a_pod(f"alone-{number}", {}))
            alone.append(await milliseconds(partial(of.bind, other, node, annotations)))
    api_call = Summary.of(alone)
    besides = [max(0.0, each - api_call.median) for each in taken]
    return [
        Figure("bind", "ms", Summary.of(taken), api_call, note="the floor is the Binding alone, posted by the client"),
        Figure("bind, besides the API call", "ms", Summary.of(besides), goals=(Goal("p99", 15),)),
    ]


async def _rate(of: Cluster, ready: Extender, times: int) -> Figure:
    """Measure pods a second through filter, prioritize and bind."""
    waiting = [await of.create(a_pod(f"rate-{number}", {MEMORY: 1 + number % 4})) for number in range(times)]
    questions = [question(pod, of.names) for pod in waiting]
    room = asyncio.Semaphore(_AT_ONCE)

    again = 0

    async def bind(pod: Object, asked: bytes, node: str) -> None:
        """Bind a pod; where others took the units meanwhile, ask again, as kube-scheduler does."""
        nonlocal again
        async with room:
            while (refusal := await ready.caller.refused(pod, node)) is not None:
                again += 1
                if again > times:
                    raise RuntimeError(refusal)
                await ready.caller.post("filter", asked)
                node = _best(await ready.caller.post("prioritize", asked))

    before = ready.process.cpu_seconds()
    began = time.perf_counter()
    with undisturbed():
        async with asyncio.TaskGroup() as bindings:
            for pod, asked in zip(waiting, questions, strict=True):
                await ready.caller.post("filter", asked)
                node = _best(await ready.caller.post("prioritize", asked))
                bindings.create_task(bind(pod, asked, node))
    rate = times / (time.perf_counter() - began)
    cpu = 1000 * (ready.process.cpu_seconds() - before) / times
    return Figure(
        f"pods through filter, prioritize and bind, {len(of.names):,} nodes",
        "pods/s",
        Summary(rate, rate, rate, times),
        note=f"CPU of the extender a pod: {cpu:.2f} ms; {again} asked again",
    )


def _best(answer: bytes) -> str:
    """Return the node with the highest score."""
    best: str = max(decoded(answer), key=lambda each: each["Score"])["Host"]
    return best
