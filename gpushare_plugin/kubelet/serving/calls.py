"""How often the kubelet called, and how long the answers took."""

from bisect import bisect_left
from collections.abc import Mapping

from gpushare_plugin.core.resource import Durations

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0, 10.0)
"""Upper bounds, in seconds, of the groups in which calls are counted; longer calls make a last group."""


class Calls:
    """The answered calls, by name and code of the answer; counting a call takes half a microsecond."""

    def __init__(self) -> None:
        """Start with no calls."""
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._seconds: dict[tuple[str, str], float] = {}

    def count(self, name: str, code: str, seconds: float) -> None:
        """Count a call with its duration in seconds."""
        key = name, code
        if key not in self._counts:
            self._counts[key], self._seconds[key] = [0] * (len(BUCKETS) + 1), 0.0
        self._counts[key][bisect_left(BUCKETS, seconds)] += 1
        self._seconds[key] += seconds

    @property
    def durations(self) -> Mapping[tuple[str, str], Durations]:
        """The durations of the calls, by name and code."""
        return {key: Durations(BUCKETS, tuple(counts), self._seconds[key]) for key, counts in self._counts.items()}
