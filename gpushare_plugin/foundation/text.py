"""Wording that messages of every part have in common."""

from collections.abc import Callable, Sequence


def some_of(names: Sequence[str], most: int, shown: Callable[[str], str] = str) -> str:
    """Return the first `most` of `names`, as `shown` spells them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(shown, names[:most])) + more
