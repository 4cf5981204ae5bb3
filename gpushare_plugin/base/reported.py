"""The memory of earlier reports: a value is reported only after a change, or only once within a pause."""

import math
from collections.abc import Container, Hashable


class Reported:
    """Remembers the last reported value of every topic; None before the first report."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._last: dict[Hashable, object] = {}

    def is_new(self, topic: Hashable, value: object) -> bool:
        """Return whether `value` differs from the last value of the topic, and remember `value`."""
        before, self._last[topic] = self._last.get(topic), value
        return before != value

    def forget(self, topic: Hashable) -> None:
        """Forget one topic."""
        self._last.pop(topic, None)

    def keep(self, topics: Container[Hashable]) -> None:
        """Forget all topics that are not among `topics`."""
        self._last = {topic: value for topic, value in self._last.items() if topic in topics}


_OTHERS = object()
"""The kind that stands for all kinds of news without room, counted together."""


class Repeats:
    """Remembers when news of a kind were last told, and how many have been kept back since."""

    def __init__(self, pause: float, most_kinds: int) -> None:
        """Tell a kind once in `pause` seconds; kinds beyond `most_kinds` at a time count together as a single kind."""
        self._pause = pause
        self._most_kinds = most_kinds
        self._told: dict[Hashable, tuple[float, int]] = {}

    def __len__(self) -> int:
        """Return the number of remembered kinds."""
        return len(self._told)

    def untold(self, kind: Hashable, now: float) -> int | None:
        """Return the number of news of `kind` kept back since the last told; None to keep back the present news, too.

        `now` is the time in seconds, of any clock.
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
