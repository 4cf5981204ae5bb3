"""What was reported last, so that a log says each thing once and not again until it has changed."""

from collections.abc import Hashable


class Changes:
    """Remembers the value that was last reported of each topic; before the first report that is None."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._last: dict[Hashable, object] = {}

    def is_new(self, topic: Hashable, value: object) -> bool:
        """Return whether `value` differs from the one reported before, and remember it."""
        before, self._last[topic] = self._last.get(topic), value
        return before != value
