"""Random choices that depend on a seed alone: in every process, with every version of Python."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

Json = dict[str, Any]
"""An object of JSON."""


class Draw:
    """Draws from `Random.random` alone, the only method of which Python guarantees the numbers."""

    def __init__(self, *seed: object) -> None:
        """Start at a seed."""
        self._random = Random(" ".join(map(str, seed))).random  # noqa: S311 - no secret

    def chance(self, share: float) -> bool:
        """Return True for this share of the calls."""
        return self._random() < share

    def below(self, end: int) -> int:
        """Return a number from 0 to `end` - 1."""
        return int(self._random() * end)

    def between(self, least: int, most: int) -> int:
        """Return a number from `least` to `most`."""
        return least + self.below(most - least + 1)

    def among(self, choices: Sequence[T]) -> T:
        """Return one of the choices."""
        return choices[self.below(len(choices))]

    def weighted(self, weights: Mapping[T, float]) -> T:
        """Return one of the keys, each as often as its weight says."""
        left = self._random() * sum(weights.values())
        for choice, weight in weights.items():
            left -= weight
            if left < 0:
                return choice
        return next(reversed(list(weights)))

    def some(self, choices: Sequence[T], share: float) -> list[T]:
        """Return each of the choices with this probability, in their order."""
        return [each for each in choices if self.chance(share)]

    def mixed(self, choices: Sequence[T]) -> list[T]:
        """Return the choices in another order."""
        left = list(choices)
        return [left.pop(self.below(len(left))) for _ in range(len(left))]
