"""How the kubelet deletes ResourceSlices of drivers that are not there."""

import asyncio
import logging

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.kube.client import ClusterError
from gpushare_plugin.testing.clock import Clock
from gpushare_plugin.testing.kubelet.dra_manager.node_api import NodeApi

DELAY_SECONDS = 30.0
"""How long a driver may be without a connection (kubernetes: pkg/kubelet/cm/dra/manager.go, defaultWipingDelay)."""

NOT_FOUND = 404

log = logging.getLogger(__name__)


class SliceWipes:
    """Deletes ResourceSlices in the background, and tries again until the API server has done that.

    As wipeResourceSlices does (kubernetes: pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go), but without jitter, and
    without a look at the Node, which has to be there.
    """

    def __init__(self, api: NodeApi, clock: Clock) -> None:
        """Wait by `clock`."""
        self._api = api
        self._clock = clock
        self._all: asyncio.Task[None] | None = None
        self._pending: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Delete the slices of all drivers: none has registered with a kubelet that starts."""
        self._all = asyncio.create_task(self._wipe(None), name="wipe of all ResourceSlices")

    def schedule(self, driver: str) -> None:
        """Delete the slices of a driver in 30 s; where that is planned, the earlier plan stays."""
        if driver not in self._pending:
            self._pending[driver] = asyncio.create_task(self._wipe_later(driver), name=f"wipe of {driver}")

    def cancel(self, driver: str) -> None:
        """Keep the slices of a driver that is connected again."""
        if task := self._pending.pop(driver, None):
            task.cancel()

    async def close(self) -> None:
        """Delete nothing more."""
        tasks = [task for task in (self._all, *self._pending.values()) if task is not None]
        self._pending.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wipe_later(self, driver: str) -> None:
        await self._clock.sleep(DELAY_SECONDS)
        await self._wipe(driver)
        self._pending.pop(driver, None)

    async def _wipe(self, driver: str | None) -> None:
        backoff = Backoff(first=1.0, most=300.0)
        while True:
            try:
                await self._api.delete_slices(driver)
            except ClusterError as error:
                if error.status == NOT_FOUND:
                    return
                log.info("deleting ResourceSlices failed, retrying: %s", error)
            else:
                return
            await self._clock.sleep(backoff.next())
