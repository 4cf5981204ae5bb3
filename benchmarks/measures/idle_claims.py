"""A quiet node that gives half of its GPUs by claim: what the daemon costs more than one that gives none."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from benchmarks.daemon import GPUS
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, single
from benchmarks.kubelet.claim_node import BY_CLAIM, NO_CLAIMS, RESOURCE, UNITS, ClaimNode, claim_node, prepare
from benchmarks.processes import MeasuredProcess

_SECONDS = 60.0
_SETTLING = 5.0
"""Seconds after which what starting brought about is over."""


async def measure(effort: Effort) -> list[Figure]:
    """Watch a daemon with claims and a daemon without claims at the same time."""
    half = {**BY_CLAIM, "dra": {"devices": GPUS // 2}}
    async with (
        claim_node(half) as on,
        claim_node(NO_CLAIMS) as off,
        _quiet(on, UNITS // 2) as giving,
        _quiet(off, UNITS) as other,
        on.connected(giving) as asked,
    ):
        await giving.outlives(on.published(GPUS // 2))
        await prepare(asked, [claim := on.claim(0)])
        await on.has_condition(claim)
        health = asyncio.create_task(asked.hear_health())
        await asyncio.sleep(effort.seconds(_SETTLING))
        began, used, writes = time.perf_counter(), (giving.cpu_seconds(), other.cpu_seconds()), len(on.writes)
        await asyncio.sleep(effort.seconds(_SECONDS))
        share = 100 / (time.perf_counter() - began)
        cpu, cpu_without = (giving.cpu_seconds() - used[0]) * share, (other.cpu_seconds() - used[1]) * share
        memory, least = giving.memory().resident, other.memory().resident
        health.cancel()
        await asyncio.wait([health])
    note = f"{cpu:.3f} with claims, {cpu_without:.3f} without"
    return [
        single("claims, idle: more CPU", "% of a core", cpu - cpu_without, Goal("worst", 0.05), note=note),
        single(
            "claims, idle: more memory",
            "MiB",
            memory - least,
            Goal("worst", 10),
            note=f"{memory:.1f} with claims, {least:.1f} without",
        ),
        single("claims, idle: writes to the API server", "writes", len(on.writes) - writes, Goal("worst", 0)),
    ]


@contextlib.asynccontextmanager
async def _quiet(node: ClaimNode, units: int) -> AsyncIterator[MeasuredProcess]:
    """Run a daemon that serves so many units to a kubelet."""
    async with node.daemon() as process:
        await process.outlives(node.kubelet.wait_for(lambda known: known.allocatable() == {RESOURCE: units}))
        yield process
