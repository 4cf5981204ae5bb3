"""Counts the kubelet's calls, without Prometheus' library: the daemon imports that only when it is scraped."""

from bisect import bisect_left
from collections.abc import Mapping

from gpushare_plugin.model.resource import Durations

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0, 10.0)
"""Seconds up to which calls are counted together; longer calls are counted beside them."""


class Calls:
    """The calls that were answered, by their name and the code of the answer; to count one takes half a microsecond."""

    def __init__(self) -> None:
        """Start without any call."""
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._seconds: dict[tuple[str, str], float] = {}

    def count(self, name: str, code: str, seconds: float) -> None:
        """Count one call that took so many seconds."""
        key = name, code
        if key not in self._counts:
            self._counts[key], self._seconds[key] = [0] * (len(BUCKETS) + 1), 0.0
        self._counts[key][bisect_left(BUCKETS, seconds)] += 1
        self._seconds[key] += seconds

    @property
    def durations(self) -> Mapping[tuple[str, str], Durations]:
        """How long the calls took, by name and code."""
        return {key: Durations(BUCKETS, tuple(counts), self._seconds[key]) for key, counts in self._counts.items()}
