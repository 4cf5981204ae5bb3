"""Tests of `gpushare_plugin.base.reported`."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.reported import Repeats, Reported


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, "x", "y"]))))
def test_a_value_is_new_if_it_differs_from_the_value_reported_before(reports: list[tuple[str, str | None]]) -> None:
    """Topics are apart; before its first report the value of a topic is None."""
    changes, last = Reported(), dict[str, str | None]()
    for topic, value in reports:
        assert changes.is_new(topic, value) == (last.get(topic) != value)
        last[topic] = value


def test_a_kind_of_news_is_told_once_in_each_pause() -> None:
    """News between two reports is counted, and the count goes with the next report."""
    repeats = Repeats(pause=60, most_kinds=3)
    assert [repeats.untold("a", now) for now in (0, 1, 59, 60, 61, 120)] == [0, None, None, 2, None, 1]


def test_kinds_of_news_beyond_the_limit_are_told_as_one_kind() -> None:
    """Where there is no room for another kind, one line stands for all of them; known ones come as before."""
    repeats = Repeats(pause=60, most_kinds=2)
    assert [repeats.untold(kind, 0) for kind in "abcdef"] == [0, 0, 0, None, None, None]
    assert repeats.untold("a", 60) == 0
    assert repeats.untold("g", 60) == 0  # "b" was told long enough ago to be forgotten
    assert len(repeats) == 2


@given(st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 30)), max_size=300), st.integers(1, 8))
def test_random_news_keep_to_the_limits_of_memory_and_lines(news: list[tuple[int, float]], most: int) -> None:
    """Whatever comes, so many kinds and the rest are remembered, and so many lines a pause are reported."""
    repeats, now, told_at = Repeats(pause=60, most_kinds=most), 0.0, list[float]()
    for kind, later in news:
        now += later
        if repeats.untold(kind, now) is not None:
            told_at.append(now)
        assert len(repeats) <= most + 1
        assert sum(now - at < 60 for at in told_at) <= most + 1
