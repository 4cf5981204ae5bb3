"""Finds out which pods came to a claim after the claim was prepared.

The kubelet tells a DRA driver nothing of such a pod: of a claim that is prepared, it adds the pod to its own record and
calls nobody (kubernetes 1.36, pkg/kubelet/cm/dra/manager.go, `prepareResources`). The API server has all pods
of a claim in `status.reservedFor`. So a claim is read again when somebody unknown seems to use the claim.
"""

import math
import time
from collections.abc import Callable, Mapping

import structlog

from gpushare_plugin.base.published import Published, changes
from gpushare_plugin.base.text import in_words
from gpushare_plugin.claims.claim import ClaimRefusedError
from gpushare_plugin.claims.strangers import strangers
from gpushare_plugin.core.prepared_claim import PreparedClaim
from gpushare_plugin.core.usage import Usage
from gpushare_plugin.node.claims.preparation import Allocated, Preparation
from gpushare_plugin.node.claims.records import ClaimRecordError

_log = structlog.get_logger()

AGAIN_AFTER = 60.0
"""The fewest seconds between two reads of a claim."""
LOOK_EVERY = 60.0
"""Seconds between looks at claims that were read a moment before."""

Strangers = Mapping[str, frozenset[str]]
"""Who seems to use a claim and is not known to, by the UID of the claim."""


class ClaimUsers:
    """Keeps the pods of prepared claims known."""

    def __init__(
        self, preparation: Preparation, allocated: Allocated, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Read claims with `allocated`, and tell `preparation` their pods; `clock` returns a time in seconds."""
        self._preparation = preparation
        self._allocated = allocated
        self._clock = clock
        self._strangers: Published[Strangers] = Published({})
        self._asked: dict[str, tuple[frozenset[str], float]] = {}

    def learn(self, usage: Usage) -> None:
        """Take in who uses GPUs; nothing changes while the holdings of containers are unknown."""
        if usage.held is None:
            return
        found = strangers(self._preparation.prepared.value, usage)
        if found != self._strangers.value:
            self._strangers.publish(found)

    async def run(self) -> None:
        """Read claims that somebody unknown seems to use; runs until cancelled."""
        async for _ in changes(self._strangers, every=LOOK_EVERY):
            await self.look()

    async def look(self) -> None:
        """Read once each claim with somebody new, unless it was read a moment before."""
        found = self._strangers.value
        claims = {each.id.uid: each for each in self._preparation.prepared.value}
        self._asked = {uid: each for uid, each in self._asked.items() if uid in claims}
        for uid in [uid for uid in found if uid in claims]:
            asked, at = self._asked.get(uid, (frozenset[str](), -math.inf))
            if found[uid] - asked and self._clock() - at >= AGAIN_AFTER:
                known = await self._read(claims[uid])
                self._asked[uid] = found[uid] if known else asked, self._clock()

    async def _read(self, claim: PreparedClaim) -> bool:
        """Read the pods of a claim; return whether they are known now."""
        try:
            await self._preparation.learn_users(await self._allocated(claim.id))
        except (ClaimRefusedError, ClaimRecordError, OSError) as error:
            _log.debug("claim_users_unknown", claim=claim.id.label, reason=in_words(error))
            return isinstance(error, ClaimRefusedError) and error.reason != "api"
        return True
