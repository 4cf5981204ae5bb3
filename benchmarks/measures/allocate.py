"""`Allocate`: one call after another, alone and while a long device list is sent again and again."""

import asyncio
import time

from benchmarks.daemon import Answers, Node, Serving, bare_server, node, replicas, serving
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary
from benchmarks.kubelet.plugin import Call, allocation, in_turns, milliseconds, undisturbed, unit_ids

RECOVERABLE_XID = 63
"""An XID after which a GPU is healthy again once it was seen to be well."""

_BETWEEN_LISTS = 0.1
_SECONDS = 8.0
_US = 1000.0


async def measure(effort: Effort) -> list[Figure]:
    """Measure both."""
    return [await _alone(effort), await _beside_lists(effort)]


async def _alone(effort: Effort) -> Figure:
    with node(replicas(80)) as gpus:
        async with serving(gpus) as daemon, bare_server(gpus, await _answers(daemon)) as floor:
            taken, least = await in_turns([_allocate(daemon, daemon), _allocate(floor, daemon)], effort.times(5000))
    return Figure(
        "Allocate, 80 units",
        "µs",
        Summary.of([each * _US for each in taken]),
        Summary.of([each * _US for each in least]),
        (Goal("median", 1.25, of_floor=True), Goal("p99", 2.0, of_floor=True)),
    )


async def _beside_lists(effort: Effort) -> Figure:
    # Of two looks the first comes with the event and the second one list later, so each event makes two lists.
    with node(replicas(8000, goodProbes=2, probeSeconds=_BETWEEN_LISTS)) as gpus:
        seconds = effort.seconds(_SECONDS)
        async with serving(gpus) as daemon:
            answers = await _answers(daemon)
            taken, lists = await _while_sending(gpus, daemon, _allocate(daemon, daemon), 2 * _BETWEEN_LISTS, seconds)
        async with bare_server(gpus, answers, "--events") as floor:
            least, _ = await _while_sending(gpus, floor, _allocate(floor, daemon), _BETWEEN_LISTS, seconds)
    return Figure(
        "Allocate, 8,000 units listed 10 times a second",
        "ms",
        Summary.of(taken),
        Summary.of(least),
        (Goal("p99", 5.0),),
        note=f"{lists / max(seconds, _BETWEEN_LISTS):.1f} lists a second",
    )


async def _answers(daemon: Serving) -> Answers:
    answer = await daemon.plugin.calls.Allocate(allocation(unit_ids(daemon.first_list)[:1]))
    return Answers(allocate=answer.SerializeToString(), devices=daemon.first_list)


def _allocate(asked: Serving, daemon: Serving) -> Call:
    """Return the call that asks for one unit of the first GPU, which stays healthy."""
    request = allocation(unit_ids(daemon.first_list)[:1])
    return lambda: asked.plugin.calls.Allocate(request)


async def _while_sending(
    gpus: Node, asked: Serving, call: Call, between_events: float, seconds: float
) -> tuple[list[float], int]:
    """Make calls while GPUs but the first fail again and again; return their milliseconds, and how many lists came."""
    received = 0

    async def count() -> None:
        nonlocal received
        while True:
            await asked.lists.next()
            received += 1

    async def fail() -> None:
        gpu = 0
        while True:
            gpus.nvml.raise_event(1 + gpu % (len(gpus.nvml.gpus) - 1), data=RECOVERABLE_XID)
            gpu += 1
            await asyncio.sleep(between_events)

    background = [asyncio.create_task(count()), asyncio.create_task(fail())]
    try:
        taken = list[float]()
        with undisturbed():
            end = time.perf_counter() + seconds
            while not taken or time.perf_counter() < end:
                taken.append(await milliseconds(call))
    finally:
        for task in background:
            task.cancel()
        await asyncio.wait(background)
    return taken, received
