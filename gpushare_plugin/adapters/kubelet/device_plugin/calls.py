"""The kubelet's calls that were answered, counted by name, code and duration; it costs about a microsecond a call."""

from bisect import bisect_left
from collections.abc import Mapping

from gpushare_plugin.model.resource import DURATION_BOUNDS, Durations


class Calls:
    """The calls that were answered, by name and code of gRPC; there are few of both."""

    def __init__(self) -> None:
        """Start without any."""
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._seconds: dict[tuple[str, str], float] = {}

    def count(self, name: str, code: str, seconds: float) -> None:
        """Count one call."""
        key = name, code
        if key not in self._counts:
            self._counts[key], self._seconds[key] = [0] * (len(DURATION_BOUNDS) + 1), 0.0
        self._counts[key][bisect_left(DURATION_BOUNDS, seconds)] += 1
        self._seconds[key] += seconds

    @property
    def durations(self) -> Mapping[tuple[str, str], Durations]:
        """How long they took, by name and code."""
        return {key: Durations(tuple(counts), self._seconds[key]) for key, counts in self._counts.items()}
