"""Tests of the values of free GPU parts."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.packing.values import LINEAR, PRICED, RAREST, part_values

MIXES = st.dictionaries(st.integers(1, 99), st.floats(1, 1000), min_size=1, max_size=6)


def prices(shares: dict[int, float]) -> list[float]:
    """Return the values without the part that does not depend on the shares."""
    return [float(each) for each in (part_values(shares) - (1 - PRICED) * LINEAR) / PRICED]


def test_without_shares_a_part_is_worth_its_size() -> None:
    """Nothing is known of shares at first, and then a half is worth a half."""
    assert part_values({}).tolist() == [part / 100 for part in range(101)]


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
    values = part_values(shares).tolist()
    assert values == sorted(values)
    assert (values[0], values[100]) == (0, 1)


@given(MIXES)
def test_no_shares_on_one_gpu_cost_more_than_a_gpu(shares: dict[int, float]) -> None:
    """Two parts that fit on one GPU are worth no more apart than together: prices are feasible."""
    values = prices(shares)
    for first, second in product(range(101), repeat=2):
        if first + second < 100:
            assert values[first] + values[second] <= values[first + second] + 1e-5


@given(st.tuples(st.integers(1, 99), st.integers(1, 99)).filter(lambda sizes: sizes[0] < sizes[1]), st.floats(0.1, 10))
def test_prices_of_two_sizes_are_the_best(sizes: tuple[int, int], ratio: float) -> None:
    """No feasible prices of two sizes make the shares dearer: tried at every corner of what is feasible."""
    small, large = sizes
    patterns = [((100 - large * many) // small, many) for many in range(100 // large + 1)]
    corners = [(1 / patterns[0][0], 0.0), (0.0, 1 / patterns[-1][1])]
    for (few, more), (many, fewer) in product(patterns, repeat=2):
        if determinant := few * fewer - more * many:
            corners.append(((fewer - more) / determinant, (few - many) / determinant))
    feasible = [
        corner
        for corner in corners
        if min(corner) >= -1e-9 and all(a * corner[0] + b * corner[1] <= 1 + 1e-9 for a, b in patterns)
    ]
    best = max(corner[0] + ratio * corner[1] for corner in feasible)
    values = prices({small: 1.0, large: ratio})
    assert values[small] + ratio * values[large] >= best - 2e-3 * (1 + ratio)  # frequencies are moved apart
