"""What was seen of pods so far: the sizes of shares, and the models that pods insist on."""

from collections import defaultdict
from collections.abc import Mapping

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.packing.pod_kind import WHOLE, PodKind
from gpushare_plugin.packing.values import RAREST

FIRST_LESSON = 100
"""After how many pods with GPUs of a cluster the policy learns first; the next lessons double the number."""
HALVING = 1_000
"""After how many more pods with GPUs the policy learns at the latest, and after how many the memory halves."""


class Lesson(Struct, frozen=True):
    """What the policy learns from: the pods that were seen until a moment."""

    shares: Mapping[int, float] = field(default_factory=dict)
    """The weight of the pods with each size of a share, in percent."""
    demand: Mapping[frozenset[str], float] = field(default_factory=dict)
    """The GPU demand of the pods that accept these models only, in percent of a GPU; empty for any model."""
    several: bool = False
    """Whether a pod with several GPUs was ever seen."""


NOTHING = Lesson()
"""The lesson before any pod was seen."""


class SeenPods:
    """The pods with GPUs that were seen, the refused ones included; older pods count less."""

    def __init__(self, earlier: Lesson = NOTHING, *, first_lesson: int = FIRST_LESSON) -> None:
        """Start with the pods of an earlier lesson; the next is due after `first_lesson` more pods with GPUs."""
        self.shares: dict[int, float] = defaultdict(float, earlier.shares)
        """The weight of the pods with each size of a share, in percent."""
        self.demand: dict[frozenset[str], float] = defaultdict(float, earlier.demand)
        """The GPU demand of the pods that accept these models only, in percent of a GPU; empty for any model."""
        self.several = earlier.several
        """Whether a pod with several GPUs was ever seen."""
        self._number = 0
        self._next_lesson = first_lesson

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

    @property
    def smallest(self) -> int:
        """The smallest common size of a share, in percent; 100 if pods asked for whole GPUs only, 1 before any pod."""
        rarest = RAREST * sum(self.shares.values())
        common = (size for size, weight in self.shares.items() if weight >= rarest)
        return min(common, default=WHOLE if self.demand else 1)

    def lesson(self) -> Lesson:
        """Begin a lesson with what was seen, and set the time of the next; from the thousandth pod on, halve counts."""
        lesson = Lesson(dict(self.shares), dict(self.demand), self.several)
        if self._number >= HALVING:
            for size in self.shares:
                self.shares[size] /= 2
            for models in self.demand:
                self.demand[models] /= 2
        self._next_lesson = self._number + min(self._number, HALVING)
        return lesson
