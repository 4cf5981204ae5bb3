"""Looks at the usage of GPUs at intervals, and publishes containers over their limit and stowaway processes."""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

import structlog

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.reported import Reported
from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.schema.sections import Config, Overuse
from gpushare_plugin.core.attribution import attribute
from gpushare_plugin.core.breaches import Breaches
from gpushare_plugin.core.holding import Holdings
from gpushare_plugin.core.overuse import Episodes
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.usage import GpuUsage, Stowaway, Usage
from gpushare_plugin.gpus import containers
from gpushare_plugin.gpus.source import GpuSource, read_sample
from gpushare_plugin.kubelet.allocations.reader import HoldingsReader
from gpushare_plugin.node.news.news import (
    LimitInEffect,
    LimitNotInEffect,
    News,
    PodOverLimit,
    PodWithinLimit,
    StowawayFound,
    StowawayGone,
    UsageKnown,
    UsageUnknown,
)
from gpushare_plugin.node.pods.evictions import Evict, Evictions
from gpushare_plugin.node.pods.init_containers import ContainerIds, with_init_containers
from gpushare_plugin.node.pods.proof import Proof

_log = structlog.get_logger()

LOOK_EVERY = 10.0
"""The most seconds between looks at usage; a shorter `health.rescan_seconds` takes precedence."""
LEAST_PAUSE = 1.0
"""The fewest seconds between looks at usage."""

MOST_STOWAWAYS = 64
"""The most published stowaways at a time; a program can start any number of processes."""


class UsageTracker:
    """Looks at the usage of GPUs, and keeps the usage found by the last look."""

    def __init__(  # noqa: PLR0913, PLR0917 - what a look takes
        self,
        source: GpuSource,
        holdings: HoldingsReader,
        proof: Proof,
        news: News,
        evict: Evict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look at the GPUs of `source`, and find out by `proof` whether limits are in effect.

        `evict` evicts a pod, `clock` (seconds) measures the length of episodes.
        """
        self._source = source
        self._holdings = holdings
        self._proof = proof
        self._news = news
        self._evictions = Evictions(evict, news)
        self._clock = clock
        self._looked_at = clock()
        self._usage: Usage | None = None
        self._episodes = Episodes()
        self._breaches = Breaches()
        self._stowaways: frozenset[Stowaway] = frozenset()
        self._told: frozenset[Stowaway] = frozenset()
        self._unknown: str | None = None
        self._changes = Reported()

    @property
    def usage(self) -> Usage | None:
        """The usage at the last look, with the age of the look in seconds; None before the first look."""
        if self._usage is None:
            return None
        return replace(self._usage, age=max(0.0, self._clock() - self._looked_at))

    async def run(
        self,
        snapshot: Callable[[], Snapshot],
        config: Callable[[], Config],
        container_ids: Callable[[], ContainerIds] = dict,
        by_claim: Callable[[], Holdings] = tuple,
        found: Callable[[Usage], None] = lambda _: None,
    ) -> None:
        """Look at intervals until cancelled, and call `found` with the usage after each look.

        `snapshot` returns the current node, `config` the config in effect, `container_ids` the known IDs of containers,
        and `by_claim` what the containers of known pods have by claims.
        """
        while True:
            await self.look(snapshot(), config().overuse, container_ids(), by_claim())
            if self._usage is not None:
                found(self._usage)
            await asyncio.sleep(max(LEAST_PAUSE, min(LOOK_EVERY, config().health.rescan_seconds)))

    async def look(
        self, snapshot: Snapshot, overuse: Overuse, container_ids: ContainerIds, by_claim: Holdings = ()
    ) -> None:
        """Look once; after a failed look, the usage of the previous look stays."""
        seen_at = containers.now()
        try:
            samples = await read_sample(self._source)
        except GpushareError as error:
            _log.debug("usage_not_read", reason=str(error))
            return
        looked_at = self._clock()
        # Holdings are read after the GPUs: a process seen on a GPU had got its units before.
        prepared = snapshot.claims.prepared if snapshot.claims is not None else None
        holdings = _with_claims(await self._holdings.read(prepared), snapshot, by_claim)
        holdings = _with_ids(holdings, container_ids)
        if holdings is not None:
            recorded = partial(self._recorded, by_claim)
            holdings = await with_init_containers(holdings, samples, container_ids, recorded)
        usage = await self._proof.of(attribute(samples, snapshot, holdings), snapshot, seen_at)
        self._usage, self._looked_at = self._lasting(usage), looked_at
        self._publish(self._usage, samples)
        if holdings is not None:
            self._follow_breaches(self._usage)
            await self._follow_episodes(self._usage, overuse, looked_at)

    async def _recorded(self, by_claim: Holdings) -> Holdings:
        """Return the holdings of all containers of known pods, init containers included."""
        return (*(await self._holdings.recorded() or ()), *by_claim)

    def _lasting(self, usage: Usage) -> Usage:
        """Return the usage with only the stowaways that the previous look also found.

        The kubelet no longer shows an ending pod while processes of the pod still run. The kubelet does not show a new
        pod yet: an incomplete answer does not make the processes of an unknown pod stowaways.
        """
        before, found = self._stowaways, frozenset(map(_identity, usage.stowaways))
        late = frozenset() if self._holdings.complete else {each for each in found if each.pod_uid and not each.pod}
        self._stowaways = found - (late - before)
        return replace(usage, gpus=tuple(_kept(gpu, before) for gpu in usage.gpus))

    def _publish(self, usage: Usage, samples: Sequence[GpuUsage]) -> None:
        there = {_identity(each): each for each in usage.stowaways}
        for gone in sorted(self._told - there.keys(), key=_order):
            self._news.publish(StowawayGone(gone))
        told = self._told & there.keys()
        new = sorted(there.keys() - told, key=_order)[: MOST_STOWAWAYS - len(told)]
        for each in new:
            self._news.publish(StowawayFound(there[each]))
        self._told = told | set(new)
        self._publish_unknown(usage, at_once=any(sample.unknown for sample in samples))

    def _publish_unknown(self, usage: Usage, *, at_once: bool) -> None:
        """Publish why the containers on a GPU are unknown, or that the containers are known again.

        A reason is published either `at_once` or at the second look: a restart of the kubelet causes a passing reason.
        """
        before, reason = self._unknown, next((gpu.unknown for gpu in usage.gpus if gpu.unknown), None)
        self._unknown = reason
        settled = reason is None or at_once or reason == before
        if settled and self._changes.is_new("unknown", reason):
            self._news.publish(UsageUnknown(reason) if reason else UsageKnown())

    def _follow_breaches(self, usage: Usage) -> None:
        turn = self._breaches.follow(usage.containers)
        for each in turn.began:
            self._news.publish(LimitNotInEffect(each))
        for each in turn.ended:
            self._news.publish(LimitInEffect(each))

    async def _follow_episodes(self, usage: Usage, overuse: Overuse, now: float) -> None:
        turn = self._episodes.follow(usage.containers, now)
        for each in turn.began:
            self._news.publish(PodOverLimit(each))
        for each in turn.ended:
            self._news.publish(PodWithinLimit(each))
        if overuse.action == "evict":
            await self._evictions.consider(
                self._episodes.current.values(), usage.containers, now, overuse.grace_seconds
            )


def _with_claims(holdings: Holdings | None, snapshot: Snapshot, by_claim: Holdings) -> Holdings | None:
    """Return holdings with the claims of this node only, and the UIDs of their pods."""
    if holdings is None:
        return None
    claims = snapshot.claims.holdings(holdings, by_claim) if snapshot.claims is not None else ()
    return (*(each for each in holdings if not each.claim), *claims)


def _with_ids(holdings: Holdings | None, ids: ContainerIds) -> Holdings | None:
    if holdings is None or not ids:
        return holdings
    found = ((each, ids.get((each.namespace, each.pod, each.container), "")) for each in holdings)
    return tuple(each._replace(container_id=id_) for each, id_ in found)


def _identity(stowaway: Stowaway) -> Stowaway:
    """Return the stowaway without its memory: the part that stays equal at another look."""
    return replace(stowaway, memory=None)


def _order(stowaway: Stowaway) -> tuple[str, int]:
    return stowaway.gpu, stowaway.pid


def _kept(gpu: GpuUsage, before: Collection[Stowaway]) -> GpuUsage:
    return replace(gpu, stowaways=tuple(each for each in gpu.stowaways if _identity(each) in before))
