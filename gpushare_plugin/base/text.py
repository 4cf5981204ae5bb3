"""Wording common to the messages of all parts, and the safe display of text from outside gpushare."""

import json
import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import TypeVar

_DEFECTS = (AttributeError, LookupError, NameError, TypeError, UnicodeError)
"""Errors with a text about code, which helps nobody without the name of the class."""

_UNSEEN = re.compile(
    "[\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u3164\\ufe00-\\ufe0f\\uffa0\\U000e0100-\\U000e01ef]"
)
"""Invisible letters and marks (Unicode: Default_Ignorable_Code_Point) that Python takes for printable."""

_LIKE = 0.7
"""How much alike a word and a name have to be, from 0 to 1 (`difflib.SequenceMatcher.ratio`)."""


def visible(text: str) -> str:
    """Return text from outside gpushare, safe within a line: every invisible character is replaced by its escape.

    Invisible are controls (C0, C1), changes of the direction of writing, separators except the space, and characters
    without a width. A person sees only the effect of the character on other text, up to a line that nobody wrote.
    """
    if _is_seen(text):
        return text
    return "".join(map(_seen, text))


def visible_json(text: str) -> str:
    """Return JSON with the same meaning and its invisible characters escaped, except line ends between values."""
    return "\n".join([line if _is_seen(line) else _visible_json(line) for line in text.split("\n")])


def _visible_json(line: str) -> str:
    return "".join([each if _is_seen(each) else json.dumps(each).strip('"') for each in line])


@lru_cache(maxsize=1024)
def _seen(character: str) -> str:
    return character if _is_seen(character) else character.encode("unicode_escape").decode()


def _is_seen(text: str) -> bool:
    return text.isprintable() and _UNSEEN.search(text) is None


def in_words(error: BaseException) -> str:
    """Return the text of an error on one line; with the class of the error where the text alone says too little."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    text = " ".join(str(error).split())
    # A lone word, for example a missing key, does not say what is wrong.
    if " " in text and not isinstance(error, _DEFECTS):
        return text
    return f"{type(error).__name__}{text and ': '}{text}"


def nearest(word: str, names: Collection[str]) -> str | None:
    """Return the name that is most like a word, None if no name is much like it."""
    import difflib  # noqa: PLC0415 - only a mistake needs it

    found = difflib.get_close_matches(word, names, n=1, cutoff=_LIKE)
    return found[0] if found else None


def amount_of(number: int, noun: str) -> str:
    """Return a number with a noun, such as `1 node` and `2,000 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


T = TypeVar("T")


def some_of(names: Sequence[T], most: int, shown: Callable[[T], str] = str, between: str = ", ") -> str:
    """Return the first `most` of `names`, spelled by `shown`, and the number of further names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(map(shown, names[:most])) + more
