"""Tests of `gpushare_plugin.foundation.text`."""

import pytest

from gpushare_plugin.foundation.text import in_words, some_of


@pytest.mark.parametrize(
    ("names", "text"), [("", ""), ("a", "a"), ("ab", "a, b"), ("abc", "a, b and 1 more"), ("abcdef", "a, b and 4 more")]
)
def test_of_many_names_the_first_are_shown_and_the_rest_counted(names: str, text: str) -> None:
    """Two of them here; nothing is added where all are shown."""
    assert some_of(list(names), 2) == text


def test_only_names_that_are_shown_are_spelled() -> None:
    """Whoever sends thousands of names does not keep us busy with them."""
    spelled = []

    def spell(name: str) -> str:
        spelled.append(name)
        return f"'{name}'"

    assert some_of(["x"] * 100_000, 2, spell) == "'x', 'x' and 99998 more"
    assert spelled == ["x", "x"]


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
def test_errors_are_in_words(error: Exception, text: str) -> None:
    """A person reads what happened, on one line; the class is named where there is nothing else to say."""
    assert in_words(error) == text
