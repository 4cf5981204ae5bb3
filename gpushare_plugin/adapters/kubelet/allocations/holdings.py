"""What each container holds, with the UID of its pod: pod-resources has names, the checkpoint UIDs.

Both are long where units are many, so they are read again only when the kubelet wrote its checkpoint, as it does with
each allocation, or after a while, since it does not write it when a pod ends. Not while it allocates, though: asked for
its list, the kubelet takes units of pods that ended for free, and with them those that it is just allocating
(`UpdateAllocatedDevices`), which it may then allocate twice.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from gpushare_plugin.adapters.kubelet.allocations.checkpoint import CHECKPOINT, CheckpointError, Entry, read_entries
from gpushare_plugin.adapters.kubelet.allocations.pod_resources import PodResourcesError, list_pods
from gpushare_plugin.adapters.kubelet.device_plugin.directory import Identity, identity
from gpushare_plugin.foundation.structs import replace
from gpushare_plugin.model.usage.holding import Holding

READ_EVERY = 60.0
"""Seconds after which what containers hold is read again at the latest."""

Holdings = tuple[Holding, ...]


class HoldingsReader:
    """Keeps what containers hold."""

    def __init__(self, directory: Path, pod_resources: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the checkpoint in `directory`, the kubelet's plugin directory, and ask at the socket `pod_resources`."""
        self._directory = directory
        self._pod_resources = pod_resources
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
        try:
            listing = await list_pods(self._pod_resources)
        except PodResourcesError:
            self._read = None
            return None
        holdings = await asyncio.to_thread(_with_uids, listing.holdings, self._directory)
        self._read, self.complete = (written, now, holdings), True
        return holdings


def _with_uids(holdings: Iterable[Holding], directory: Path) -> Holdings:
    try:
        entries: Iterable[Entry] = read_entries(directory)
    except CheckpointError:
        entries = ()
    # No two containers have a unit at a time, but for those of one pod.
    uids = {(each.container, each.resource, id_): each.uid for each in entries for id_ in each.ids}
    return tuple(
        replace(holding, uid=uids.get((holding.container, holding.resource, min(holding.ids)), ""))
        for holding in holdings
        if holding.ids
    )
