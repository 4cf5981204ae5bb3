"""The ResourceSlices that exist of one DRA driver on one node, as a watch shows them."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress

from gpushare_plugin.base.published import Published
from gpushare_plugin.kube.client import Client
from gpushare_plugin.kube.collection import Collection, Gone, Listed, Put
from gpushare_plugin.kube.dra.objects import RESOURCE_SLICES, ApiResourceSlice
from gpushare_plugin.kube.dra.pool import Pool

CATCH_UP = 5.0
"""Seconds in which the watch should show a write; later, writes begin again from what the watch shows."""
_REMEMBERED = 100
"""The number of versions and deletions that are remembered: more than there are between a write and its answer."""


class SeenResourceSlices:
    """The newest version of each ResourceSlice that the watch has shown.

    The watch alone tells the order of writes: the answer to a write may arrive before or after the write of somebody
    else that followed.
    """

    def __init__(self, pool: Pool) -> None:
        """Have seen nothing yet."""
        self._pool = pool
        self._there: dict[str, ApiResourceSlice] = {}
        self._versions: deque[str] = deque(maxlen=_REMEMBERED)
        self._gone: deque[str] = deque(maxlen=_REMEMBERED)
        self._lists = 0
        self.changed = Published(0)
        """The number of changes."""
        self.devices: Published[frozenset[str] | None] = Published(None)
        """The names of the devices in the ResourceSlices; None before the first list."""

    @property
    def by_name(self) -> Mapping[str, ApiResourceSlice]:
        """The ResourceSlices, by name."""
        return self._there

    @property
    def listed(self) -> bool:
        """Whether a list of all ResourceSlices is complete."""
        return self._lists > 0

    async def follow(self, client: Client, forbidden: Callable[[], None]) -> None:
        """Follow the ResourceSlices; never ends. `forbidden` is called when the server forbids reading them."""
        following = Collection(
            client,
            RESOURCE_SLICES,
            ApiResourceSlice,
            selector=f"spec.driver={self._pool.driver},spec.nodeName={self._pool.node}",
            consequence="ResourceSlices of this node that somebody deletes or changes stay so",
            forbidden=forbidden,
        )
        async with aclosing(following.changes()) as changes:
            async for change in changes:
                match change:
                    case Put(found):
                        self._there[found.metadata.name] = found
                        self._versions.append(found.metadata.resource_version)
                    case Gone(uid=uid, name=name):
                        del self._there[name]
                        self._gone.append(uid)
                    case Listed():
                        self._lists += 1
                self._publish()

    async def caught_up(self, uid: str, version: str = "") -> None:
        """Wait until the watch shows a version of the ResourceSlice with this UID, or that it is gone; not forever."""
        lists = self._lists
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP):
                while version not in self._versions and uid not in self._gone and self._lists == lists:
                    await self.changed.replaced.wait()

    def _publish(self) -> None:
        devices = frozenset(device.name for each in self._there.values() for device in each.spec.devices)
        if self.listed and devices != self.devices.value:
            self.devices.publish(devices)
        self.changed.publish(self.changed.value + 1)
