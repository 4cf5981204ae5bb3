"""The DRA plugin of a node: serves the kubelet's calls for claims at one socket, and registers by another.

The kubelet looks for sockets in the registry directory, also when a kubelet starts. So the plugin registers by being
there, and has to do nothing when the kubelet restarts; the plugin makes a socket again that somebody removed.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

import structlog

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.base.published import Published
from gpushare_plugin.base.tasks import beside
from gpushare_plugin.kubelet.dra_plugin import registration as registering
from gpushare_plugin.kubelet.dra_plugin import service as serving
from gpushare_plugin.kubelet.dra_plugin.claim_service import ClaimService
from gpushare_plugin.kubelet.dra_plugin.registration import Registration, RegistrationService
from gpushare_plugin.kubelet.dra_plugin.service import HEALTH_SECONDS, DraService
from gpushare_plugin.kubelet.dra_plugin.sockets import SocketPaths
from gpushare_plugin.kubelet.serving.calls import Calls
from gpushare_plugin.kubelet.serving.own_socket import OwnSocket
from gpushare_plugin.kubelet.serving.troubles import GRACE, Troubles
from gpushare_plugin.kubelet.serving.watched_directory import WatchedDirectory

_log = structlog.get_logger()

LONGEST_CALLS = 15.0
"""Seconds that calls under way have to end when the plugin ends: a kubelet tries a failed call again after a minute."""


class DraPlugin:
    """Keeps the calls for claims served, and the plugin registered."""

    def __init__(
        self,
        kubelet_root: Path,
        driver: str,
        claims: ClaimService,
        *,
        health_seconds: float = HEALTH_SECONDS,
        grace: float = GRACE,
    ) -> None:
        """Prepare to serve `claims` as the DRA driver `driver`, below the root directory of the kubelet.

        The health is sent again after `health_seconds`, and trouble that lasts for `grace` seconds is warned of. Raises
        GpushareError if the path of a socket is too long.
        """
        self._log = _log.bind(dra_driver=driver)
        self._wake = asyncio.Event()
        self._backoff = Backoff()
        self._troubles = Troubles(self._warn, lambda: self.served and not self.registered.value.refusal, grace)
        self._paths = SocketPaths(kubelet_root, driver)
        self._registry = WatchedDirectory(self._paths.registration.parent)
        self._plugins = WatchedDirectory(self._paths.endpoint.parent)
        self.calls = Calls()
        """The calls for claims."""
        self._service = DraService(claims, self.calls, health_seconds)
        self._endpoint = OwnSocket(
            self._plugins, self._paths.endpoint.name, self._service.add_to, serving.SERVER_OPTIONS
        )
        registration = RegistrationService(driver, str(self._paths.endpoint), self._said)
        self._registration = OwnSocket(
            self._registry, self._paths.registration.name, registration.add_to, registering.SERVER_OPTIONS
        )
        self.registered: Published[Registration] = registration.registration
        """What the kubelet said last."""

    @property
    def served(self) -> bool:
        """Whether both sockets are there."""
        return self._endpoint.served and self._registration.served

    async def run(self) -> None:
        """Serve until cancelled; then let calls under way end, and remove both sockets."""
        async with beside(self._registry.watch()), beside(self._plugins.watch()):
            with self._registry.notifying(self._wake.set), self._plugins.notifying(self._wake.set):
                try:
                    await self._keep()
                finally:
                    self._troubles.close()
                    await self._leave()

    async def _keep(self) -> None:
        while True:
            self._wake.clear()
            wait = await self._mend()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    async def _mend(self) -> float | None:
        """Make the sockets that are missing; return the seconds until the next attempt, None to wait for a change."""
        self._paths.sweep()
        try:
            await self._serve()
        except OSError as error:
            self._note("dra_plugin_failed", reason=str(error))
            return self._backoff.next()
        self._backoff.reset()
        return None

    async def _serve(self) -> None:
        """Serve the calls first: the kubelet calls as soon as the other socket is there."""
        if self.served:
            return
        for directory in (self._registry.path, self._plugins.path.parent):
            if not directory.is_dir():
                raise OSError(f"{directory} is not a directory; is the kubelet's directory of this name mounted here?")
        if not self._endpoint.served:
            self._plugins.path.mkdir(mode=0o750, exist_ok=True)
            await self._endpoint.serve()
        if not self._registration.served:
            await self._registration.serve()
        self._log.info("dra_plugin_serving", path=str(self._endpoint.path))

    async def _leave(self) -> None:
        """End the calls first: a kubelet that misses the registration ends its connection, with the calls under way."""
        self._service.end_streams()
        try:
            await self._endpoint.stop(LONGEST_CALLS)
        finally:
            await self._registration.stop()

    def _said(self, said: Registration) -> None:
        if said.refusal:
            self._note("dra_plugin_refused", reason=said.refusal)
        else:
            self._log.info("dra_plugin_registered", count=said.times)

    def _note(self, event: str, **facts: str) -> None:
        """Warn of a trouble if it lasts."""
        self._troubles.note(event, facts)

    def _warn(self, event: str, facts: Mapping[str, str]) -> None:
        self._log.warning(event, **facts)
