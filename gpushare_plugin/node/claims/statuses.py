"""Writes into prepared claims what they got: the UUID of the GPU, the limit, and whether the limit is in effect."""

import asyncio
from collections.abc import Iterable

import structlog

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.published import Published, changes
from gpushare_plugin.base.text import in_words
from gpushare_plugin.claims.claim import ClaimRefusedError
from gpushare_plugin.claims.status import DeviceStatus
from gpushare_plugin.core.prepared_claim import PreparedClaim
from gpushare_plugin.kube.dra.claims import Claims

_log = structlog.get_logger()

TRY_EVERY = 60.0
"""Seconds between attempts to write a status that could not be written."""
AFTER_ANSWERS = 0.05
"""Seconds after a change of the claims in which the kubelet gets its answers, before anything follows from them."""


class Statuses:
    """The `status.devices` of prepared claims."""

    def __init__(self, claims: Claims, prepared: Published[tuple[PreparedClaim, ...]]) -> None:
        """Write the status of the `prepared` claims with `claims`."""
        self._claims = claims
        self._prepared = prepared
        self._written: dict[str, PreparedClaim] = {}

    async def run(self) -> None:
        """Write the status of each claim once it is prepared; runs until cancelled."""
        async for _ in changes(self._prepared, every=TRY_EVERY):
            await asyncio.sleep(AFTER_ANSWERS)
            claims = {each.id.uid: each for each in self._prepared.value if each.done}
            self._written = {uid: each for uid, each in self._written.items() if uid in claims}
            await self._write(each for uid, each in claims.items() if self._written.get(uid) != each)

    async def _write(self, claims: Iterable[PreparedClaim]) -> None:
        for claim in claims:
            try:
                await self._claims.write_status(claim.id, _entries(claim))
            except ClaimRefusedError:
                pass
            except GpushareError as error:
                _log.warning("claim_status_not_written", claim=claim.id.label, uid=claim.id.uid, reason=in_words(error))
                continue
            self._written[claim.id.uid] = claim


def _entries(claim: PreparedClaim) -> list[DeviceStatus]:
    return [
        DeviceStatus(
            each.pool,
            each.device,
            each.gpu,
            each.share_id,
            memory_mib=each.memory_mib or None,
            percent=each.percent,
            isolation=each.isolation,
        )
        for each in claim.devices
    ]
