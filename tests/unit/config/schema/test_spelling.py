"""How values are shown, and nearest spellings."""

import pytest

from gpushare_plugin.config.schema.spelling import nearest, shown, wrong


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing"),
        ("a\nb", '"a\\nb"'),
        ("\u2028", '"\\u2028"'),
        ("größe", '"größe"'),
        (True, "true"),
        (2.5, "2.5"),
        ([], "an empty list"),
        ([1], "a list"),
        ({"a": 1}, "a section"),
    ],
)
def test_every_value_is_shown_on_one_line(value: object, text: str) -> None:
    """Text is quoted and escaped, sections and lists are named by kind."""
    assert shown(value) == text


def test_a_long_value_is_cut() -> None:
    """A message does not repeat a whole file."""
    assert len(shown("x" * 10_000)) < 100


@pytest.mark.parametrize(
    "word", ["timeslicing", "TimeSlicing", "time-slicing", "time_slicing", "timeSlice", "timSlicing"]
)
def test_case_and_separators_do_not_count_for_the_nearest_key(word: str) -> None:
    """The nearest key is found however the words are joined."""
    assert nearest(word, ["timeSlicing", "mps", "memory"]) == "timeSlicing"


def test_a_word_that_resembles_no_key_gets_no_suggestion() -> None:
    """No suggestion is better than a wild one."""
    assert nearest("colour", ["timeSlicing", "mps", "memory"]) is None


def test_a_message_names_the_found_the_nearest_and_the_allowed_words() -> None:
    """All three parts stand in one sentence order."""
    assert wrong("GB", "GiB, MiB", "GiB") == 'found "GB"; did you mean "GiB"? Allowed: GiB, MiB'
    assert wrong("\x1e", "a path", "/\x1e") == r'found "\u001e"; did you mean "/\u001e"? Allowed: a path'
    assert wrong("x", "GiB, MiB") == 'found "x"; allowed: GiB, MiB'
