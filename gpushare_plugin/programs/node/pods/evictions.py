"""Evicts pods that use more than they may: one at a time on a GPU, each once, after its grace period."""

from collections.abc import Awaitable, Callable, Collection, Sequence

from gpushare_plugin.foundation.errors import EvictionError
from gpushare_plugin.model.usage.overuse import Episode, to_evict
from gpushare_plugin.model.usage.usage import ContainerUsage
from gpushare_plugin.programs.node.news.news import EvictionRefused, News, PodEvicted

Evict = Callable[[str, str, str], Awaitable[bool]]
"""Evicts the pod of a namespace, a name and a UID; returns False where there is none, raises EvictionError."""

ENDED_WITHIN = 90.0
"""Seconds within which a pod that the API server does not have ends; one that is on its way out usually does."""

NO_SUCH_POD = (
    "the API server has no pod of this name and UID, as for a static pod: it cannot be evicted; "
    "change or remove its manifest on the node"
)


class Evictions:
    """Knows which pods were evicted, and when refused ones are tried again."""

    def __init__(self, evict: Evict, news: News) -> None:
        """Evict by `evict`."""
        self._evict = evict
        self._news = news
        self._evicted: set[str] = set()
        self._missing_since: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._refused: dict[str, str] = {}

    async def consider(
        self, episodes: Collection[Episode], containers: Sequence[ContainerUsage], now: float, grace: float
    ) -> None:
        """Evict whoever has to go now; of a refusal, the reason is published once.

        While one cannot be evicted, those less far over their limit on its GPUs wait for it; but for one that the API
        server does not have only as long as it may be ending.
        """
        self._forget({usage.uid for usage in containers}, {episode.usage.uid for episode in episodes})
        ending = {uid for uid, since in self._missing_since.items() if now - since < ENDED_WITHIN}
        for usage, since in episodes:
            if usage.uid in self._missing_since.keys() - ending and now - since >= grace:
                self._publish_refusal(usage, NO_SUCH_POD)
        evictable = [episode for episode in episodes if episode.usage.uid not in self._missing_since]
        for usage in to_evict(evictable, containers, now, grace, self._evicted | ending):
            if now >= self._not_before.get(usage.uid, now):
                await self._try(usage, now)

    async def _try(self, usage: ContainerUsage, now: float) -> None:
        try:
            if await self._evict(usage.namespace, usage.pod, usage.uid):
                self._evicted.add(usage.uid)
                self._news.publish(PodEvicted(usage))
            else:
                self._missing_since[usage.uid] = now
        except EvictionError as error:
            self._not_before[usage.uid] = now + error.retry_after
            self._publish_refusal(usage, str(error))

    def _publish_refusal(self, usage: ContainerUsage, reason: str) -> None:
        if self._refused.get(usage.uid) != reason:
            self._refused[usage.uid] = reason
            self._news.publish(EvictionRefused(usage, reason))

    def _forget(self, there: Collection[str], over: Collection[str]) -> None:
        """Forget pods that hold nothing any more, and refusals of episodes that are over."""
        self._evicted.intersection_update(there)
        for of_pods, kept in ((self._missing_since, there), (self._not_before, over), (self._refused, over)):
            for uid in of_pods.keys() - kept:
                del of_pods[uid]
