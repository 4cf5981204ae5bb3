"""Which units pods hold, as far as the kubelet can be believed.

That somebody holds a unit is believed at once. That nobody does is believed only of a kubelet that knows its pods: one
that has just started, or that has not reached the API server yet, shows none although their containers run on.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from gpushare_plugin.adapters.kubelet.allocations.checkpoint import CheckpointError, read_held
from gpushare_plugin.adapters.kubelet.allocations.pod_resources import Listing, PodResourcesError, list_pods
from gpushare_plugin.adapters.kubelet.device_plugin.directory import KUBELET_SOCKET, Identity, PluginDirectory, identity

_log = structlog.get_logger()

OVER_OR_BEGINNING = "a pod that is over, or its init container"
"""Who holds a unit that the kubelet has recorded and does not show."""

PodName = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds for which the same kubelet must have been there before its "nobody holds this" is believed.

    `own_pod_shown` counts from when it showed the pod this process runs in, and so knows the pods of the API server;
    `unknown` from when it was first seen, where nobody knows in which pod this process runs.
    """

    own_pod_shown: float = 5.0
    unknown: float = 60.0


class Ledger:
    """Asks the kubelet what pods hold."""

    def __init__(
        self,
        directory: PluginDirectory,
        pod_resources: Path,
        *,
        own_pod: PodName | None = None,
        patience: Patience = Patience(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask at the socket `pod_resources`; `own_pod` is the pod this process runs in, None where it is not known."""
        self._directory = directory
        self._pod_resources = pod_resources
        self._own_pod = own_pod
        self._patience = patience
        self._clock = clock
        self._kubelet = self._identities()
        self._known_since: float | None = None if own_pod else clock()
        self._told: str | None = None
        self._told_unread: str | None = None

    async def before(self) -> frozenset[tuple[str, str]] | None:
        """Return resource and ID of every unit that containers may hold from before this process; None: not known yet.

        The kubelet's record is believed at once. Where it cannot be read, the kubelet is, as far as `held` believes it.
        """
        try:
            return read_held(self._directory.path)
        except CheckpointError as error:
            reason = str(error)
        if (listing := await self._listing()) is None:
            self._tell_unread("nothing is offered until it is known what pods hold", reason)
            return None
        return frozenset((holding.resource, id_) for holding in listing.holdings for id_ in holding.ids)

    async def held(self) -> dict[str, str] | None:
        """Return every ID that is held and the pod that holds it; None when the kubelet cannot be believed now.

        For what only the kubelet's record shows, which names no pod, that is OVER_OR_BEGINNING.
        """
        if (listing := await self._listing()) is None:
            return None
        try:
            recorded = read_held(self._directory.path)
        except CheckpointError as error:
            self._tell_unread("units that only init containers hold are not seen", str(error))
            recorded = frozenset()
        return {id_: OVER_OR_BEGINNING for _, id_ in recorded} | {
            id_: f"{holding.namespace}/{holding.pod}" for holding in listing.holdings for id_ in sorted(holding.ids)
        }

    async def _listing(self) -> Listing | None:
        """Ask the kubelet; None when its answer is not to be believed, or does not come."""
        before = self._identities()
        try:
            listing = await list_pods(self._pod_resources)
        except PodResourcesError as error:
            self._tell(str(error))
            return None
        reason = self._doubt(listing, before)
        self._tell(reason)
        return listing if reason is None else None

    def _doubt(self, listing: Listing, before: tuple[Identity | None, ...]) -> str | None:
        """Return why it is not believed that `listing` shows every pod, None when it is."""
        now = self._clock()
        if before != self._kubelet or self._identities() != before or None in before:
            self._kubelet, self._known_since = self._identities(), None if self._own_pod else now
            return "the kubelet is another than before"
        if self._own_pod is not None and self._own_pod not in listing.pods:
            self._known_since = None
            return f"the kubelet does not show our own pod {'/'.join(self._own_pod)}, so it may not know others"
        if self._known_since is None:
            self._known_since = now
        patience = self._patience.own_pod_shown if self._own_pod else self._patience.unknown
        return "the kubelet may not know its pods yet" if now - self._known_since < patience else None

    def _identities(self) -> tuple[Identity | None, ...]:
        """Return which kubelet is there: each of its two sockets can be older than the other."""
        return self._directory.identity(KUBELET_SOCKET), identity(self._pod_resources)

    def _tell(self, reason: str | None) -> None:
        if reason is not None and reason != self._told:
            _log.warning("units on their way out stay listed, for it is not known yet who holds them", reason=reason)
        self._told = reason

    def _tell_unread(self, event: str, reason: str) -> None:
        if reason != self._told_unread:
            _log.error(event, reason=reason)
        self._told_unread = reason
