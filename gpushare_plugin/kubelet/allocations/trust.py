"""Judges whether the kubelet shows every pod of this node, or may not know all its pods yet."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.holding import Unknown
from gpushare_plugin.kubelet.allocations.pod_resources import Listing
from gpushare_plugin.kubelet.device_plugin.directory import KUBELET_SOCKET
from gpushare_plugin.kubelet.serving.watched_directory import Identity, identity

LOOK_EVERY = 1.0
"""Seconds between looks at the kubelet's sockets."""

PodName = tuple[str, str]
"""Namespace and name of a pod."""

Kubelet = tuple[Identity | None, ...]
"""The identities of the kubelet's two sockets, which change with the kubelet; either socket can be the older one."""


class TrustDelays(Struct, frozen=True):
    """Seconds of waiting for the same kubelet before a unit that it does not show counts as free."""

    own_pod_shown: float = 5.0
    """Seconds since the kubelet first showed the pod of this process, which proves that it reached the API server."""
    unknown: float = 60.0
    """Seconds since the first sight of the kubelet, if the pod of this process is unknown."""


DELAYS = TrustDelays()
"""The delays of the daemon."""


class Trust:
    """Notices the start of another kubelet, and decides when a kubelet knows its pods."""

    def __init__(
        self,
        directory: Path,
        pod_resources: Path,
        *,
        own_pod: PodName | None,
        delays: TrustDelays,
        clock: Callable[[], float],
    ) -> None:
        """Look at the kubelet's sockets in `directory` and at `pod_resources`; an unknown `own_pod` is None."""
        self._directory = directory
        self._pod_resources = pod_resources
        self._own_pod = own_pod
        self._delays = delays
        self._clock = clock
        self._kubelet = self._identities()
        self._known_since: float | None = None if own_pod else clock()

    async def watch(self) -> None:
        """Notice each new kubelet until cancelled: its delay counts from now on, not from the first question."""
        while True:
            self.kubelet()
            await asyncio.sleep(LOOK_EVERY)

    def kubelet(self) -> Kubelet:
        """Return the identity of the present kubelet, and note the time of its first sight."""
        if (kubelet := self._identities()) != self._kubelet:
            self._kubelet, self._known_since = kubelet, None if self._own_pod else self._clock()
        return kubelet

    def doubt(self, listing: Listing, asked: Kubelet) -> Unknown | None:
        """Return why `listing`, the answer of the kubelet `asked`, may not show every pod; None if complete."""
        if self.kubelet() != asked or None in asked:
            return Unknown("the kubelet restarted while it was asked, or is not running", answered=True)
        if self._own_pod is not None and self._own_pod not in listing.pods:
            self._known_since = None
            own_pod = "/".join(self._own_pod)
            return Unknown(f"the kubelet does not show our own pod {own_pod}, so it may not know others", answered=True)
        now = self._clock()
        if self._known_since is None:
            self._known_since = now
        delay = self._delays.own_pod_shown if self._own_pod else self._delays.unknown
        known = now - self._known_since >= delay
        return None if known else Unknown("the kubelet may not know its pods yet", answered=True)

    def _identities(self) -> Kubelet:
        return identity(self._directory / KUBELET_SOCKET), identity(self._pod_resources)
