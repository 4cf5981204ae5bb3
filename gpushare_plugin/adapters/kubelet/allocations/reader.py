"""Which units pods hold, as far as the kubelet can be believed.

That somebody holds a unit is believed at once. That nobody does is believed

- of a kubelet that knows its pods. One that has just started, or that has not reached the API server yet, shows none
  through pod-resources although their containers run on.
- of its record on disk, however young the kubelet is: pods leave it only once every source of pods was heard (see
  `sourcesReady` in pkg/kubelet/cm/devicemanager). But what is in memory only, such as an allocation of a moment ago,
  is missing; so the record must have been written after the kubelet was asked before.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from gpushare_plugin.adapters.kubelet.allocations.checkpoint import CHECKPOINT, CheckpointError, read_held
from gpushare_plugin.adapters.kubelet.allocations.pod_resources import Listing, PodResourcesError, list_pods
from gpushare_plugin.adapters.kubelet.device_plugin.directory import KUBELET_SOCKET, Identity, PluginDirectory, identity
from gpushare_plugin.sharing.transition import Allocations

_log = structlog.get_logger()

ONLY_RECORDED = "a pod that only the kubelet's record shows"
"""Who holds a unit that is in the record alone: an init container, a pod not shown yet, or one that is over."""

LOOK_EVERY = 1.0
"""Seconds between looks at which kubelet is there."""

GRACE = 10.0
"""Seconds for which it may be unknown what pods hold before that is warned of."""

PodName = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class TrustDelays:
    """Seconds for which the same kubelet must have been there before its "nobody holds this" is believed.

    `own_pod_shown` counts from when it showed the pod this process runs in, and so knows the pods of the API server;
    `unknown` from when it was first seen, where nobody knows in which pod this process runs.
    """

    own_pod_shown: float = 5.0
    unknown: float = 60.0


class AllocationReader:
    """Asks the kubelet what pods hold."""

    def __init__(
        self,
        directory: PluginDirectory,
        pod_resources: Path,
        *,
        own_pod: PodName | None = None,
        delays: TrustDelays = TrustDelays(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask at the socket `pod_resources`; `own_pod` is the pod this process runs in, None where it is not known."""
        self._directory = directory
        self._pod_resources = pod_resources
        self._own_pod = own_pod
        self._delays = delays
        self._clock = clock
        self._kubelet = self._identities()
        self._known_since: float | None = None if own_pod else clock()
        self._asked: tuple[Identity | None, float] | None = None
        self._unknown_since: float | None = None
        self._told: str | None = None
        self._told_unread: str | None = None
        self.awaits_record = False
        """Whether a record that is written after this would tell more."""

    async def watch(self) -> None:
        """Notice when another kubelet comes, for ever: its age counts from then, not from when it is asked."""
        while True:
            self._look()
            await asyncio.sleep(LOOK_EVERY)

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
            self._tell_unread("nothing is offered until it is known what pods hold", reason)
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
            self._tell(doubt)
            return None
        # Looked at before it is read: what is read was written no earlier. And after the kubelet was asked, upon which
        # it forgets the pods that are over, so that what it writes from now on is without them.
        written = identity(self._directory.path / CHECKPOINT)
        self._asked = written, now
        recorded = self._recorded()
        asked_at = now
        if doubt is not None:
            if recorded is None or before is None or written in {None, before[0]}:
                self._tell(doubt)
                return None
            asked_at = before[1]
        self._tell(None)
        return Allocations(_holders(recorded or frozenset(), listing), asked_at)

    def _recorded(self) -> frozenset[str] | None:
        """Return the IDs in the kubelet's record; None where it cannot be read."""
        try:
            return frozenset(id_ for _, id_ in read_held(self._directory.path))
        except CheckpointError as error:
            self._tell_unread("units that only init containers hold are not seen", str(error))
            return None

    async def _ask(self) -> tuple[Listing | None, str | None]:
        """Ask the kubelet; return its answer, if any, and why it may not show every pod, None when it does."""
        before = self._look()
        try:
            listing = await list_pods(self._pod_resources)
        except PodResourcesError as error:
            return None, str(error)
        return listing, self._doubt(listing, before)

    def _doubt(self, listing: Listing, before: tuple[Identity | None, ...]) -> str | None:
        """Return why it is not believed that `listing` shows every pod, None when it is."""
        if self._look() != before or None in before:
            return "the kubelet is another than before"
        if self._own_pod is not None and self._own_pod not in listing.pods:
            self._known_since = None
            return f"the kubelet does not show our own pod {'/'.join(self._own_pod)}, so it may not know others"
        now = self._clock()
        if self._known_since is None:
            self._known_since = now
        delay = self._delays.own_pod_shown if self._own_pod else self._delays.unknown
        return "the kubelet may not know its pods yet" if now - self._known_since < delay else None

    def _look(self) -> tuple[Identity | None, ...]:
        """Return which kubelet is there, and take note of when it came."""
        if (kubelet := self._identities()) != self._kubelet:
            self._kubelet, self._known_since = kubelet, None if self._own_pod else self._clock()
        return kubelet

    def _identities(self) -> tuple[Identity | None, ...]:
        """Return which kubelet is there: each of its two sockets can be older than the other."""
        return self._directory.identity(KUBELET_SOCKET), identity(self._pod_resources)

    def _tell(self, reason: str | None) -> None:
        """Warn of what lasts: while a kubelet restarts, nobody needs to do anything."""
        if reason is None:
            self._unknown_since = self._told = None
            return
        now = self._clock()
        self._unknown_since = now if self._unknown_since is None else self._unknown_since
        if now - self._unknown_since >= GRACE and reason != self._told:
            _log.warning("units on their way out stay listed, for it is not known yet who holds them", reason=reason)
            self._told = reason

    def _tell_unread(self, event: str, reason: str) -> None:
        if reason != self._told_unread:
            _log.error(event, reason=reason)
        self._told_unread = reason


def _holders(recorded: frozenset[str], listing: Listing) -> dict[str, str]:
    return dict.fromkeys(recorded, ONLY_RECORDED) | {
        id_: f"{holding.namespace}/{holding.pod}" for holding in listing.holdings for id_ in sorted(holding.ids)
    }
