"""Evicts pods over their limit: after a grace period, every pod once, and one pod at a time on a GPU."""

from collections.abc import Awaitable, Callable, Collection, Sequence

from gpushare_plugin.base.errors import EvictionError
from gpushare_plugin.core.overuse import Episode, to_evict
from gpushare_plugin.core.usage import ContainerUsage
from gpushare_plugin.node.news.news import EvictionRefused, News, PodEvicted

Evict = Callable[[str, str, str], Awaitable[bool]]
"""Evicts the pod with a namespace, a name and a UID; returns False where no such pod exists, raises EvictionError."""

ENDED_WITHIN = 90.0
"""Seconds for which a pod without an object in the API server counts as ending; ending pods usually take less time."""

NO_SUCH_POD = (
    "the API server has no pod of this name and UID, as for a static pod: it cannot be evicted; "
    "change or remove its manifest on the node"
)


class Evictions:
    """Remembers the evicted pods, and the refused evictions with the times of the next try."""

    def __init__(self, evict: Evict, news: News) -> None:
        """Evict pods through `evict`."""
        self._evict = evict
        self._news = news
        self._evicted: set[str] = set()
        self._missing_since: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._refused: dict[str, str] = {}

    async def consider(
        self, episodes: Collection[Episode], containers: Sequence[ContainerUsage], now: float, grace: float
    ) -> None:
        """Evict the pods due for eviction now; publish the reason of a refused eviction once.

        While the eviction of a pod is refused, pods on the same GPUs less far over their limit wait. For a pod unknown
        to the API server, other pods wait only while the unknown pod may be ending.
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
        """Forget pods without holdings, and the refusals of pods without an episode."""
        self._evicted.intersection_update(there)
        for of_pods, kept in ((self._missing_since, there), (self._not_before, over), (self._refused, over)):
            for uid in of_pods.keys() - kept:
                del of_pods[uid]
