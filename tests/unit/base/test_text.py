"""Tests of `gpushare_plugin.base.text`."""

import json
from typing import Final

import pytest

from gpushare_plugin.base.text import in_words, some_of, visible, visible_json


@pytest.mark.parametrize(
    ("names", "text"), [("", ""), ("a", "a"), ("ab", "a, b"), ("abc", "a, b and 1 more"), ("abcdef", "a, b and 4 more")]
)
def test_a_long_list_of_names_shows_the_first_and_counts_the_rest(names: str, text: str) -> None:
    """Here two names are shown; nothing is added where all are."""
    assert some_of(list(names), 2) == text


def test_names_that_are_not_shown_are_not_spelled() -> None:
    """A sender of thousands of names does not keep us busy with them."""
    spelled = []

    def spell(name: str) -> str:
        spelled.append(name)
        return f"'{name}'"

    assert some_of(["x"] * 100_000, 2, spell) == "'x', 'x' and 99998 more"
    assert spelled == ["x", "x"]


UNSEEN: Final = (
    "\x00\a\b\n\r\t\x1b\x7f\x85\x9b\xa0\xad\u034f\u115f\u200b\u200e\u202e\u2028\u2066\u3164\ufe0f\ufeff\ud800\U000e0041"
)
"""Controls of C0 and C1, separators, what changes the direction of writing, and what has no width."""


@pytest.mark.parametrize("character", UNSEEN)
def test_invisible_characters_are_shown_as_escapes(character: str) -> None:
    """In a line and in JSON, which still means the same."""
    assert visible(f"a{character}b") == f"a{character.encode('unicode_escape').decode()}b"
    said = json.dumps({"key": f"a{character}b"}, ensure_ascii=False, indent=1)
    shown = visible_json(said)
    assert shown.isascii()
    assert all(line.isprintable() for line in shown.split("\n"))
    assert json.loads(shown) == json.loads(said)


def test_visible_characters_stay_as_they_are() -> None:
    """Characters of any script stay, with the marks and pictures that people write."""
    text = "GPU 0: 16 GiB, größer ≥ ½ 显存 ذاكرة ██░ 🙂"
    assert visible(text) == text
    assert visible_json(json.dumps(text, ensure_ascii=False)) == json.dumps(text, ensure_ascii=False)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError(2, "No such file or directory", "/x"), "No such file or directory: /x"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (ValueError("found 3;\n expected 4"), "found 3; expected 4"),
        (KeyError("users"), "KeyError: 'users'"),
        (TimeoutError(), "TimeoutError"),
        (AttributeError("'Node' has no 'live'"), "AttributeError: 'Node' has no 'live'"),
    ],
)
def test_an_error_is_told_in_words_on_one_line(error: Exception, text: str) -> None:
    """A person reads what happened, on one line; the class is named where there is nothing else to say."""
    assert in_words(error) == text
