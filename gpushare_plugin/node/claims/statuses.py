"""Writes into prepared claims what they got: the UUID of the GPU, the limit, and whether the limit is in effect."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

import structlog

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.published import Published, changes
from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.base.text import in_words
from gpushare_plugin.claims.claim import ClaimRefusedError
from gpushare_plugin.claims.effects import DeviceShare, device_effects, share_effects
from gpushare_plugin.claims.status import DeviceStatus
from gpushare_plugin.core.claim_limits import compute_limit_percent, memory_limit_mib
from gpushare_plugin.core.effect import Effect
from gpushare_plugin.core.prepared_claim import PreparedClaim
from gpushare_plugin.core.usage import Usage
from gpushare_plugin.kube.dra.claims import Claims

_log = structlog.get_logger()

LOOK_EVERY = 60.0
"""Seconds between looks at what could not be written, or was written a moment before."""
MOST_ATTEMPTS, WITHIN = 3, 180.0
"""The most attempts to write the status of a claim in so many seconds: programs may start and fail again and again."""
BETWEEN_CLAIMS = 0.05
"""Seconds between the requests for one claim and for the next: after a restart, each of some hundred claims is read."""
AFTER_ANSWERS = 0.05
"""Seconds after a change of the claims in which the kubelet gets its answers, before anything follows from them."""


class _Said(Struct, frozen=True):
    """What is said of a claim."""

    claim: PreparedClaim
    """The claim."""
    effects: tuple[Effect | None, ...]
    """Whether the limit of each device is in effect; None where that is not known, and without a limit."""


class Statuses:
    """The `status.devices` of prepared claims."""

    def __init__(
        self,
        claims: Claims,
        prepared: Published[tuple[PreparedClaim, ...]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write the status of the `prepared` claims with `claims`; `clock` returns a monotonic time in seconds."""
        self._claims = claims
        self._prepared = prepared
        self._clock = clock
        self._effects: Published[Mapping[DeviceShare, Effect]] = Published({})
        self._written: dict[str, _Said] = {}
        self._tried: dict[str, deque[float]] = {}

    def learn(self, usage: Usage) -> None:
        """Take in whether limits are in effect; nothing changes while the holdings of containers are unknown."""
        if usage.held is not None and (found := share_effects(usage.containers)) != self._effects.value:
            self._effects.publish(found)

    async def run(self) -> None:
        """Write the status of each claim once it is prepared, and after changes; runs until cancelled."""
        async for _ in changes(self._prepared, self._effects, every=LOOK_EVERY):
            await asyncio.sleep(AFTER_ANSWERS)
            await self.write()

    async def write(self) -> None:
        """Write once what has changed, but of claims whose status was tried too often.

        Claims that were never tried come first. Where claims come or go meanwhile, the rest is left for the next call.
        """
        claims = {each.id.uid: each for each in self._prepared.value if each.done}
        self._written = {uid: each for uid, each in self._written.items() if uid in claims}
        self._tried = {uid: at for uid, at in self._tried.items() if uid in claims}
        others = self._prepared.replaced
        for number, said in enumerate(sorted(self._due(claims), key=lambda each: each.claim.id.uid in self._tried)):
            if number:
                await asyncio.sleep(BETWEEN_CLAIMS)
            if others.is_set():
                return
            self._tried.setdefault(said.claim.id.uid, deque(maxlen=MOST_ATTEMPTS)).append(self._clock())
            await self._write(said)

    def _due(self, claims: dict[str, PreparedClaim]) -> Iterator[_Said]:
        for uid, claim in claims.items():
            # Which pods use a claim is not said, and can change.
            said = _Said(replace(claim, users=()), device_effects(claim, self._effects.value))
            if self._written.get(uid) != said and self._may_try(uid):
                yield said

    def _may_try(self, uid: str) -> bool:
        tried = self._tried.get(uid)
        return tried is None or len(tried) < MOST_ATTEMPTS or self._clock() - tried[0] >= WITHIN

    async def _write(self, said: _Said) -> None:
        id_ = said.claim.id
        try:
            await self._claims.write_status(id_, list(_entries(said)))
        except GpushareError as error:
            if not isinstance(error, ClaimRefusedError) or error.reason == "api":
                _log.warning("claim_status_not_written", claim=id_.label, uid=id_.uid, reason=in_words(error))
                return
        self._written[id_.uid] = said


def _entries(said: _Said) -> Iterator[DeviceStatus]:
    """Yield what is said of each device: as limits what the containers were given, and not what only counts."""
    for each, effect in zip(said.claim.devices, said.effects, strict=True):
        yield DeviceStatus(
            each.pool,
            each.device,
            each.gpu,
            each.share_id,
            memory_mib=memory_limit_mib(each),
            percent=compute_limit_percent(each),
            isolation=each.isolation,
            effect=effect,
        )
