"""Asks the kubelet what pods hold when it does not allocate anything, as far as that is known.

Asked while it allocates, the kubelet may offer the same units to another pod: see `model.choice.recent`. So nothing is
asked while we answer one of its calls, nor after that until its checkpoint shows what it allocated.
"""

import asyncio
from pathlib import Path

from gpushare_plugin.adapters.kubelet.allocations.checkpoint import CHECKPOINT, CheckpointError, read_recorded
from gpushare_plugin.adapters.kubelet.allocations.pod_resources import Listing, list_pods
from gpushare_plugin.model.choice.recent import RecentAllocations

LONGEST_WAIT = 2.0
"""Seconds to wait at most: a container that another plugin refuses is never written into the checkpoint."""

_LOOK_EVERY = 0.05


class QuietLister:
    """Lists pod-resources of one kubelet for all parts of this process."""

    def __init__(
        self, directory: Path, pod_resources: Path, recent: RecentAllocations, longest_wait: float = LONGEST_WAIT
    ) -> None:
        """Ask at the socket `pod_resources`, `longest_wait` seconds late at most.

        The checkpoint is in `directory`, the kubelet's plugin directory.
        """
        self._directory = directory
        self.socket = pod_resources
        self.recent = recent
        self._longest_wait = longest_wait

    async def list(self) -> Listing:
        """Return what every active pod of this node holds; raises PodResourcesError as `list_pods` does."""
        try:
            async with asyncio.timeout(self._longest_wait):
                while self.recent.answering or not await self._is_written():  # noqa: ASYNC110 - a file sets no event
                    await asyncio.sleep(_LOOK_EVERY)
        except TimeoutError:
            pass
        self.recent.written()
        return await list_pods(self.socket)

    async def _is_written(self) -> bool:
        """Return whether the checkpoint shows what was allocated last, or cannot show anything."""
        if not self.recent.unwritten or not (self._directory / CHECKPOINT).exists():
            return True
        try:
            # In a thread: it is long where pods hold many units.
            recorded = await asyncio.to_thread(read_recorded, self._directory)
        except CheckpointError:
            return False
        # What is allocated meanwhile may not be there yet.
        unwritten = self.recent.unwritten.difference(*(each.ids for each in recorded))
        return not self.recent.answering and not unwritten
