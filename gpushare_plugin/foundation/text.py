"""Wording that messages of every part have in common."""

from collections.abc import Callable, Sequence


def in_words(error: BaseException) -> str:
    """Return what an error says, on one line: without its class and number where it says enough itself."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    text = " ".join(str(error).split())
    # A lone word, such as the key that was not found, does not say what is wrong with it.
    return text if " " in text else f"{type(error).__name__}{text and ': '}{text}"


def some_of(names: Sequence[str], most: int, shown: Callable[[str], str] = str) -> str:
    """Return the first `most` of `names`, as `shown` spells them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(shown, names[:most])) + more
