"""What each free piece of a GPU is worth, learned from the sizes of shares.

The value of a part is its worth in whole GPUs under the dual prices of bin packing: what no mix of the sizes can fill
is worth little. The prices solve the linear program of Gilmore and Gomory ("A Linear Programming Approach to the
Cutting-Stock Problem", Operations Research 9, 1961) by its revised simplex method, in which a knapsack finds the next
column. docs/adr/0026-prices-without-a-solver.md says why no solver is used.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushare_plugin.packing.pod_kind import WHOLE

MOST_SIZES = 32
"""The most sizes that count; the commonest do."""
RAREST = 0.002
"""The lowest frequency of a size that counts, of all shares."""
PRICED = 0.9
"""The weight of the price in a value; the remainder is the part itself."""

_APART = 1e-4
"""How far frequencies are moved apart, so that exactly one list of prices is the best."""
_TOLERANCE = 1e-9
_MOST_STEPS = 2000
"""The most steps of the simplex method. A few dozen suffice; the bound is for sizes that nobody has tried."""

LINEAR: NDArray[np.float64] = np.arange(WHOLE + 1) / WHOLE
"""The value of each part, from 0 to 100 percent, while no share was seen."""


def part_values(shares: Mapping[int, float]) -> NDArray[np.float64]:
    """Return the value in GPUs of each free piece from 0 to 100 percent, given the numbers of shares by size."""
    counted = _counted(shares)
    if not counted:
        return LINEAR
    values = PRICED * np.array(_priced(counted)) + (1 - PRICED) * LINEAR
    values[WHOLE] = 1
    return values.round(6)


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
    needed = np.array(list(frequencies.values())) + _APART * np.arange(1, len(sizes) + 1) / len(sizes)
    basis = np.diag([float(WHOLE // size) for size in sizes])
    filling = _dearest(sizes, basis)
    for _ in range(_MOST_STEPS):
        if filling.costs[WHOLE] <= 1 + _TOLERANCE:
            break
        pattern = np.array(filling.pattern, np.float64)
        used, change = np.linalg.solve(basis, np.stack([needed, pattern], axis=1)).T
        steps = np.divide(used, change, out=np.full(len(sizes), np.inf), where=change > _TOLERANCE)
        basis[:, steps.argmin()] = pattern
        filling = _dearest(sizes, basis)
    return [min(1.0, cost) for cost in filling.costs]


class _Filling(NamedTuple):
    """The shares that cost most together on one GPU, and on each part of a GPU."""

    costs: list[float]
    """What the shares on each part from 0 to 100 percent cost together, in GPUs."""
    pattern: list[int]
    """The number of shares of each size on the whole GPU."""


def _dearest(sizes: Sequence[int], basis: NDArray[np.float64]) -> _Filling:
    """Return the shares that cost most together, by the prices at which each pattern of a basis costs one GPU."""
    return _fill(sizes, np.linalg.solve(basis.T, np.ones(len(sizes))).tolist())


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
