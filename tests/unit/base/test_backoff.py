"""Tests of `gpushare_plugin.base.backoff`."""

from gpushare_plugin.base.backoff import Backoff


def test_waits_double_up_to_the_most_and_start_over() -> None:
    """Each failure doubles the wait, never past the most; a success starts over."""
    backoff = Backoff(first=1.0, most=5.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0


def test_a_very_long_outage_is_no_overflow() -> None:
    """The wait stays at the most however often an attempt failed."""
    backoff = Backoff(failures=100_000)
    assert backoff.next() == backoff.most
