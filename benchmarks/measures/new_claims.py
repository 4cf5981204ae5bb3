"""`NodePrepareResources` for new claims by the whole daemon: the first one, beside 500 others, and after a restart.

The floor of a new claim reads the same claim from the same API server, and writes the same files.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary
from benchmarks.kubelet.claim_node import ClaimNode, claim_node, prepare, unprepare, until_there
from benchmarks.kubelet.claims import Asked
from benchmarks.kubelet.plugin import Call, in_turns
from benchmarks.processes import python
from gpushare_plugin.kubelet.api import dra_v1_pb2 as api
from gpushare_plugin.node.claims.statuses import AFTER_ANSWERS

CLAIMS = 500

_US = 1000.0


async def measure(effort: Effort) -> list[Figure]:
    """Measure a node without any claim in turns with a node that has many, and then the start of their daemons."""
    async with claim_node() as empty, claim_node() as full:
        async with empty.served() as first, full.served() as last:
            held = [full.claim(number) for number in range(1, effort.times(CLAIMS) + 1)]
            await prepare(last, held)
            for each in held:
                await full.has_status(each)
            figures = await _prepared(_NewClaims(empty, first), _NewClaims(full, last), effort)
            await prepare(first, [lone := empty.claim(1)])
        return [*figures, await _restarts(empty, lone, full, held[0], effort.times(5))]


class _NewClaims:
    """Claims of a node that are prepared and given back, one after another."""

    def __init__(self, on: ClaimNode, asked: Asked) -> None:
        self.on = on
        self.asked = asked
        self.claim = on.claim(0)

    async def prepare(self) -> None:
        """Have the present claim prepared."""
        await prepare(self.asked, [self.claim])

    async def next(self) -> None:
        """Go on with another claim, once nothing of the preparation of this one goes on."""
        await self.on.has_status(self.claim)
        await unprepare(self.asked, self.claim)
        self.on.delete(self.claim)
        self.claim = self.on.claim(0)


async def _prepared(first: _NewClaims, last: _NewClaims, effort: Effort) -> list[Figure]:
    async with _floor(first.on, first.asked) as floor:
        calls: list[Call] = [first.prepare, floor, last.prepare]
        taken = await in_turns(calls, effort.times(200), [first.next, partial(_rest, floor), last.next])
    one, least, many = (Summary.of([each * _US for each in times]) for times in taken)
    name = "NodePrepareResources, a new claim"
    return [
        Figure(name, "µs", one, least, (Goal("median", 1.5, of_floor=True),)),
        Figure(
            f"{name} beside {CLAIMS} others",
            "µs",
            many,
            one,
            (Goal("median", 1.2, of_floor=True),),
            note="the floor is a claim beside no other",
        ),
    ]


async def _rest(floor: Call) -> None:
    """Wait for as long as passes between the claims of a daemon, and call once: a daemon gives a claim back."""
    await asyncio.sleep(2 * AFTER_ANSWERS)
    await floor()


@contextlib.asynccontextmanager
async def _floor(on: ClaimNode, asked: Asked) -> AsyncIterator[Call]:
    """Run the floor for a claim that the daemon has prepared before, and return its call."""
    claim = on.claim(0)
    request = api.NodePrepareResourcesRequest(claims=[claim])
    answer = (await asked.calls.NodePrepareResources(request)).SerializeToString()
    contents = [each.read_bytes() for each in on.files(claim)]
    await unprepare(asked, claim)
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="gs-") as name:
        folder = Path(name)
        for file, content in zip(("answer", "record", "specification"), (answer, *contents), strict=True):
            (folder / file).write_bytes(content)
        arguments = ("-m", "benchmarks.floors.new_claims", folder, on.url(claim))
        async with python(*arguments, output=folder / "output") as process:
            await process.outlives(until_there((folder / "registration").exists))
            async with Asked(folder / "endpoint", folder / "registration") as floor:
                yield lambda: prepare(floor, [claim])


async def _restarts(empty: ClaimNode, lone: api.Claim, full: ClaimNode, one: api.Claim, times: int) -> Figure:
    taken, least = [], []
    for _ in range(times):
        least.append(await _ready_after(empty, lone))
        taken.append(await _ready_after(full, one))
    return Figure(
        f"daemon started again with {CLAIMS} claims prepared -> answers: longer than with 1 claim",
        "ms",
        Summary.of([max(0.0, Summary.of(taken).median - Summary.of(least).median)]),
        goals=(Goal("median", 1000),),
        note=f"with 1 claim after {Summary.of(least).median:.0f} ms",
    )


async def _ready_after(on: ClaimNode, claim: api.Claim) -> float:
    """Return the milliseconds from the start of a daemon until it has answered for a claim prepared before."""
    before = time.perf_counter()
    async with on.daemon() as process, on.connected(process) as asked:
        await prepare(asked, [claim])
        return (time.perf_counter() - before) * 1000
