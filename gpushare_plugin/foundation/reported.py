"""What was reported before: nothing new until it has changed, or not again so soon."""

import math
from collections.abc import Container, Hashable


class Reported:
    """Remembers the value that was last reported of each topic; before the first report that is None."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._last: dict[Hashable, object] = {}

    def is_new(self, topic: Hashable, value: object) -> bool:
        """Return whether `value` differs from the one reported before, and remember it."""
        before, self._last[topic] = self._last.get(topic), value
        return before != value

    def forget(self, topic: Hashable) -> None:
        """Forget one topic."""
        self._last.pop(topic, None)

    def keep(self, topics: Container[Hashable]) -> None:
        """Forget all other topics."""
        self._last = {topic: value for topic, value in self._last.items() if topic in topics}


_OTHERS = object()
"""All kinds of news that there is no room for, counted as one."""


class Repeats:
    """Remembers when which kind of news was last told, and how often it was kept back since."""

    def __init__(self, pause: float, most_kinds: int) -> None:
        """Tell each kind once in `pause` seconds; beyond `most_kinds` at a time, all others count as one kind."""
        self._pause = pause
        self._most_kinds = most_kinds
        self._told: dict[Hashable, tuple[float, int]] = {}

    def __len__(self) -> int:
        """Return how many kinds are remembered."""
        return len(self._told)

    def untold(self, kind: Hashable, now: float) -> int | None:
        """Return how often news of this kind were kept back since they were last told; None where these are, too.

        `now` is in seconds, of any clock.
        """
        if kind not in self._told and not self._has_room(now):
            kind = _OTHERS
        told_at, kept_back = self._told.get(kind, (-math.inf, 0))
        if now - told_at < self._pause:
            self._told[kind] = told_at, kept_back + 1
            return None
        self._told[kind] = now, 0
        return kept_back

    def _has_room(self, now: float) -> bool:
        if len(self._told) >= self._most_kinds:
            self._told = {kind: (at, count) for kind, (at, count) in self._told.items() if now - at < self._pause}
        return len(self._told) < self._most_kinds
