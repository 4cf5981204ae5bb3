"""What each container holds, with the UID of its pod: pod-resources has names, the checkpoint UIDs.

Both are long where units are many, so they are read again only when the kubelet wrote its checkpoint, as it does with
each allocation, or after a while, since it does not write it when a pod ends. Not while it allocates, though: see
`quiet`.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from gpushare_plugin.adapters.kubelet.allocations.checkpoint import CHECKPOINT, CheckpointError, read_entries
from gpushare_plugin.adapters.kubelet.allocations.pod_resources import Listing, PodResourcesError
from gpushare_plugin.adapters.kubelet.allocations.quiet import QuietLister
from gpushare_plugin.adapters.kubelet.device_plugin.directory import Identity, identity
from gpushare_plugin.foundation.structs import replace
from gpushare_plugin.model.choice.recent import RecentAllocations
from gpushare_plugin.model.usage.holding import Holding

READ_EVERY = 60.0
"""Seconds after which what containers hold is read again at the latest."""

Holdings = tuple[Holding, ...]

Held = frozenset[tuple[str, str]]
"""What containers hold, as resource and device ID."""


class HoldingsReader:
    """Keeps what containers hold."""

    def __init__(
        self,
        directory: Path,
        pod_resources: Path,
        clock: Callable[[], float] = time.monotonic,
        recent: RecentAllocations | None = None,
    ) -> None:
        """Read the checkpoint in `directory`, the kubelet's plugin directory, and ask at the socket `pod_resources`.

        What is `recent` learns what is read.
        """
        self._directory = directory
        self._pod_resources = pod_resources
        self._recent = recent or RecentAllocations()
        self._lister = QuietLister(directory, pod_resources, self._recent)
        self._clock = clock
        self._read: tuple[Identity | None, float, Holdings] | None = None
        self._seen: Identity | None = None
        self.complete = False
        """Whether the last answer has all that was allocated when it was requested."""

    async def read(self) -> Holdings | None:
        """Return what containers hold, None where the kubelet does not show it.

        What was allocated since the last call is read with the next one, once nothing more was allocated. A pod whose
        UID the checkpoint does not show has none.
        """
        # Before anything is read, so that what is written meanwhile is read the next time.
        written, now = identity(self._directory / CHECKPOINT), self._clock()
        if self._read is not None:
            before, read_at, holdings = self._read
            settled, self._seen = written == self._seen, written
            if (before == written or not settled) and now - read_at < READ_EVERY:
                self.complete = before == written
                return holdings
        self.complete = False
        if not self._pod_resources.exists():  # what gRPC takes its time to find out
            return None
        since = self._recent.now
        try:
            listing = await self._lister.list()
        except PodResourcesError:
            self._read = None
            return None
        holdings, held = await asyncio.to_thread(_with_uids, listing, self._directory)
        if held is not None:
            self._recent.learn(held, since)
        self._read, self.complete = (written, now, holdings), True
        return holdings


def _with_uids(listing: Listing, directory: Path) -> tuple[Holdings, Held | None]:
    """Return what containers hold, with UIDs, and all that containers of these pods hold; None where it is not known.

    Only the checkpoint has init containers; it also has pods that ended, which pod-resources does not show.
    """
    shown = tuple(holding for holding in listing.holdings if holding.ids)
    try:
        entries = read_entries(directory)
    except CheckpointError:
        return shown, None
    # No two containers have a unit at a time, but for those of one pod.
    uids = {(each.container, each.resource, id_): each.uid for each in entries for id_ in each.ids}
    holdings = tuple(
        replace(holding, uid=uids.get((holding.container, holding.resource, min(holding.ids)), "")) for holding in shown
    )
    active = {holding.uid for holding in holdings}
    held = {(each.resource, id_) for each in entries if each.uid in active for id_ in each.ids}
    return holdings, frozenset(held.union((each.resource, id_) for each in shown for id_ in each.ids))
