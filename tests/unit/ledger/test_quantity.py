"""Tests of `gpushare_plugin.ledger.quantity`."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.ledger.quantity import LARGEST_AMOUNT, QuantityError, thousandths, units


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [("5", 5), (7, 7), ("1k", 1000), ("2Ki", 2048), ("0", 0), ("1e3", 1000), ("1E2", 100), ("1E", 10**18), ("2.0", 2)],
)
def test_quantities_mean_what_they_mean_in_kubernetes(quantity: str | int, expected: int) -> None:
    """Whole numbers are read with the suffixes of Kubernetes."""
    assert units(quantity) == expected


@pytest.mark.parametrize(
    "quantity", ["", "-1", "0.5", "500m", "1kk", "five", "1e99", str(LARGEST_AMOUNT + 1), "٣", "9" * 500]
)
def test_a_text_that_is_no_whole_number_is_an_error(quantity: str) -> None:
    """Nothing else is taken for a number of units."""
    with pytest.raises(QuantityError, match="expected"):
        units(quantity)


@given(st.text())
def test_any_text_is_a_number_or_an_error(text: str) -> None:
    """No text gets anything but a number of units out of it, or the one error."""
    with suppress(QuantityError):
        assert 0 <= units(text) <= LARGEST_AMOUNT


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("2", 2000),
        ("250m", 250),
        ("0.1", 100),
        ("1.5Gi", 1610612736000),
        ("100u", 1),
        ("1001u", 2),
        ("1n", 1),
        ("0", 0),
    ],
)
def test_fractions_are_kept_to_the_thousandth(quantity: str, expected: int) -> None:
    """Finer ones are rounded up."""
    assert thousandths(quantity) == expected


def test_amounts_beyond_what_kubernetes_counts_are_the_largest_amount() -> None:
    """No quantity is so large that counting fails."""
    assert thousandths("1e30") == thousandths(str(LARGEST_AMOUNT)) == LARGEST_AMOUNT * 1000
    with pytest.raises(QuantityError, match="such as 2, 250m"):
        thousandths("-1")


@given(st.integers(0, 10**12))
def test_a_whole_number_is_a_thousand_thousandths_for_each_unit(amount: int) -> None:
    """Both readings of one text agree."""
    assert thousandths(str(amount)) == 1000 * units(str(amount))
