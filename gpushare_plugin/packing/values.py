"""What each free piece of a GPU is worth, learned from the sizes of shares.

The value of a free piece is its worth in whole GPUs under the dual prices of bin packing: what no mix of the sizes can
fill is worth little. The prices solve the linear program of Gilmore and Gomory ("A Linear Programming Approach to the
Cutting-Stock Problem", Operations Research 9, 1961) by its revised simplex method, in which a knapsack finds the next
column. docs/adr/0026-prices-without-a-solver.md says why neither a solver nor numpy is used.
"""

from collections.abc import Mapping, Sequence
from operator import mul
from typing import NamedTuple

from gpushare_plugin.packing.pod_kind import WHOLE

MOST_SIZES = 32
"""The most sizes that count; the commonest do."""
RAREST = 0.002
"""The lowest frequency of a size that counts, of all shares."""
PRICED = 0.9
"""The weight of the price in a value; the remainder is the free piece itself."""
TIGHTNESS = 0.1
"""The cost of a GPU that a share leaves free."""

_APART = 1e-4
"""How far frequencies are moved apart, so that exactly one list of prices is the best."""
_TOLERANCE = 1e-9
_MOST_STEPS = 2000
"""The most steps of the simplex method. A few dozen suffice; the bound is for sizes that nobody has tried."""

Values = Sequence[float]
"""The value in GPUs of each free piece from 0 to 100 percent."""

LINEAR: Values = tuple(part / WHOLE for part in range(WHOLE + 1))
"""The values while no share was seen."""


def part_values(shares: Mapping[int, float]) -> Values:
    """Return the value of each free piece, given the numbers of shares by size."""
    counted = _counted(shares)
    if not counted:
        return LINEAR
    values = [
        round(PRICED * price + (1 - PRICED) * part, 6) for price, part in zip(_priced(counted), LINEAR, strict=True)
    ]
    return (*values[:WHOLE], 1.0)


def share_cost(values: Values, free: int, percent: int) -> float:
    """Return what a share of `percent` costs in GPUs on a free piece of `free` percent, which must be large enough.

    The cost is the value that the free piece loses, and a little for what the share leaves free.
    """
    left = free - percent
    return round(values[free] - values[left] + TIGHTNESS * left / WHOLE, 9)  # or noise in the last digit breaks ties


def _counted(shares: Mapping[int, float]) -> dict[int, float]:
    """Return the frequencies of the sizes that count, smallest size first."""
    total = sum(shares.values())
    common = sorted(shares, key=lambda size: (-shares[size], size))[:MOST_SIZES]
    return {size: shares[size] / total for size in sorted(common) if shares[size] >= RAREST * total > 0}


def _priced(frequencies: Mapping[int, float]) -> list[float]:
    """Return the most that shares on each part from 0 to 100 percent cost together, by the dual prices of the sizes.

    Each column of the basis is a pattern: how many shares of each size are on one GPU. The first patterns have one size
    each. While some pattern costs more than one GPU, the pattern that costs most enters the basis, and the pattern
    that is used up first leaves.
    """
    sizes = list(frequencies)
    basis = _first_basis(frequencies)
    filling = _fill(sizes, _prices(basis))
    for _ in range(_MOST_STEPS):
        if filling.costs[WHOLE] <= 1 + _TOLERANCE:
            break
        _enter(basis, filling.pattern)
        filling = _fill(sizes, _prices(basis))
    return [min(1.0, cost) for cost in filling.costs]


_Basis = list[list[float]]
"""A row for each pattern of the basis: the row of the inverse of the basis, then how often the pattern is used."""


def _first_basis(frequencies: Mapping[int, float]) -> _Basis:
    """Return the basis of the patterns with one size each, as many shares as one GPU holds."""
    count = len(frequencies)
    basis = []
    for place, (size, frequency) in enumerate(frequencies.items()):
        row = [0.0] * count + [frequency + _APART * (place + 1) / count]
        row[place] = 1.0
        basis.append([each / (WHOLE // size) for each in row])
    return basis


def _prices(basis: _Basis) -> list[float]:
    """Return the price of each size at which each pattern of the basis costs one GPU."""
    return [sum(column) for column in zip(*basis, strict=True)][:-1]


def _enter(basis: _Basis, pattern: Sequence[int]) -> None:
    """Put a pattern into the basis, in the place of the pattern that is used up first."""
    change = [sum(map(mul, row, pattern)) for row in basis]
    falling = [place for place, each in enumerate(change) if each > _TOLERANCE]
    leaving = min(falling, key=lambda place: basis[place][-1] / change[place])
    entering = [each / change[leaving] for each in basis[leaving]]
    for place, each in enumerate(change):
        if each:
            basis[place] = [old - each * new for old, new in zip(basis[place], entering, strict=True)]
    basis[leaving] = entering


class _Filling(NamedTuple):
    """The shares that cost most together on one GPU, and on each part of a GPU."""

    costs: list[float]
    """What the shares on each part from 0 to 100 percent cost together, in GPUs."""
    pattern: list[int]
    """The number of shares of each size on the whole GPU."""


def _fill(sizes: Sequence[int], prices: Sequence[float]) -> _Filling:
    """Solve the unbounded knapsack for every part of a GPU; `sizes` ascend."""
    costs, last = [0.0] * (WHOLE + 1), [-1] * (WHOLE + 1)
    for part in range(1, WHOLE + 1):
        costs[part] = costs[part - 1]
        for place, size in enumerate(sizes):
            if size > part:
                break
            if (cost := costs[part - size] + prices[place]) > costs[part] + _TOLERANCE:
                costs[part], last[part] = cost, place
    pattern, part = [0] * len(sizes), WHOLE
    while part:
        if (place := last[part]) < 0:
            part -= 1
        else:
            pattern[place] += 1
            part -= sizes[place]
    return _Filling(costs, pattern)
