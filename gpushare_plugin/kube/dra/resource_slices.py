"""Keeps the ResourceSlices of one DRA driver on the own node in line with the devices that the node offers.

Others delete them, too: the kubelet deletes those of its node when it starts, and those of a DRA driver whose
connection has been gone for 30 s (kubernetes, pkg/kubelet/cm/dra/plugin, 1.36).
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus

import structlog

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.base.published import Published, changes
from gpushare_plugin.base.tasks import beside
from gpushare_plugin.claims.device import Device
from gpushare_plugin.kube.client import Client, ClusterError, Object
from gpushare_plugin.kube.dra.acceptance import Acceptance
from gpushare_plugin.kube.dra.objects import RESOURCE_SLICES, ApiResourceSliceSpec
from gpushare_plugin.kube.dra.pauses import BETWEEN_WRITES, WritePauses
from gpushare_plugin.kube.dra.pool import Pool, Specs, can_lose, incomplete, is_same
from gpushare_plugin.kube.dra.seen import SeenResourceSlices
from gpushare_plugin.kube.dra.writer import ResourceSliceWriter

_log = structlog.get_logger()

LOOK_EVERY = 60.0
"""Seconds between two looks at whether a field that the API server dropped is due to be tried again."""

CONSEQUENCE = "the scheduler does not see the GPUs that this node offers to claims as they are"
"""The consequence of a failure to write, for the log."""
RIGHTS = "grant list, watch, create, patch and delete of resourceslices (in the chart: dra.enabled)"
"""The remedy for a missing right."""
PATIENCE = 4
"""The number of conflicts in a row after which a conflict counts as a failure."""
_OUTDATED = frozenset({HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND})
"""The statuses for a version that is not the newest, and for a ResourceSlice that is gone or was made by others."""

UNREAD = (
    "the ResourceSlices of this node have not been read yet; the API server must have resource.k8s.io/v1, as all have "
    "from Kubernetes 1.34 on"
)
"""Why claims cannot get GPUs at the start, for people."""


class ResourceSlices:
    """The ResourceSlices of one DRA driver on one node; they stay when `run` ends."""

    def __init__(
        self, client: Client, driver: str, node_name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Publish devices of `driver` on the Node `node_name`, in the pool of that name.

        `clock` returns a monotonic time in seconds. Of several daemons on the node, one should publish at a time: those
        that want different devices mend what the others write, at longer and longer intervals.
        """
        self._client = client
        self._clock = clock
        self._pool = Pool(driver, node_name)
        self._seen = SeenResourceSlices(self._pool)
        self._writer = ResourceSliceWriter(client, self._pool, self._seen)
        self._acceptance = Acceptance(self._clock)
        self._pauses = WritePauses()
        self._failures = client.timing.backoff()
        self._conflicts = Backoff(first=BETWEEN_WRITES, most=LOOK_EVERY)
        # What was there when all was written.
        self._settled: Specs = {}
        self.mended = 0
        """The number of ResourceSlices that were found deleted or changed by somebody else, and were written again."""
        self.trouble = Published(UNREAD)
        """Why claims cannot get all GPUs that they should, with the remedy; empty where they can."""

    @property
    def devices(self) -> Published[frozenset[str] | None]:
        """The names of the devices that the API server shows; None before they are known."""
        return self._seen.devices

    @property
    def written(self) -> int:
        """The number of writes of ResourceSlices, deletions included."""
        return self._writer.written

    async def run(self, wanted: Published[tuple[Device, ...] | None], nodes: Published[Object | None]) -> None:
        """Keep the ResourceSlices in line with `wanted`, with the newest Node as their owner; runs until cancelled.

        None withdraws all ResourceSlices; no devices are one ResourceSlice without devices. Without a Node nothing is
        written, but ResourceSlices are withdrawn.
        """
        async with beside(self._seen.follow(self._client, self._forbidden)):
            async for _ in changes(wanted, nodes, self._seen.changed, every=LOOK_EVERY):
                while self._seen.listed and await self._went_on(wanted.value, nodes.value):
                    pass

    async def _went_on(self, wanted: Sequence[Device] | None, node: Object | None) -> bool:
        """Write the differences; return whether there may be more, after a wait."""
        changed, written, mended = self._seen.changed.replaced, self.written, self.mended
        try:
            await self._write(wanted, node)
        except ClusterError as error:
            await self._wait_out(error, changed)
            return True
        self._failures.reset()
        self._conflicts.reset()
        self._tell(*self._acceptance.trouble)
        if self.written == written:
            return False
        await asyncio.sleep(self._pauses.after(mended=self.mended != mended, now=self._clock()))
        return True

    async def _write(self, wanted: Sequence[Device] | None, node: Object | None) -> None:
        """Write the differences until the API server accepts all that is written; raises ClusterError."""
        specs: Specs = {}
        if wanted is not None:
            if node is None:
                return
            specs = await self._published(wanted, node["metadata"]["uid"])
        for name in sorted(self._seen.by_name.keys() - specs.keys()):
            await self._writer.delete(name)
        self._settled = specs

    async def _published(self, wanted: Sequence[Device], owner: str) -> Specs:
        """Write what the API server accepts of what is wanted, and return it; raises ClusterError."""
        while (specs := await self._accepted(wanted, owner)) is None:
            pass
        self._acceptance.all_kept()
        return specs

    async def _accepted(self, wanted: Sequence[Device], owner: str) -> Specs | None:
        """Write what is wanted and return it, None where the API server does not accept it; raises ClusterError."""
        there = self._writer.there
        specs = self._pool.specs(self._acceptance.accepted(wanted), there)
        self._count_mends(specs, there)
        # The scheduler must not use a pool before it is known that the API server has kept all fields.
        for each in (incomplete(specs), specs) if can_lose(specs, there) else (specs,):
            for name, spec in each.items():
                if not self._writer.is_current(name, spec, owner) and not await self._put(name, spec, owner):
                    return None
        return specs

    def _count_mends(self, specs: Specs, there: Specs) -> None:
        """Count what somebody else has deleted or changed since all was written, unless something else is wanted."""
        settled, self._settled = self._settled, {}
        if all(name in settled and settled[name].devices == spec.devices for name, spec in specs.items()):
            found = sorted(name for name in specs if not is_same(there.get(name), settled[name]))
            self.mended += len(found)
            if found:
                _log.info("resource_slices_mended", resource_slices=found)

    async def _put(self, name: str, spec: ApiResourceSliceSpec, owner: str) -> bool:
        """Write one ResourceSlice; return whether the API server accepts all of it. Raises ClusterError."""
        try:
            kept = await self._writer.put(name, spec, owner)
        except ClusterError as error:
            if not self._acceptance.learn_refusal(error, spec):
                raise
            return False
        return self._acceptance.learn_kept(spec, kept)

    async def _wait_out(self, error: ClusterError, changed: asyncio.Event) -> None:
        """Wait after a failure; somebody else's write, which the watch will show, is no trouble unless it repeats."""
        if error.status in _OUTDATED and self._conflicts.failures < PATIENCE:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._conflicts.next()):
                    await changed.wait()
            return
        self._tell(f"{error}; {RIGHTS}" if error.lacks_right else str(error))
        await self._client.wait_out(error, self._failures, RESOURCE_SLICES, CONSEQUENCE)

    def _forbidden(self) -> None:
        self._tell(f"the ResourceSlices of this node cannot be read; {RIGHTS}")

    def _tell(self, *reasons: str) -> None:
        """Publish what is wrong, where that is new."""
        trouble = "; ".join(reasons)
        if trouble != self.trouble.value:
            self.trouble.publish(trouble)
