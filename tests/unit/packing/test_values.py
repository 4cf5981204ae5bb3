"""Tests of the values of free GPU parts."""

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_plugin.packing.values import LINEAR, PRICED, RAREST, part_values, share_cost

MIXES = st.dictionaries(st.integers(1, 99), st.floats(1, 1000), min_size=1, max_size=6)


def prices(shares: dict[int, float]) -> list[float]:
    """Return the values without the part that does not depend on the shares."""
    return [(value - (1 - PRICED) * part) / PRICED for value, part in zip(part_values(shares), LINEAR, strict=True)]


def test_without_shares_a_part_is_worth_its_size() -> None:
    """Nothing is known of shares at first, and then a half is worth a half."""
    assert list(part_values({})) == [part / 100 for part in range(101)]


def test_two_halves_make_a_gpu() -> None:
    """Where all shares are halves, less than a half is worth nothing, and 99 percent are worth a half."""
    assert prices({50: 7})[:100] == pytest.approx([0.0] * 50 + [0.5] * 50, abs=1e-5)


def test_what_no_share_fits_is_worth_nothing() -> None:
    """Where all shares ask for 81 percent, less is worth nothing, and 81 percent a whole GPU."""
    assert prices({81: 7}) == pytest.approx([0.0] * 81 + [1.0] * 20, abs=1e-5)


def test_rare_sizes_do_not_count() -> None:
    """A size below a share of all shares changes nothing."""
    assert prices({81: 1000, 30: 1000 * RAREST / 2}) == prices({81: 7})


@given(MIXES)
def test_values_never_fall(shares: dict[int, float]) -> None:
    """A larger part is worth no less, nothing is worth nothing, and a GPU is worth one."""
    values = part_values(shares)
    assert list(values) == sorted(values)
    assert (values[0], values[100]) == (0, 1)


@given(MIXES)
def test_no_shares_on_one_gpu_cost_more_than_a_gpu(shares: dict[int, float]) -> None:
    """Two parts that fit on one GPU are worth no more apart than together: prices are feasible."""
    values = prices(shares)
    for first, second in product(range(101), repeat=2):
        if first + second < 100:
            assert values[first] + values[second] <= values[first + second] + 1e-5


def patterns(sizes: list[int], room: int = 100) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of shares of each size that fit on one GPU together."""
    if not sizes:
        yield ()
        return
    size, *others = sizes
    for many in range(room // size + 1):
        for rest in patterns(others, room - many * size):
            yield (many, *rest)


def fewest_gpus(shares: dict[int, float]) -> float:
    """Return the fewest GPUs that hold the shares, in parts of patterns: tried with every set of patterns."""
    sets = combinations(patterns(list(shares)), len(shares))
    bases = np.array([np.array(each, np.float64).T for each in sets])
    needed = np.array(list(shares.values()))
    used = np.linalg.solve(bases[abs(np.linalg.det(bases)) > 1e-6], needed[:, None])[..., 0]
    return float(used[(used >= -1e-9).all(axis=1)].sum(axis=1).min())


@given(st.dictionaries(st.integers(20, 99), st.floats(1, 10), min_size=1, max_size=3))
@settings(max_examples=30)
def test_prices_are_the_best(shares: dict[int, float]) -> None:
    """All shares together cost as many GPUs as they need at least, so no feasible prices make the shares dearer."""
    values = prices(shares)
    cost = sum(number * values[size] for size, number in shares.items())
    assert cost == pytest.approx(fewest_gpus(shares), rel=2e-3)  # frequencies are moved apart


@given(st.integers(1, 99), st.integers(1, 100))
def test_what_a_share_costs(percent: int, more: int) -> None:
    """A share costs the value that the free piece loses, and a tenth of what stays free."""
    free = min(100, percent + more)
    assert share_cost(LINEAR, free, percent) == pytest.approx(percent / 100 + (free - percent) / 1000)
