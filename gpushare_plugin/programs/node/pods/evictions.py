"""Evicts pods that use more than they may: one at a time on a GPU, each once, after its grace period."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from gpushare_plugin.foundation.errors import EvictionError
from gpushare_plugin.model.usage.overuse import Episode, to_evict
from gpushare_plugin.model.usage.usage import ContainerUsage
from gpushare_plugin.programs.node.news.news import EvictionRefused, News, PodEvicted

Evict = Callable[[str, str, str], Awaitable[bool]]
"""Evicts the pod of a namespace, a name and a UID; returns False where it is gone already, raises EvictionError."""


class Evictions:
    """Knows which pods were evicted, and when refused ones are tried again."""

    def __init__(self, evict: Evict, news: News) -> None:
        """Evict by `evict`."""
        self._evict = evict
        self._news = news
        self._settled: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._refused: dict[str, str] = {}

    async def consider(
        self, episodes: Collection[Episode], containers: Sequence[ContainerUsage], now: float, grace: float
    ) -> None:
        """Evict whoever has to go now; of a refusal, the reason is published once.

        While one cannot be evicted, those less far over their limit on its GPUs wait for it.
        """
        self._forget({usage.uid for usage in containers}, (episode.usage.uid for episode in episodes))
        for usage in to_evict(episodes, containers, now, grace, self._settled):
            if now < self._not_before.get(usage.uid, now):
                continue
            try:
                if await self._evict(usage.namespace, usage.pod, usage.uid):
                    self._news.publish(PodEvicted(usage))
                self._settled.add(usage.uid)
            except EvictionError as error:
                self._not_before[usage.uid] = now + error.retry_after
                if self._refused.get(usage.uid) != str(error):
                    self._refused[usage.uid] = str(error)
                    self._news.publish(EvictionRefused(usage, str(error)))

    def _forget(self, there: Collection[str], over: Iterable[str]) -> None:
        """Forget pods that hold nothing any more, and refusals of episodes that are over."""
        self._settled.intersection_update(there)
        going_on = set(over)
        for uid in [*self._not_before]:
            if uid not in going_on:
                del self._not_before[uid]
                self._refused.pop(uid, None)
