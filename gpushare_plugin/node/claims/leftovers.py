"""Forgets claims that nobody has any more, and of which no kubelet will tell: the kubelet lost its own record of them.

Claims that are allocated, and whose own record here is damaged, are prepared anew: their memory is known again.

A kubelet gives a claim back within a minute after the last pod of the claim is gone (kubernetes: pkg/kubelet/cm/dra,
1.36). What stays longer, is not allocated, and is not in a container by what the kubelet shows, belongs to nobody.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.text import in_words
from gpushare_plugin.kubelet.allocations.pod_resources import cdi_devices_of_claims
from gpushare_plugin.node.claims.cdi_files import CdiFiles
from gpushare_plugin.node.claims.hand_over import AllAllocated
from gpushare_plugin.node.claims.preparation import Preparation
from gpushare_plugin.node.claims.records import ClaimRecords

_log = structlog.get_logger()

LEFT_SECONDS = 180.0
"""Seconds for which nobody has a claim before the claim is forgotten."""
LOOK_AGAIN = 60.0
"""Seconds before the second look at a claim that nobody seems to have; then the looks are further and further apart."""
LOOK_EVERY = 1800.0
"""The most seconds between looks: every look lists the claims of the cluster."""


class Leftovers:
    """Looks for claims with a record or a CDI file that nobody has."""

    def __init__(  # noqa: PLR0913, PLR0917 - what tells of a claim
        self,
        driver: str,
        preparation: Preparation,
        records: ClaimRecords,
        files: CdiFiles,
        allocated: AllAllocated,
        socket: Path,
    ) -> None:
        """Compare `records` and `files` with the allocated claims and the pod-resources socket of the kubelet."""
        self._driver = driver
        self._preparation = preparation
        self._records = records
        self._files = files
        self._allocated = allocated
        self._socket = socket
        self._since: dict[str, float] = {}
        self._pauses = Backoff(first=LOOK_AGAIN, most=LOOK_EVERY)

    async def run(self) -> None:
        """Look at intervals, until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            pause = await self.look(clock)
            await asyncio.sleep(pause)

    async def look(self, clock: Callable[[], float]) -> float:
        """Forget the claims that nobody has had for a while, and mend damaged records of claims that are allocated.

        Returns the seconds until the next look.
        """
        await self._compare(clock)
        open_claims = self._since.keys() | self._damaged()
        return self._pauses.next(" ".join(sorted(open_claims))) if open_claims else LOOK_EVERY

    async def _compare(self, clock: Callable[[], float]) -> None:
        kept = self._kept()
        try:
            allocated = {each.id.uid: each.id for each in await self._allocated()} if kept else {}
            shown = await self._shown() if kept else frozenset[str]()
        except GpushareError as error:
            _log.debug("claims_not_compared", reason=in_words(error))
            return
        if damaged := [allocated[uid] for uid in self._damaged() if uid in allocated]:
            await self._preparation.prepare(damaged)
        now, alone = clock(), kept - allocated.keys() - shown
        self._since = {uid: self._since.get(uid, now) for uid in alone}
        for uid in [uid for uid, since in self._since.items() if now - since >= LEFT_SECONDS]:
            if reason := await self._preparation.forget(uid):
                _log.warning("claim_kept", uid=uid, reason=reason)
            else:
                del self._since[uid]
                _log.warning("claim_left_over", uid=uid)

    def _kept(self) -> frozenset[str]:
        """Return the UIDs of the claims with a record or a CDI file that were not given back."""
        known = self._records.claims.keys() | self._records.unreadable.keys() | self._files.uids()
        return frozenset(known - self._records.given_back)

    def _damaged(self) -> frozenset[str]:
        """Return the UIDs of the claims with a damaged record."""
        return frozenset(self._records.unreadable.keys() - self._records.newer.keys())

    async def _shown(self) -> frozenset[str]:
        """Return the UIDs of the claims that containers have by what the kubelet shows; raises GpushareError."""
        # By its CDI device, which has the UID in its name, a container shows its claim.
        names = await cdi_devices_of_claims(self._socket, self._driver)
        return frozenset(uid for uid in self._kept() if any(f"={uid}-" in name for name in names))
