"""Wording that messages of every part have in common."""

from collections.abc import Callable, Sequence

_DEFECTS = (AttributeError, LookupError, NameError, TypeError, UnicodeError)
"""Errors whose text speaks of code: what people report of them is of use with the class only."""


def in_words(error: BaseException) -> str:
    """Return what an error says, on one line; with its class only where that says more than the text."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    text = " ".join(str(error).split())
    # A lone word, such as the key that was not found, does not say what is wrong with it.
    if " " in text and not isinstance(error, _DEFECTS):
        return text
    return f"{type(error).__name__}{text and ': '}{text}"


def some_of(names: Sequence[str], most: int, shown: Callable[[str], str] = str) -> str:
    """Return the first `most` of `names`, as `shown` spells them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(shown, names[:most])) + more
