"""How long calls took, counted as Prometheus' histograms are; to count one takes about a microsecond."""

from bisect import bisect_left
from collections.abc import Mapping

from gpushare_plugin.foundation.structs import Struct

OF_THE_KUBELET = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0, 10.0)
"""Seconds up to which calls of the kubelet are counted together; longer ones are counted beside them."""
OF_THE_SCHEDULER = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""The same of kube-scheduler's requests, for whose answers it waits 5 s unless it is told otherwise."""


class Durations(Struct, frozen=True):
    """How long calls took: `counts` by `bounds` (seconds), the last those beyond; `seconds` is their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    seconds: float


class Calls:
    """The calls that were answered, by their name and the code of the answer; there are few of both."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Start without any; they are counted by these bounds, in seconds."""
        self._bounds = bounds
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._seconds: dict[tuple[str, str], float] = {}

    def count(self, name: str, code: str, seconds: float) -> None:
        """Count one call."""
        key = name, code
        if key not in self._counts:
            self._counts[key], self._seconds[key] = [0] * (len(self._bounds) + 1), 0.0
        self._counts[key][bisect_left(self._bounds, seconds)] += 1
        self._seconds[key] += seconds

    @property
    def durations(self) -> Mapping[tuple[str, str], Durations]:
        """How long they took, by name and code."""
        return {key: Durations(self._bounds, tuple(counts), self._seconds[key]) for key, counts in self._counts.items()}
