"""Tests of `gpushare_plugin.ledger.demand`."""

import pytest

from gpushare_plugin.ledger.demand import resized


@pytest.mark.parametrize(
    ("infeasible", "counted"),
    [(False, {"cpu": 4000, "memory": 3, "new": 0}), (True, {"cpu": 2000, "memory": 3})],
)
def test_the_largest_amount_counts_during_a_resize(*, infeasible: bool, counted: dict[str, int]) -> None:
    """What is asked counts unless the node cannot do it; an amount that one list lacks, or gives as 0, adds nothing."""
    asked, allocated, used = {"cpu": 4000, "new": 0}, {"cpu": 2000}, {"cpu": 1000, "memory": 3}
    assert resized(asked, allocated, used, infeasible=infeasible) == counted
