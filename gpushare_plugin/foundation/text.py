"""Wording that messages of every part have in common, and how text of others is shown."""

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

_DEFECTS = (AttributeError, LookupError, NameError, TypeError, UnicodeError)
"""Errors whose text speaks of code: what people report of them is of use with the class only."""

_UNSEEN = re.compile(
    "[\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u3164\\ufe00-\\ufe0f\\uffa0\\U000e0100-\\U000e01ef]"
)
"""Letters and marks that show nothing (Unicode: Default_Ignorable_Code_Point), which Python takes for printable."""


def visible(text: str) -> str:
    """Return text of others as it may stand in a line, with each character that is not seen as its escape.

    Those are controls (C0, C1), what changes the direction of writing, separators other than the space, and characters
    without a width: of each a person sees only what it does to the text beside it, up to a line that nobody wrote.
    """
    if _is_seen(text):
        return text
    return "".join(map(_seen, text))


def visible_json(text: str) -> str:
    """Return JSON of the same meaning, with such characters escaped; line ends are those between its values."""
    return "\n".join([line if _is_seen(line) else _visible_json(line) for line in text.split("\n")])


def _visible_json(line: str) -> str:
    return "".join([each if _is_seen(each) else json.dumps(each).strip('"') for each in line])


@lru_cache(maxsize=1024)
def _seen(character: str) -> str:
    return character if _is_seen(character) else character.encode("unicode_escape").decode()


def _is_seen(text: str) -> bool:
    return text.isprintable() and _UNSEEN.search(text) is None


def in_words(error: BaseException) -> str:
    """Return what an error says, on one line; with its class only where that says more than the text."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    text = " ".join(str(error).split())
    # A lone word, such as the key that was not found, does not say what is wrong with it.
    if " " in text and not isinstance(error, _DEFECTS):
        return text
    return f"{type(error).__name__}{text and ': '}{text}"


T = TypeVar("T")


def some_of(names: Sequence[T], most: int, shown: Callable[[T], str] = str, between: str = ", ") -> str:
    """Return the first `most` of `names`, as `shown` spells them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(map(shown, names[:most])) + more
