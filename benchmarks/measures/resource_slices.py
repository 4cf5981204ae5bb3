"""ResourceSlices of 8 GPUs: how soon they are in the API after the registration, and after they were deleted."""

import time

from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary
from benchmarks.kubelet.claim_node import ClaimNode, claim_node

_SECOND = (Goal("worst", 1000),)


async def measure(effort: Effort) -> list[Figure]:
    """Measure both, with a daemon of its own each time."""
    registered, wiped = [], []
    async with claim_node() as node:
        for _ in range(effort.times(10)):
            node.wipe()
            async with node.daemon() as process, node.connected(process):
                registered.append(await process.outlives(_published(node)))
                node.wipe()
                wiped.append(await process.outlives(_published(node)))
    return [
        Figure("registered -> ResourceSlices of 8 GPUs are in the API", "ms", Summary.of(registered), goals=_SECOND),
        Figure("ResourceSlices deleted -> they are in the API again", "ms", Summary.of(wiped), goals=_SECOND),
    ]


async def _published(node: ClaimNode) -> float:
    """Return the milliseconds until all GPUs are there."""
    before = time.perf_counter()
    await node.published()
    return (time.perf_counter() - before) * 1000
