"""Which units pods hold, as far as the kubelet can be believed.

That somebody holds a unit is believed at once. That nobody does is believed

- of a kubelet that knows its pods. One that has just started, or that has not reached the API server yet, shows none
  through pod-resources although their containers run on.
- of its record on disk, however young the kubelet is: pods leave it only once every source of pods was heard (see
  `sourcesReady` in pkg/kubelet/cm/devicemanager). But what is in memory only, such as an allocation of a moment ago,
  is missing; so the record must have been written after the kubelet was asked before.
"""

import time
from collections.abc import Callable
from pathlib import Path

import structlog

from gpushare_plugin.adapters.kubelet.allocations.checkpoint import CHECKPOINT, CheckpointError, read_held
from gpushare_plugin.adapters.kubelet.allocations.pod_resources import Listing, PodResourcesError, list_pods
from gpushare_plugin.adapters.kubelet.allocations.trust import DELAYS, PodName, Trust, TrustDelays
from gpushare_plugin.adapters.kubelet.device_plugin.directory import Identity, PluginDirectory, identity
from gpushare_plugin.foundation.changes import Changes
from gpushare_plugin.sharing.transition import Allocations

_log = structlog.get_logger()

ONLY_RECORDED = "a pod that only the kubelet's record shows"
"""Who holds a unit that is in the record alone: an init container, a pod not shown yet, or one that is over."""

GRACE = 10.0
"""Seconds for which it may be unknown what pods hold before that is warned of."""


class AllocationReader:
    """Asks the kubelet what pods hold."""

    def __init__(
        self,
        directory: PluginDirectory,
        pod_resources: Path,
        *,
        own_pod: PodName | None = None,
        delays: TrustDelays = DELAYS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask at the socket `pod_resources`; `own_pod` is the pod this process runs in, None where it is not known."""
        self._directory = directory
        self._pod_resources = pod_resources
        self._trust = Trust(directory, pod_resources, own_pod=own_pod, delays=delays, clock=clock)
        self._clock = clock
        self._asked: tuple[Identity | None, float] | None = None
        self._unknown_since: float | None = None
        self._changes = Changes()
        self.awaits_record = False
        """Whether a record that is written after this would tell more."""

    async def watch(self) -> None:
        """Notice when another kubelet comes, for ever: its age counts from then, not from when it is asked."""
        await self._trust.watch()

    async def held_at_start(self) -> frozenset[tuple[str, str]] | None:
        """Return resource and ID of every unit that containers may hold from before this process; None: not known yet.

        The kubelet's record is believed at once. Where it cannot be read, the kubelet is, where it knows its pods.
        """
        try:
            return read_held(self._directory.path)
        except CheckpointError as error:
            reason = str(error)
        listing, doubt = await self._ask()
        if listing is None or doubt is not None:
            self._log_unread("allocations_unknown", reason)
            return None
        return frozenset((holding.resource, id_) for holding in listing.holdings for id_ in holding.ids)

    async def read(self, now: float) -> Allocations | None:
        """Return every ID that is held and the pod that holds it; None when nothing is to be believed now.

        For what only the kubelet's record shows, which names no pod, that is ONLY_RECORDED. `now` is the time on the
        clock of whoever asks; what is believed for the record's sake is as old as the question before.
        """
        before, self._asked = self._asked, None
        listing, doubt = await self._ask()
        self.awaits_record = listing is not None and doubt is not None
        if listing is None:
            self._log_doubt(doubt)
            return None
        # Looked at before it is read: what is read was written no earlier. And after the kubelet was asked, upon which
        # it forgets the pods that are over, so that what it writes from now on is without them.
        written = identity(self._directory.path / CHECKPOINT)
        self._asked = written, now
        recorded = self._recorded()
        asked_at = now
        if doubt is not None:
            if recorded is None or before is None or written in {None, before[0]}:
                self._log_doubt(doubt)
                return None
            asked_at = before[1]
        self._log_doubt(None)
        return Allocations(_holders(recorded or frozenset(), listing), asked_at)

    def _recorded(self) -> frozenset[str] | None:
        """Return the IDs in the kubelet's record; None where it cannot be read."""
        try:
            return frozenset(id_ for _, id_ in read_held(self._directory.path))
        except CheckpointError as error:
            self._log_unread("checkpoint_unreadable", str(error))
            return None

    async def _ask(self) -> tuple[Listing | None, str | None]:
        """Ask the kubelet; return its answer, if any, and why it may not show every pod, None when it does."""
        kubelet = self._trust.kubelet()
        try:
            listing = await list_pods(self._pod_resources)
        except PodResourcesError as error:
            return None, str(error)
        return listing, self._trust.doubt(listing, kubelet)

    def _log_doubt(self, reason: str | None) -> None:
        """Warn of what lasts: while a kubelet restarts, nobody needs to do anything."""
        now = self._clock()
        if reason is None:
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now
        lasting = reason if self._unknown_since is not None and now - self._unknown_since >= GRACE else None
        if self._changes.is_new("doubt", lasting) and lasting:
            _log.warning("retired_units_kept", reason=lasting)

    def _log_unread(self, event: str, reason: str) -> None:
        if self._changes.is_new("record", reason):
            _log.error(event, reason=reason)


def _holders(recorded: frozenset[str], listing: Listing) -> dict[str, str]:
    return dict.fromkeys(recorded, ONLY_RECORDED) | {
        id_: f"{holding.namespace}/{holding.pod}" for holding in listing.holdings for id_ in sorted(holding.ids)
    }
