"""Which units pods hold, by the kubelet's pod-resources API and its checkpoint.

A unit that either of them shows is held. A unit that neither shows is taken to be free

- if the kubelet knows its pods. One that has just started, or that has not reached the API server yet, shows no pods
  through pod-resources although their containers go on.
- or if the checkpoint was written after the previous question, however short the kubelet has run: it drops pods from
  the checkpoint only once it has heard from every source of pods (see `sourcesReady` in
  pkg/kubelet/cm/devicemanager). An older checkpoint can lack what is in memory only, such as an allocation just made.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from gpushare_plugin.adapters.kubelet.allocations.checkpoint import (
    CHECKPOINT,
    CheckpointError,
    Entry,
    read_entries,
    read_held,
    read_listed,
)
from gpushare_plugin.adapters.kubelet.allocations.pod_resources import Listing, PodResourcesError
from gpushare_plugin.adapters.kubelet.allocations.quiet import QuietLister
from gpushare_plugin.adapters.kubelet.allocations.trust import DELAYS, PodName, Trust, TrustDelays
from gpushare_plugin.adapters.kubelet.device_plugin.directory import Identity, PluginDirectory, identity
from gpushare_plugin.foundation.reported import Repeats, Reported
from gpushare_plugin.model.choice.recent import RecentAllocations
from gpushare_plugin.model.unit import is_slice
from gpushare_plugin.sharing.transition import Allocations

_log = structlog.get_logger()

ONLY_RECORDED = "a pod that only the kubelet's checkpoint shows"
"""The holder of a unit that is in the checkpoint only: an init container, a pod not shown yet, or one that ended."""

GRACE = 10.0
"""Seconds for which it may be unknown what pods hold before a warning."""
RECORD_WITHIN = 1.0
"""Seconds that the kubelet has to write its checkpoint again, which takes milliseconds."""
REMIND_EVERY = 300.0
"""Seconds between two reports of a record that cannot be read, for the same reason."""

_LOOK_EVERY = 0.02


class AllocationReader:
    """Reads what pods hold from the kubelet."""

    def __init__(  # noqa: PLR0913 - what allocations are read with
        self,
        directory: PluginDirectory,
        pod_resources: Path,
        *,
        own_pod: PodName | None = None,
        delays: TrustDelays = DELAYS,
        clock: Callable[[], float] = time.monotonic,
        recent: RecentAllocations | None = None,
    ) -> None:
        """Ask at the socket `pod_resources`, when nothing `recent` is still being allocated.

        `own_pod` is the pod this process runs in, None where it is not known.
        """
        self._directory = directory
        self.recent = recent or RecentAllocations()
        self._lister = QuietLister(directory.path, pod_resources, self.recent)
        self._trust = Trust(directory, pod_resources, own_pod=own_pod, delays=delays, clock=clock)
        self._clock = clock
        self._asked: tuple[Identity | None, float] | None = None
        self._unknown_since: float | None = None
        self._changes = Reported()
        self._unread = Repeats(REMIND_EVERY, most_kinds=16)
        self.awaits_record = False
        """Whether a checkpoint written from now on would show more."""

    async def watch(self) -> None:
        """Notice each new kubelet until cancelled: its delay counts from then, not from the first question."""
        await self._trust.watch()

    async def held_at_start(self) -> frozenset[tuple[str, str]] | None:
        """Return resource and ID of every unit that containers may hold from before; None if not known yet.

        Reads the checkpoint; where that cannot be read, asks the kubelet, once it knows its pods. The kubelet writes
        what a container gets only when that has all its devices, of other plugins, too. So each slice that was listed
        counts: another one could now be in its place.
        """
        try:
            return await asyncio.to_thread(_held_at_start, self._directory.path)
        except CheckpointError as error:
            reason = str(error)
        listing, doubt = await self._ask()
        if listing is None or doubt is not None:
            self._log_unread("allocations_unknown", reason)
            return None
        return frozenset((holding.resource, id_) for holding in listing.holdings for id_ in holding.ids)

    async def read(self, now: float) -> Allocations | None:
        """Return every ID that is held and the pod that holds it; None while it cannot be confirmed what is free.

        The checkpoint names no pod: for what only it shows, the pod is ONLY_RECORDED. `now` is the time on the clock of
        the caller; allocations confirmed by the checkpoint are as of the question before.
        """
        before, self._asked = self._asked, None
        listing, doubt = await self._ask()
        self.awaits_record = listing is not None and doubt is not None
        if listing is None:
            self._log_doubt(doubt)
            return None
        # Before reading the file, so that what is read was written no earlier; and after asking the kubelet, which then
        # forgets the pods that ended, so that what it writes from now on is without them.
        written = identity(self._directory.path / CHECKPOINT)
        self._asked = written, now
        recorded = await self._recorded()
        asked_at = now
        if doubt is not None:
            if recorded is None or before is None or written in {None, before[0]}:
                self._log_doubt(doubt)
                return None
            asked_at = before[1]
        self._log_doubt(None)
        return Allocations(await asyncio.to_thread(_holders, recorded or frozenset(), listing), asked_at)

    async def next_record(self) -> None:
        """Wait until the kubelet has written its checkpoint again since it was asked; not much longer than that takes.

        What is read then is without the pods that had ended when it was asked.
        """
        written = self._asked[0] if self._asked is not None else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECORD_WITHIN):
                while identity(self._directory.path / CHECKPOINT) == written:  # noqa: ASYNC110 - a file sets no event
                    await asyncio.sleep(_LOOK_EVERY)

    async def containers(self, uids: Mapping[PodName, str]) -> tuple[Entry, ...] | None:
        """Return what each container holds now; None while that is not known.

        From the checkpoint, which names pods by UID and has init containers; the kubelet writes it with each
        allocation. Where it cannot be read, from pod-resources for the pods whose UIDs are given.
        """
        try:
            return await asyncio.to_thread(read_entries, self._directory.path)
        except CheckpointError as error:
            self._log_unread("checkpoint_unreadable", str(error))
        listing, doubt = await self._ask()
        if listing is None or doubt is not None:
            return None
        return tuple(
            Entry(uid, holding.container, holding.resource, holding.ids)
            for holding in listing.holdings
            if (uid := uids.get((holding.namespace, holding.pod)))
        )

    async def _recorded(self) -> frozenset[tuple[str, str]] | None:
        """Return resource and ID of every unit in the kubelet's checkpoint; None where it cannot be read."""
        try:
            # In a thread, as everything that takes longer the more units pods hold.
            return await asyncio.to_thread(read_held, self._directory.path)
        except CheckpointError as error:
            self._log_unread("checkpoint_unreadable", str(error))
            return None

    async def _ask(self) -> tuple[Listing | None, str | None]:
        """Ask the kubelet; return its answer, if any, and why it may not show every pod, None when it does."""
        kubelet = self._trust.kubelet()
        try:
            listing = await self._lister.list()
        except PodResourcesError as error:
            return None, str(error)
        return listing, self._trust.doubt(listing, kubelet)

    def _log_doubt(self, reason: str | None) -> None:
        """Warn of a doubt that lasts: a kubelet that restarts needs no attention."""
        now = self._clock()
        if reason is None:
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now
        lasting = reason if self._unknown_since is not None and now - self._unknown_since >= GRACE else None
        if self._changes.is_new("doubt", lasting) and lasting:
            _log.warning("retired_units_kept", reason=lasting)

    def _log_unread(self, event: str, reason: str) -> None:
        # Again and again while it lasts: without its record, a node may offer nothing for as long as nobody sees this.
        if self._unread.untold(reason, self._clock()) is not None:
            _log.error(event, reason=reason)


def _held_at_start(directory: Path) -> frozenset[tuple[str, str]]:
    # In this order: what is written in between shows as held what it shows as listed no more.
    listed = read_listed(directory)
    return read_held(directory) | {(resource, id_) for resource, id_ in listed if is_slice(id_)}


def _holders(recorded: frozenset[tuple[str, str]], listing: Listing) -> dict[str, str]:
    return dict.fromkeys((id_ for _, id_ in recorded), ONLY_RECORDED) | {
        id_: f"{holding.namespace}/{holding.pod}" for holding in listing.holdings for id_ in sorted(holding.ids)
    }
