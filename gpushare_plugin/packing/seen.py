"""What was seen of pods so far: the sizes of shares, and the models that pods insist on."""

from collections import defaultdict

from gpushare_plugin.packing.pod_kind import PodKind

FIRST_LESSONS = (100, 200, 400, 800, 1_600)
"""After how many pods with GPUs the policy learns at first."""
HALVING = 1_000
"""After how many more pods with GPUs the policy learns from then on, and after how many the memory halves."""


class SeenPods:
    """The pods with GPUs that were seen, the refused ones included; older pods count less."""

    def __init__(self) -> None:
        """Start without any pod."""
        self.shares: dict[int, float] = defaultdict(float)
        """The weight of the pods with each size of a share, in percent."""
        self.demand: dict[frozenset[str], float] = defaultdict(float)
        """The GPU demand of the pods that accept these models only, in percent of a GPU; empty for any model."""
        self.several = False
        """Whether a pod with several GPUs was ever seen."""
        self._number = 0
        self._next_lesson = FIRST_LESSONS[0]

    def see(self, kind: PodKind) -> bool:
        """Count a pod; return whether a lesson is due."""
        if not kind.gpus:
            return False
        if kind.is_share:
            self.shares[kind.percent] += 1
        self.demand[kind.models] += kind.gpu_percent
        self.several |= kind.gpus > 1
        self._number += 1
        return self._number >= self._next_lesson

    def learned(self) -> None:
        """Set the time of the next lesson; from the thousandth pod on, halve what was seen."""
        if self._number >= HALVING:
            for size in self.shares:
                self.shares[size] /= 2
            for models in self.demand:
                self.demand[models] /= 2
        later = (lesson for lesson in FIRST_LESSONS if lesson > self._number)
        self._next_lesson = next(later, self._number + HALVING)
