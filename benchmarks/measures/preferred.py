"""`GetPreferredAllocation`: the kubelet offers every unit there is, in any order, and wants some of them."""

import random
from dataclasses import replace

from benchmarks.daemon import A100, WHOLE, Answers, Config, Serving, bare_server, node, replicas, serving
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary, single
from benchmarks.kubelet.plugin import Call, in_turns, preferred, unit_ids
from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.testing.nvml import FakeMigInstance

_LARGEST = 60_000
"""Near the most that the kubelet takes in one list (4 MiB); limits are those for 80,000 units, by proportion."""
_IN_SEVEN = replace(A100, mig_enabled=True, mig_instances=(FakeMigInstance("1g.10gb"),) * 7)
_INSTANCES: Config = {"version": "v1", "flags": {"migStrategy": "single"}}
_MANY_INSTANCES_MS = 20.0


async def measure(effort: Effort) -> list[Figure]:
    """Measure 8,000 units, as many as a list can hold, whole GPUs, and MIG instances."""
    largest = max(1000, effort.times(_LARGEST))
    return [
        *await _asked(replicas(8000), "8,000 units", {1: 10, 4: 10, 100: 12}, effort.times(60)),
        *await _asked(replicas(largest), f"{largest:,} units", {1: 90, 4: 90, 100: 90}, effort.times(10)),
        *await _whole_gpus(effort.times(1000)),
        await _instances(8, 28, effort.times(200)),
        await _instances(8, 56, effort.times(200)),
        await _instances(16, 112, effort.times(200)),
    ]


async def _instances(cards: int, size: int, times: int) -> Figure:
    """Ask for so many of the instances of so many cards, each cut in seven."""
    with node(_INSTANCES, cards, card=_IN_SEVEN) as gpus:
        async with serving(gpus) as daemon:
            request = preferred(unit_ids(daemon.first_list), size)
            answer = await daemon.plugin.calls.GetPreferredAllocation(request)
            async with bare_server(gpus, Answers(preferred=answer.SerializeToString())) as floor:
                taken, least = await in_turns([_ask(daemon, request), _ask(floor, request)], times)
    return Figure(
        f"GetPreferredAllocation, {size} of {cards} x 7 MIG instances",
        "ms",
        Summary.of(taken),
        Summary.of(least),
        (Goal("median", _MANY_INSTANCES_MS),),
    )


async def _asked(config: Config, name: str, limits: dict[int, float], times: int) -> list[Figure]:
    figures = []
    with node(config) as gpus:
        async with serving(gpus) as daemon:
            ids = unit_ids(daemon.first_list)
            random.Random(1).shuffle(ids)  # noqa: S311 - the order means nothing
            for size, limit in limits.items():
                request = preferred(ids, size)
                answer = await daemon.plugin.calls.GetPreferredAllocation(request)
                async with bare_server(gpus, Answers(preferred=answer.SerializeToString())) as floor:
                    taken, least = await in_turns([_ask(daemon, request), _ask(floor, request)], times)
                title = f"GetPreferredAllocation, {name}, size {size}"
                goals = (Goal("median", limit),)
                figures.append(Figure(title, "ms", Summary.of(taken), Summary.of(least), goals))
    return figures


def _ask(asked: Serving, request: api.PreferredAllocationRequest) -> Call:
    return lambda: asked.plugin.calls.GetPreferredAllocation(request)


async def _whole_gpus(times: int) -> list[Figure]:
    with node(WHOLE) as gpus:
        async with serving(gpus) as daemon:
            request = preferred(unit_ids(daemon.first_list), len(gpus.nvml.gpus) // 2)
            answer = await daemon.plugin.calls.GetPreferredAllocation(request)
            before = gpus.nvml.calls()
            async with bare_server(gpus, Answers(preferred=answer.SerializeToString())) as floor:
                taken, least = await in_turns([_ask(daemon, request), _ask(floor, request)], times)
            called = gpus.nvml.calls() - before
    return [
        Figure(
            "GetPreferredAllocation, 4 of 8 whole GPUs",
            "ms",
            Summary.of(taken),
            Summary.of(least),
            (Goal("median", 2.0, of_floor=True),),
        ),
        single(
            "GetPreferredAllocation, NVML calls meanwhile",
            "calls",
            # The wait for events goes on in its own thread, whatever is asked.
            called.total() - called["nvmlEventSetWait_v2"],
            Goal("worst", 0),
        ),
    ]
