"""The daemon's reader of holdings: the units held by containers of this node, by pod-resources and the checkpoint.

A unit shown by pod-resources or by the kubelet's checkpoint is held. A unit shown by neither counts as free in two
cases:

- The kubelet knows its pods. A kubelet that has just started, or has not reached the API server yet, shows no pods
  through pod-resources, although their containers run.
- The checkpoint was written after the previous question. The kubelet may have started a moment ago: it drops pods from
  the checkpoint only after every source of pods has answered (see `sourcesReady` in pkg/kubelet/cm/devicemanager). An
  older checkpoint can lack a recent allocation that is only in the kubelet's memory.

Answers and checkpoints grow with the number of held units. Therefore a thread does all work on them.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from gpushare_plugin.base.reported import Repeats, Reported
from gpushare_plugin.core.holding import Confirmed, Holding, Holdings, Unknown, combined, held_by_shown
from gpushare_plugin.core.recent import RecentAllocations
from gpushare_plugin.core.unit import is_slice
from gpushare_plugin.kubelet.allocations.checkpoint import (
    CHECKPOINT,
    CheckpointError,
    Granted,
    read_granted,
    read_listed,
    read_recorded,
)
from gpushare_plugin.kubelet.allocations.pod_resources import PodResourcesError, healthy_devices
from gpushare_plugin.kubelet.allocations.quiet import QuietLister
from gpushare_plugin.kubelet.allocations.trust import DELAYS, PodName, Trust, TrustDelays
from gpushare_plugin.kubelet.serving.watched_directory import Identity, identity

_log = structlog.get_logger()

GRACE = 10.0
"""Seconds for which the holdings may be unknown before a warning."""
READ_EVERY = 60.0
"""Seconds after which `HoldingsReader.read` reads the holdings again at the latest."""
RECORD_WITHIN = 1.0
"""Seconds to wait for the kubelet's next write of its checkpoint, which takes milliseconds."""
REMIND_EVERY = 300.0
"""Seconds between two log messages about an unreadable record, for the same reason."""

_LOOK_EVERY = 0.02


class HoldingsReader:
    """Reads the holdings of containers from the kubelet, with a method for each need of freshness."""

    def __init__(  # noqa: PLR0913 - the sources of holdings, and settings
        self,
        directory: Path,
        pod_resources: Path,
        clock: Callable[[], float] = time.monotonic,
        recent: RecentAllocations | None = None,
        *,
        own_pod: PodName | None = None,
        delays: TrustDelays = DELAYS,
        takes_over: bool = False,
    ) -> None:
        """Read the checkpoint in `directory`, the kubelet's plugin directory, and ask at the socket `pod_resources`.

        The reader asks when none of the `recent` allocations is still in progress, and tells `recent` the holdings.
        `clock` returns seconds. `own_pod` is the pod of this process, None if unknown. `delays` are the times after
        which a kubelet is trusted to know its pods. `takes_over` is whether another daemon may still allocate units.
        """
        self._directory = directory
        self._pod_resources = pod_resources
        self._clock = clock
        self._takes_over = takes_over
        self.recent = recent or RecentAllocations()
        self._lister = QuietLister(directory, pod_resources, self.recent)
        self._trust = Trust(directory, pod_resources, own_pod=own_pod, delays=delays, clock=clock)
        self._asked: tuple[Identity | None, float] | None = None
        self._read: tuple[Identity | None, float, Holdings] | None = None
        self._seen: Identity | None = None
        self._about: object = None
        self._granted: tuple[Identity | None, Granted] = None, {}
        self.complete = False
        """Whether the last answer of `read` has all units allocated before the call."""
        self._unknown_since: float | None = None
        self._changes = Reported()
        self._unread = Repeats(REMIND_EVERY, most_kinds=16)

    async def watch(self) -> None:
        """Notice each new kubelet until cancelled: its delay counts from now on, not from the first question."""
        await self._trust.watch()

    # ------------------------------------------------------------------ what is free

    async def at_start(self) -> Holdings | Unknown:
        """Return the holdings that containers may have from before the start of this process.

        The source is the checkpoint. If the checkpoint cannot be read, the source is pod-resources, provided that the
        kubelet knows its pods. The kubelet writes a container into the checkpoint only when the container has all its
        devices, also the devices of other plugins. A listed slice may therefore be allocated already, and counts as
        held: otherwise another slice could take its place. While another daemon may still allocate, every listed unit
        counts as held.
        """
        try:
            return await asyncio.to_thread(_at_start, self._directory, every_unit=self._takes_over)
        except CheckpointError as error:
            reason = str(error)
        shown, doubt = await self._ask()
        if doubt is None:
            return shown
        self._log_unread("allocations_unknown", reason)
        return doubt

    async def confirmed(self, now: float) -> Confirmed | Unknown:
        """Return all holdings of containers, or Unknown if some may be missing.

        `now` is the time on the clock of the caller. An answer confirmed by the checkpoint alone is as of the previous
        question.
        """
        before, self._asked = self._asked, None
        shown, doubt = await self._ask()
        if doubt is not None and not doubt.answered:
            self._log_doubt(doubt)
            return doubt
        # Before the file is read, so that the content read is at least as new. After the question, which makes the
        # kubelet forget ended pods: the checkpoints written from now on are without these pods.
        written = identity(self._directory / CHECKPOINT)
        self._asked = written, now
        recorded = await self.recorded()
        asked_at = now
        if doubt is not None:
            if recorded is None or before is None or written in {None, before[0]}:
                self._log_doubt(doubt)
                return doubt
            asked_at = before[1]
        self._log_doubt(None)
        return await asyncio.to_thread(lambda: Confirmed.of(combined(shown, recorded or ()), asked_at))

    async def healthy(self) -> frozenset[str] | None:
        """Return the names of the resources with healthy devices, which some plugin serves; None without an answer."""
        try:
            return frozenset(await healthy_devices(self._pod_resources))
        except PodResourcesError:
            return None

    async def next_record(self) -> None:
        """Wait until the kubelet has written its checkpoint after the last question, at most `RECORD_WITHIN` seconds.

        The new checkpoint is without the pods that had ended before the question.
        """
        written = self._asked[0] if self._asked is not None else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECORD_WITHIN):
                while identity(self._directory / CHECKPOINT) == written:  # noqa: ASYNC110 - a file sets no event
                    await asyncio.sleep(_LOOK_EVERY)

    # ------------------------------------------------------------------ who holds what

    @property
    def record(self) -> Identity | None:
        """The identity of the kubelet's checkpoint: another one after each write."""
        return identity(self._directory / CHECKPOINT)

    async def recorded(self) -> Holdings | None:
        """Return the holdings in the kubelet's checkpoint, init containers included; None for an unreadable checkpoint.

        The holdings have UIDs, but no names of pods. Pods that have ended are there until the kubelet writes again.
        """
        try:
            return await asyncio.to_thread(read_recorded, self._directory)
        except CheckpointError as error:
            self._log_unread("checkpoint_unreadable", str(error))
            return None

    async def with_uids(self, uids: Mapping[PodName, str]) -> Holdings | Unknown:
        """Return the present holdings of each container, init containers included, with the UID of the pod.

        The source is the checkpoint, which the kubelet writes at each allocation. If the checkpoint cannot be read, the
        source is pod-resources: without init containers, and only for the pods with a UID in `uids`.
        """
        if (recorded := await self.recorded()) is not None:
            return recorded
        shown, doubt = await self._ask()
        if doubt is not None:
            return doubt
        found = ((each, uids.get((each.namespace, each.pod))) for each in shown)
        return tuple(each._replace(uid=uid) for each, uid in found if uid)

    async def read(self, about: object = None) -> Holdings | None:
        """Return the holdings of the pods shown by the kubelet; None if the kubelet does not answer.

        The holdings are read again when the kubelet has written its checkpoint, which happens at each allocation, and
        also after `READ_EVERY` seconds, because the kubelet writes nothing when a pod ends. A new checkpoint is read as
        soon as it has stayed the same between two calls. A pod without a UID in the checkpoint has an empty UID.
        Claims, of which the kubelet writes nothing there, are read again when `about` is another object than before.
        """
        # Before anything is read: a checkpoint written during the reading is read the next time.
        written, now = identity(self._directory / CHECKPOINT), self._clock()
        if self._read is not None:
            before, read_at, holdings = self._read
            settled, self._seen = written == self._seen, written
            same = about is self._about
            if same and (before == written or not settled) and now - read_at < READ_EVERY:
                self.complete = before == written
                return holdings
        self.complete = False
        if not self._pod_resources.exists():  # gRPC takes long to find out
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
        holdings = (*holdings, *listing.claims)
        self._read, self._about, self.complete = (written, now, holdings), about, True
        return holdings

    async def granted(self) -> Granted:
        """Return the variables that containers were given and that matter for limits, by the UID of the pod.

        Nothing where the kubelet's checkpoint cannot be read. The checkpoint is read again only after a write.
        """
        from gpushare_plugin.core.escapes import is_watched  # noqa: PLC0415 - most nodes have no limits to watch

        written = identity(self._directory / CHECKPOINT)
        if written is None or written != self._granted[0]:
            try:
                self._granted = written, await asyncio.to_thread(read_granted, self._directory, is_watched)
            except CheckpointError as error:
                self._log_unread("checkpoint_unreadable", str(error))
                self._granted = None, {}
        return self._granted[1]

    async def _ask(self) -> tuple[Holdings, Unknown | None]:
        """Return the holdings by pod-resources, and the reason why some may be missing; None if all are there."""
        kubelet = self._trust.kubelet()
        try:
            listing = await self._lister.list()
        except PodResourcesError as error:
            return (), Unknown(str(error))
        return listing.holdings, self._trust.doubt(listing, kubelet)

    def _log_doubt(self, doubt: Unknown | None) -> None:
        """Warn of a lasting doubt: the restart of a kubelet needs no attention."""
        now = self._clock()
        if doubt is None:
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now
        lasting = doubt if self._unknown_since is not None and now - self._unknown_since >= GRACE else None
        if self._changes.is_new("doubt", lasting) and lasting:
            _log.warning("retired_units_kept", reason=lasting.reason)

    def _log_unread(self, event: str, reason: str) -> None:
        # Repeatedly: without a readable record, a node may offer nothing until somebody sees the message.
        if self._unread.untold(reason, self._clock()) is not None:
            _log.error(event, reason=reason)


def _at_start(directory: Path, *, every_unit: bool) -> Holdings:
    # In this order: a checkpoint written in between shows as held the units no longer shown as listed.
    listed = (each for each in read_listed(directory) if every_unit or is_slice(each[1]))
    perhaps_held = tuple(Holding("", "", "", resource, frozenset({id_})) for resource, id_ in listed)
    return (*read_recorded(directory), *perhaps_held)


def _of_pods(shown: Iterable[Holding], directory: Path) -> tuple[Holdings, frozenset[tuple[str, str]] | None]:
    """Return the holdings `shown`, with UIDs, and all held units of the same pods, as resource and ID.

    The second is None if the checkpoint cannot be read: only the checkpoint has init containers.
    """
    try:
        holdings = combined(shown, read_recorded(directory))
    except CheckpointError:
        return combined(shown, ()), None
    return tuple(each for each in holdings if not each.only_recorded), held_by_shown(holdings)
