"""Tests of `tests.waiting`: what a test waits for is named when it does not come, with what was there instead."""

import re
from collections.abc import Callable

import pytest

from tests.waiting import until, until_blocking

SEEN = {"a": 1}
UNITS = [1, 2, 3]


def nothing() -> None:
    """Return nothing."""


@pytest.mark.parametrize(
    ("look", "told"),
    [
        (lambda: SEEN == {"a": 2}, "SEEN == {'a': 2}; SEEN is {'a': 1}"),
        (lambda: len(UNITS) >= 4 and SEEN["b"] == 2, "len(UNITS) >= 4 and SEEN['b'] == 2; len(UNITS) is 3"),
        (lambda: [unit for unit in UNITS if unit > 7], "[unit for unit in UNITS if unit > 7]; which is []"),
        (nothing, "nothing at 0x[0-9a-f]+> returned None"),
    ],
)
async def test_a_failed_wait_quotes_its_condition_with_what_was_seen(look: Callable[[], object], told: str) -> None:
    """A failure tells the condition as it is written, and what the sides of its comparisons were."""
    expected = told if look is nothing else re.escape(told)
    with pytest.raises(TimeoutError, match=f"^not so within 0.01 s: .*{expected}; and more$"):
        await until(look, lambda: "and more", within=0.01)


async def test_a_wait_returns_what_was_seen() -> None:
    """A test asserts of the moment that ended its wait, also where the look itself takes time."""
    looks = iter([[], [], ["found"]])

    async def ask() -> list[str]:
        return next(looks)

    assert await until(ask) == ["found"]
    assert until_blocking(lambda: UNITS) is UNITS


async def test_an_error_ends_a_wait_at_once() -> None:
    """Also where nothing could come any more; an error of time that is not the wait's own stays as it is."""

    async def gone() -> None:
        raise TimeoutError("of somebody else")

    with pytest.raises(TimeoutError, match=r"^of somebody else$"):
        await until(gone)
    with pytest.raises(ZeroDivisionError):
        await until(lambda: 1 / 0)
