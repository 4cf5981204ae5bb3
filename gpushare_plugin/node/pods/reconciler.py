"""Compares the holdings of containers with the promises to their pods, and publishes the real holdings."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpushare_plugin.base.published import Published, changes
from gpushare_plugin.core.effect import Effect
from gpushare_plugin.core.holding import Unknown
from gpushare_plugin.core.resource import Resource, UnitsOf
from gpushare_plugin.core.usage import ContainerUsage, Usage
from gpushare_plugin.kubelet.allocations.reader import HoldingsReader
from gpushare_plugin.ledger.annotations import LIMITS, Effects, holding_annotations, write_limits
from gpushare_plugin.ledger.pod import Comparison, Pod, Share, Shares, drift
from gpushare_plugin.node.news.news import News, PodDrifted
from gpushare_plugin.node.pods.matching import Held, compared
from gpushare_plugin.node.pods.steering import PodSteering, Watched

LOOK_EVERY = 30.0
"""Seconds between looks at the holdings of pods while nothing happens."""

PAUSE = 1.0
"""Seconds before a look: the containers of a pod get units one by one, and the kubelet records the units afterwards."""

Excess = Mapping[str, UnitsOf]
"""The number of units held beyond the promises, by resource and GPU."""


PodAnnotations = Mapping[str, Mapping[str, str]]
"""The annotations of pods, by the UID of the pod."""


class PromiseReconciler:
    """Follows the holdings shown by the kubelet, for the annotations of pods, the excess and the steering."""

    def __init__(
        self,
        watched: Watched,
        reader: HoldingsReader,
        news: News,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Compare the holdings found by `reader` with the pods of a watch."""
        self.watched = watched
        """The pods of the node."""
        self._reader = reader
        self.steering = PodSteering(watched, clock)
        """Steers the calls of the kubelet by the newest holdings."""
        self._news = news
        self._clock = clock
        self._drifted: Mapping[tuple[str, str], Comparison] = {}
        self.annotations: Published[PodAnnotations] = Published({})
        """The annotations with the real holdings of pods."""
        self.effects: Published[Mapping[str, Effects]] = Published({})
        """Whether limits are in effect, by the UID of the pod, as the looks at the usage find out."""
        # The UIDs of the pods with GPUs by claims alone, of which nothing else than limits is written.
        self._by_claim: frozenset[str] = frozenset()
        self.excess: Excess = {}
        """The units held beyond the promises at the newest look."""

    async def run(self, resources: Callable[[], Iterable[Resource]]) -> None:
        """Look after every allocation and every change of pods and limits, and at intervals; runs until cancelled.

        `resources` returns the resources offered by the node now.
        """
        async for _ in changes(self.steering.given, self.watched.changed, self.effects, every=LOOK_EVERY):
            await asyncio.sleep(PAUSE)
            await self.learn()
            self.publish(resources())

    async def learn(self) -> None:
        """Tell the steering the holdings of containers; with unknown holdings, the steering keeps its state."""
        asked_at = self._clock()
        uids = {(pod.namespace, pod.name): pod.uid for pod in self.watched.in_order}
        holdings = await self._reader.with_uids(uids)
        if not isinstance(holdings, Unknown):
            self.steering.learn({each.slot: each.ids for each in holdings}, asked_at)

    def learn_effects(self, usage: Usage) -> None:
        """Take in whether limits are in effect; while the holdings of containers are unknown, nothing changes."""
        if usage.held is None:
            return
        found: defaultdict[str, defaultdict[str, dict[str, Effect]]] = defaultdict(lambda: defaultdict(dict))
        for each in usage.containers:
            if each.effect is not None and each.uid:
                found[each.uid][each.container][each.gpu] = each.effect
        self._by_claim = _by_claim_alone(usage.containers)
        if found != self.effects.value:
            self.effects.publish(found)

    def publish(self, resources: Iterable[Resource]) -> None:
        """Publish the holdings of pods, and the pods with units of other GPUs than the promised GPUs."""
        offered = {resource.name: resource for resource in resources}
        indexes = {uuid: gpu.index for resource in offered.values() for uuid, gpu in resource.gpus.items()}
        pods = [pod for pod in self.watched.in_order if not pod.ended]
        shares = _shares(self.steering.shown, offered)
        by_claim = {pod.uid: self._limits(pod.uid) for pod in pods if pod.uid in self._by_claim}
        by_units = {
            pod.uid: holding_annotations(shares[pod.uid], pod.request, indexes) | self._limits(pod.uid)
            for pod in pods
            if pod.uid in shares
        }
        self.annotations.publish({uid: each for uid, each in {**by_claim, **by_units}.items() if each})
        self._compare(pods, offered.values())

    def _limits(self, uid: str) -> dict[str, str]:
        effects = self.effects.value.get(uid)
        return {LIMITS: write_limits(effects)} if effects else {}

    def _compare(self, pods: Sequence[Pod], resources: Iterable[Resource]) -> None:
        excess: dict[str, UnitsOf] = {}
        drifted: dict[tuple[str, str], Comparison] = {}
        for resource in resources:
            found = drift(compared(pods, self.steering.shown, resource))
            excess[resource.name] = found.excess
            drifted |= {(each.pod.uid, resource.name): each for each in found.pods}
        self.excess = excess
        for uid, name in drifted.keys() - self._drifted.keys():
            each = drifted[uid, name]
            self._news.publish(PodDrifted(each.pod.label, name, dict(each.promised), dict(each.held)))
        self._drifted = drifted


def _by_claim_alone(containers: Iterable[ContainerUsage]) -> frozenset[str]:
    """Return the UIDs of the pods that have GPUs by claims, and no units."""
    found: defaultdict[str, set[bool]] = defaultdict(set)
    for each in containers:
        found[each.uid].add(len(each.claimed) == each.units)
    return frozenset(uid for uid, alone in found.items() if uid and alone == {True})


def _shares(held: Held, resources: Mapping[str, Resource]) -> dict[str, Shares]:
    """Return the shares of containers in our resources, by the UID of the pod."""
    shares: defaultdict[str, list[Share]] = defaultdict(list)
    for slot, ids in sorted(held.items()):
        if (resource := resources.get(slot.resource)) is not None:
            units = sorted(resource.gpus_of(ids).items())
            shares[slot.uid] += [Share(slot.container, slot.resource, gpu, count) for gpu, count in units]
    return {uid: tuple(each) for uid, each in shares.items() if each}
