"""Quantities of Kubernetes, such as `5`, `1k`, `1.5Gi` or `250m`, as exact numbers."""

import re
from fractions import Fraction
from functools import lru_cache
from math import ceil

from gpushare_plugin.base.errors import GpushareError

LARGEST_AMOUNT = 2**63 - 1
"""The largest amount of a quantity in Kubernetes."""

_QUANTITY = re.compile(
    r"(?P<number>\+?(\d{1,32}(\.\d{0,32})?|\.\d{1,32}))((?P<scale>[KMGTPE]i|[numkMGTPE])|(?P<power>[eE][+-]?\d{1,2}))?",
    re.ASCII,
)
_SCALES = (
    {"": Fraction(1), "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "k": Fraction(1000)}
    | {letter: Fraction(1000) ** power for power, letter in enumerate("MGTPE", start=2)}
    | {f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}
)


class QuantityError(GpushareError):
    """A text is no Kubernetes quantity of the expected kind."""


@lru_cache(maxsize=4096)
def units(quantity: str | int) -> int:
    """Return the units in a Kubernetes quantity such as `5` or `1k`.

    Raises QuantityError for anything but a whole number from 0 to LARGEST_AMOUNT: the API server accepts only whole
    numbers for extended resources.
    """
    amount = _exact(quantity, "a whole number such as 5 or 1k")
    if amount.denominator != 1 or amount > LARGEST_AMOUNT:
        raise QuantityError(f"quantity {quantity!r} found, a whole number from 0 to {LARGEST_AMOUNT} expected")
    return int(amount)


@lru_cache(maxsize=4096)
def thousandths(quantity: str) -> int:
    """Return the thousandths in a Kubernetes quantity, rounded up like in the API server.

    A quantity above LARGEST_AMOUNT counts as LARGEST_AMOUNT. Raises QuantityError for text that is no quantity from 0
    up.
    """
    amount = _exact(quantity, "a quantity such as 2, 250m or 1.5Gi")
    return min(ceil(amount * 1000), LARGEST_AMOUNT * 1000)


def amount(quantity: str) -> Fraction:
    """Return the exact number of a Kubernetes quantity; raises QuantityError for text that is no quantity from 0 up."""
    return _exact(quantity, "a quantity such as 2, 250m or 1.5Gi")


def rounded_up(quantity: str) -> int:
    """Return a Kubernetes quantity as a whole number, rounded up; raises QuantityError as `amount` does."""
    return ceil(amount(quantity))


def _exact(quantity: str | int, expected: str) -> Fraction:
    """Return the exact number of a quantity; raises QuantityError."""
    match = _QUANTITY.fullmatch(str(quantity)[:80])
    if match is None:
        raise QuantityError(f"quantity {str(quantity)[:80]!r} found, {expected} expected")
    factor = Fraction(f"1{match['power']}") if match["power"] else _SCALES[match["scale"] or ""]
    return Fraction(match["number"]) * factor
