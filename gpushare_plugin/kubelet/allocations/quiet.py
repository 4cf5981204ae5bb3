"""Asks the kubelet for the units held by pods while the kubelet, as far as is known, allocates nothing.

A question during an allocation can make the kubelet offer the same units to another pod: see `core.recent`.
Therefore the question waits until this process has answered all calls of the kubelet, and until the checkpoint shows
the units allocated last.
"""

import asyncio
from pathlib import Path

from gpushare_plugin.core.recent import RecentAllocations
from gpushare_plugin.kubelet.allocations.checkpoint import CHECKPOINT, CheckpointError, read_recorded
from gpushare_plugin.kubelet.allocations.pod_resources import Listing, list_pods

LONGEST_WAIT = 2.0
"""Seconds to wait at most: the checkpoint never shows a container refused by another plugin."""

_LOOK_EVERY = 0.05


class QuietLister:
    """Lists the pods and their units, by one kubelet's pod-resources API, for all parts of this process."""

    def __init__(
        self, directory: Path, pod_resources: Path, recent: RecentAllocations, longest_wait: float = LONGEST_WAIT
    ) -> None:
        """Ask at the socket `pod_resources`, after at most `longest_wait` seconds.

        `directory` is the kubelet's plugin directory, with the checkpoint. `recent` knows the calls being answered and
        the units allocated last.
        """
        self._directory = directory
        self.socket = pod_resources
        self.recent = recent
        self._longest_wait = longest_wait

    async def list(self) -> Listing:
        """Return the units held by every active pod of this node; raises PodResourcesError like `list_pods`."""
        try:
            async with asyncio.timeout(self._longest_wait):
                while self.recent.answering or not await self._is_written():  # noqa: ASYNC110 - a file sets no event
                    await asyncio.sleep(_LOOK_EVERY)
        except TimeoutError:
            pass
        self.recent.written()
        return await list_pods(self.socket)

    async def _is_written(self) -> bool:
        """Return whether the checkpoint shows the units allocated last, or does not exist."""
        if not self.recent.unwritten or not (self._directory / CHECKPOINT).exists():
            return True
        try:
            # In a thread: the file is long if pods hold many units.
            recorded = await asyncio.to_thread(read_recorded, self._directory)
        except CheckpointError:
            return False
        # The checkpoint may lack units allocated during the reading.
        unwritten = self.recent.unwritten.difference(*(each.ids for each in recorded))
        return not self.recent.answering and not unwritten
