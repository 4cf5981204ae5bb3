"""What containers of this node hold, by the kubelet's pod-resources API and its checkpoint: one reader for the daemon.

A unit that either of them shows is held. A unit that neither shows is taken to be free

- if the kubelet knows its pods. One that has just started, or that has not reached the API server yet, shows no pods
  through pod-resources although their containers go on.
- or if the checkpoint was written after the previous question, however short the kubelet has run: it drops pods from
  the checkpoint only once it has heard from every source of pods (see `sourcesReady` in
  pkg/kubelet/cm/devicemanager). An older checkpoint can lack what is in memory only, such as an allocation just made.

Both are long where units are many, so all that takes longer the more units are held is done in a thread.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from gpushare_plugin.adapters.kubelet.allocations.checkpoint import (
    CHECKPOINT,
    CheckpointError,
    read_listed,
    read_recorded,
)
from gpushare_plugin.adapters.kubelet.allocations.pod_resources import PodResourcesError
from gpushare_plugin.adapters.kubelet.allocations.quiet import QuietLister
from gpushare_plugin.adapters.kubelet.allocations.trust import DELAYS, PodName, Trust, TrustDelays
from gpushare_plugin.adapters.kubelet.device_plugin.directory import Identity, identity
from gpushare_plugin.foundation.reported import Repeats, Reported
from gpushare_plugin.model.choice.recent import RecentAllocations
from gpushare_plugin.model.holding import Confirmed, Holding, Holdings, Unknown, combined, held_by_shown
from gpushare_plugin.model.unit import is_slice

_log = structlog.get_logger()

GRACE = 10.0
"""Seconds for which it may be unknown what pods hold before a warning."""
READ_EVERY = 60.0
"""Seconds after which what containers hold is read again at the latest, for those that look at it at intervals."""
RECORD_WITHIN = 1.0
"""Seconds that the kubelet has to write its checkpoint again, which takes milliseconds."""
REMIND_EVERY = 300.0
"""Seconds between two reports of a record that cannot be read, for the same reason."""

_LOOK_EVERY = 0.02


class HoldingsReader:
    """Reads what containers hold from the kubelet, for each of those that want to know it as fresh as they need it."""

    def __init__(  # noqa: PLR0913 - what holdings are read with
        self,
        directory: Path,
        pod_resources: Path,
        clock: Callable[[], float] = time.monotonic,
        recent: RecentAllocations | None = None,
        *,
        own_pod: PodName | None = None,
        delays: TrustDelays = DELAYS,
    ) -> None:
        """Read the checkpoint in `directory`, the kubelet's plugin directory, and ask at the socket `pod_resources`.

        Asks when nothing `recent` is still being allocated; `recent` learns what is read. `clock` is in seconds,
        `own_pod` the pod this process runs in, None where that is not known.
        """
        self._directory = directory
        self._pod_resources = pod_resources
        self._clock = clock
        self.recent = recent or RecentAllocations()
        self._lister = QuietLister(directory, pod_resources, self.recent)
        self._trust = Trust(directory, pod_resources, own_pod=own_pod, delays=delays, clock=clock)
        self._asked: tuple[Identity | None, float] | None = None
        self._read: tuple[Identity | None, float, Holdings] | None = None
        self._seen: Identity | None = None
        self.complete = False
        """Whether the last answer of `read` has all that was allocated when it was requested."""
        self._unknown_since: float | None = None
        self._changes = Reported()
        self._unread = Repeats(REMIND_EVERY, most_kinds=16)

    async def watch(self) -> None:
        """Notice each new kubelet until cancelled: its delay counts from then, not from the first question."""
        await self._trust.watch()

    # ------------------------------------------------------------------ what is free

    async def at_start(self) -> Holdings | Unknown:
        """Return what containers may hold from before this process started.

        Reads the checkpoint; where that cannot be read, asks the kubelet, once it knows its pods. The kubelet writes
        what a container gets only when that has all its devices, of other plugins, too. So each slice that was listed
        counts: another one could now be in its place.
        """
        try:
            return await asyncio.to_thread(_at_start, self._directory)
        except CheckpointError as error:
            reason = str(error)
        shown, doubt = await self._ask()
        if doubt is None:
            return shown
        self._log_unread("allocations_unknown", reason)
        return doubt

    async def confirmed(self, now: float) -> Confirmed | Unknown:
        """Return all that containers hold, unless it cannot be confirmed that nothing is missing.

        `now` is the time on the clock of the caller; what the checkpoint confirms is as of the question before.
        """
        before, self._asked = self._asked, None
        shown, doubt = await self._ask()
        if doubt is not None and not doubt.answered:
            self._log_doubt(doubt)
            return doubt
        # Before reading the file, so that what is read was written no earlier; and after asking the kubelet, which then
        # forgets the pods that ended, so that what it writes from now on is without them.
        written = identity(self._directory / CHECKPOINT)
        self._asked = written, now
        recorded = await self._recorded()
        asked_at = now
        if doubt is not None:
            if recorded is None or before is None or written in {None, before[0]}:
                self._log_doubt(doubt)
                return doubt
            asked_at = before[1]
        self._log_doubt(None)
        return await asyncio.to_thread(lambda: Confirmed.of(combined(shown, recorded or ()), asked_at))

    async def next_record(self) -> None:
        """Wait until the kubelet has written its checkpoint again since it was asked; not much longer than that takes.

        What is read then is without the pods that had ended when it was asked.
        """
        written = self._asked[0] if self._asked is not None else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECORD_WITHIN):
                while identity(self._directory / CHECKPOINT) == written:  # noqa: ASYNC110 - a file sets no event
                    await asyncio.sleep(_LOOK_EVERY)

    # ------------------------------------------------------------------ who holds what

    async def with_uids(self, uids: Mapping[PodName, str]) -> Holdings | Unknown:
        """Return what each container holds now, init containers included, with the UID of its pod.

        From the checkpoint, which the kubelet writes with each allocation. Where that cannot be read, from
        pod-resources, without init containers, for the pods whose `uids` are given.
        """
        if (recorded := await self._recorded()) is not None:
            return recorded
        shown, doubt = await self._ask()
        if doubt is not None:
            return doubt
        found = ((each, uids.get((each.namespace, each.pod))) for each in shown)
        return tuple(each._replace(uid=uid) for each, uid in found if uid)

    async def read(self) -> Holdings | None:
        """Return what containers of the pods that the kubelet shows hold; None where it shows nothing.

        Read again only when the kubelet wrote its checkpoint, as it does with each allocation, or after a while, since
        it does not write it when a pod ends. What was allocated since the last call is read with the next one, once
        nothing more was allocated. A pod whose UID the checkpoint does not show has none.
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
        since = self.recent.now
        try:
            listing = await self._lister.list()
        except PodResourcesError:
            self._read = None
            return None
        holdings, held = await asyncio.to_thread(_of_pods, listing.holdings, self._directory)
        if held is not None:
            self.recent.learn(held, since)
        self._read, self.complete = (written, now, holdings), True
        return holdings

    async def _recorded(self) -> Holdings | None:
        """Return what the kubelet's checkpoint has; None where it cannot be read."""
        try:
            return await asyncio.to_thread(read_recorded, self._directory)
        except CheckpointError as error:
            self._log_unread("checkpoint_unreadable", str(error))
            return None

    async def _ask(self) -> tuple[Holdings, Unknown | None]:
        """Ask the kubelet; return what pod-resources shows, and why that may not be all, None where it is."""
        kubelet = self._trust.kubelet()
        try:
            listing = await self._lister.list()
        except PodResourcesError as error:
            return (), Unknown(str(error))
        return listing.holdings, self._trust.doubt(listing, kubelet)

    def _log_doubt(self, doubt: Unknown | None) -> None:
        """Warn of a doubt that lasts: a kubelet that restarts needs no attention."""
        now = self._clock()
        if doubt is None:
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now
        lasting = doubt if self._unknown_since is not None and now - self._unknown_since >= GRACE else None
        if self._changes.is_new("doubt", lasting) and lasting:
            _log.warning("retired_units_kept", reason=lasting.reason)

    def _log_unread(self, event: str, reason: str) -> None:
        # Again and again while it lasts: without its record, a node may offer nothing for as long as nobody sees this.
        if self._unread.untold(reason, self._clock()) is not None:
            _log.error(event, reason=reason)


def _at_start(directory: Path) -> Holdings:
    # In this order: what is written in between shows as held what it shows as listed no more.
    listed = read_listed(directory)
    slices = (Holding("", "", "", resource, frozenset({id_})) for resource, id_ in listed if is_slice(id_))
    return (*read_recorded(directory), *slices)


def _of_pods(shown: Iterable[Holding], directory: Path) -> tuple[Holdings, frozenset[tuple[str, str]] | None]:
    """Return what is `shown`, with UIDs, and all that containers of these pods hold, as resource and ID.

    The latter is None where the checkpoint, which alone has init containers, cannot be read.
    """
    try:
        holdings = combined(shown, read_recorded(directory))
    except CheckpointError:
        return combined(shown, ()), None
    return tuple(each for each in holdings if not each.only_recorded), held_by_shown(holdings)
