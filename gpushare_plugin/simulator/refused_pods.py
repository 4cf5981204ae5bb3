"""Which pods were refused, by what they ask for."""

from collections import Counter
from typing import Literal

from gpushare_plugin.observe.parts import Part
from gpushare_plugin.packing.pod_kind import PodKind

AskedFor = Literal["share", "one", "several", "none"]
"""What a pod asks for: a part of a GPU, one GPU, several, or none."""


class RefusedPods(Part, frozen=True, kw_only=True):
    """The refused part of the pods that arrived, in percent, by what pods ask for; 0 if no such pod arrived."""

    share: float
    """Of the pods that ask for a part of a GPU."""
    one: float
    """Of the pods that ask for one GPU."""
    several: float
    """Of the pods that ask for several GPUs."""
    none: float
    """Of the pods that ask for no GPU."""


class PodCounts:
    """Counts the pods that arrived and were refused."""

    def __init__(self) -> None:
        """Start without any pod."""
        self._arrived: Counter[AskedFor] = Counter()
        self._refused: Counter[AskedFor] = Counter()

    def count(self, kind: PodKind, *, refused: bool) -> None:
        """Count a pod."""
        asked = _asked_for(kind)
        self._arrived[asked] += 1
        self._refused[asked] += refused

    @property
    def refused_pods(self) -> RefusedPods:
        """The refused part of the pods that were counted."""
        return RefusedPods(
            share=self._part("share"), one=self._part("one"), several=self._part("several"), none=self._part("none")
        )

    def _part(self, asked: AskedFor) -> float:
        return 100 * self._refused[asked] / max(1, self._arrived[asked])


def _asked_for(kind: PodKind) -> AskedFor:
    if not kind.gpus:
        return "none"
    if kind.is_share:
        return "share"
    return "one" if kind.gpus == 1 else "several"
