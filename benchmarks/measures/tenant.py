"""Pods of others beside a hostile tenant: how long they wait, what stays of the tenant's pods, and the Leases.

The floor is beside the same hostile pods.
"""

import asyncio

from benchmarks.cluster.attacked import Attacked, attacked
from benchmarks.cluster.tenant import UNFOLLOWED
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary, single
from benchmarks.kubelet.plugin import undisturbed

_NODES, _PARTITIONED = 200, 20
_HOSTILE = 1000
_PODS = 60
_EVERY = 60 / 50
"""Seconds between two pods of others of one kind: 50 a minute."""

Times = dict[str, list[float]]


async def measure(effort: Effort) -> list[Figure]:
    """Measure pods without the tenant, beside it, and beside it once more; what a second round adds is what stays."""
    hostile, pods = effort.times(_HOSTILE), effort.times(_PODS)
    async with attacked(effort.times(_NODES), effort.times(_PARTITIONED)) as found:
        alone = await _served(found, "alone", pods)
        seconds = effort.seconds(_PODS * _EVERY)
        async with found.tenant(hostile, seconds, UNFOLLOWED):
            floor = await _served(found, "floor", pods)
        beside, memory = Times(), list[dict[str, float]]()
        for number in range(2):
            async with found.tenant(hostile, seconds):
                for kind, times in (await _served(found, f"beside-{number}", pods)).items():
                    beside.setdefault(kind, []).extend(times)
            memory.append(found.memory)
        lost = found.lost
    return [
        *(
            Figure(
                f"pod -> {kind}, beside {hostile:,} hostile pods",
                "ms",
                Summary.of(beside[kind]),
                Summary.of(floor[kind]),
                (Goal("p99", 2, of_floor=True),),
                "the floor is beside as many objects of the same content that neither program follows",
            )
            for kind in alone
        ),
        *(Figure(f"pod -> {kind}, without any tenant", "ms", Summary.of(alone[kind])) for kind in alone),
        *(
            single(
                f"{program}: memory that a second round of hostile pods adds",
                "MiB",
                memory[1][program] - memory[0][program],
                Goal("worst", 10),
                note=f"{memory[0][program]:.0f} MiB after the first",
            )
            for program in memory[0]
        ),
        single("Leases lost beside hostile pods", "times", lost, Goal("worst", 0)),
    ]


async def _served(found: Attacked, name: str, pods: int) -> Times:
    """Return the milliseconds of pods that come one after another."""
    times: Times = {"placed": [], "partitioned": []}
    with undisturbed():
        for number in range(pods):
            pause = asyncio.create_task(asyncio.sleep(_EVERY))
            times["placed"].append(await found.placed(f"{name}-placed-{number}"))
            times["partitioned"].append(await found.partitioned(f"{name}-partitioned-{number}"))
            await pause
    return times
