"""Curves as SVG: where lines, ticks and names stand in a picture of fixed size."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 760, 340
"""The size of a picture, in its own units, which are pixels where it has room."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 632, 12, 296
"""The edges of the field where lines are; the names of the lines stand to the right."""
_BETWEEN = 18
"""The least distance between two names."""
_MOST_COLUMNS = 16
"""The most numbers at the horizontal axis."""
_COLORS = ("c0", "c1", "c4", "c3", "c8 dashed", "c6 dashed", "c7 dashed", "c2 dashed")
"""Classes of lines in the style sheet, those that differ most first."""


class Tick(NamedTuple):
    """A number at an axis."""

    at: float
    """Where the number is, along the axis."""
    text: str
    """The number."""


class NamedCurve(NamedTuple):
    """A line with its name."""

    name: str
    """The name, at the right end of the line."""
    color: str
    """The classes of the line in the style sheet."""
    points: Sequence[tuple[float, float]]
    """Where the line goes, from left to right."""
    name_at: float
    """How far down the name is."""

    @property
    def path(self) -> str:
        """The line as an attribute of SVG."""
        return _path(self.points)

    @property
    def leader(self) -> str:
        """The line from the right end to the name as an attribute of SVG."""
        return _path([self.points[-1], (_RIGHT + 12, self.name_at)])


class Curves(NamedTuple):
    """A picture of curves."""

    title: str
    """What is shown, for people who do not see the picture, too."""
    across: str
    """What the horizontal axis has."""
    down: str
    """What the vertical axis has."""
    curves: Sequence[NamedCurve]
    """The lines."""
    columns: Sequence[Tick]
    """The numbers at the horizontal axis."""
    rows: Sequence[Tick]
    """The numbers at the vertical axis."""


def curves(title: str, across: str, down: str, columns: Sequence[str], values: Mapping[str, Sequence[float]]) -> Curves:
    """Return a picture of curves that have a value for each of the columns; `values` are by the name of the curve."""
    low, high, step = _range([value for line in values.values() for value in line])
    places = [_LEFT + (_RIGHT - _LEFT) * (place + 0.5) / len(columns) for place in range(len(columns))]

    def height(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - low) / (high - low)

    ends = _apart({name: height(line[-1]) for name, line in values.items()})
    return Curves(
        title,
        across,
        down,
        [
            NamedCurve(
                name, _COLORS[number % len(_COLORS)], list(zip(places, map(height, line), strict=True)), ends[name]
            )
            for number, (name, line) in enumerate(values.items())
        ],
        [Tick(*each) for each in zip(places, columns, strict=True)][:: -(-len(columns) // _MOST_COLUMNS)],
        [
            Tick(height(low + step * number), f"{low + step * number:g}")
            for number in range(round((high - low) / step) + 1)
        ],
    )


def _range(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the least and the most of an axis for some values, and the distance of its numbers, all round numbers."""
    least, most = min(values), max(values)
    rough = max(most - least, 1) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough)
    # A little less and more, or noise in the last digit would add a number.
    low, high = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return step * low, step * max(low + 1, high), step


def _apart(heights: Mapping[str, float]) -> dict[str, float]:
    """Return heights that are apart, in the same order, and not below the field."""
    placed: dict[str, float] = {}
    lowest = -float(_BETWEEN)
    for name in sorted(heights, key=lambda each: heights[each]):
        lowest = placed[name] = max(heights[name], lowest + _BETWEEN)
    limit = float(_BOTTOM)
    for name in sorted(placed, key=lambda each: -placed[each]):
        placed[name] = min(placed[name], limit)
        limit = placed[name] - _BETWEEN
    return placed


def _path(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
