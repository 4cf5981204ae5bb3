"""Tests of `gpushare_plugin.foundation.changes`."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.foundation.changes import Changes


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, "x", "y"]))))
def test_a_value_is_new_where_the_one_reported_before_was_another(reports: list[tuple[str, str | None]]) -> None:
    """Each topic by itself; before its first report the value of a topic is None."""
    changes, last = Changes(), dict[str, str | None]()
    for topic, value in reports:
        assert changes.is_new(topic, value) == (last.get(topic) != value)
        last[topic] = value
