"""The spelling of values in messages, and the nearest correct spelling of a wrong value."""

import json
from collections.abc import Iterable

LONGEST = 80
"""Characters of a wrong value repeated in a message; the rest is at the reported place in the file."""


def shown(value: object) -> str:
    """Spell `value` for a message on one line: text in quotes, a section or list only by its kind."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    text = str(value)
    if isinstance(value, (str, bool)):
        text = json.dumps(value, ensure_ascii=not text.isprintable())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def printable(name: str) -> str:
    """Return the name of a file or GPU, in quotes and with escapes if not printable on one line."""
    return name if name.isprintable() else json.dumps(name)


def nearest(word: str, right: Iterable[str], cutoff: float = 0.7) -> str | None:
    """Return the entry of `right` most similar to `word`; None if no entry is similar.

    Case, dashes, dots and underscores do not count: `mig-strategy` is `migStrategy`. The same words around a plus sign
    in another order are the nearest: `mps+driver` is `driver+mps`.
    """
    import difflib  # noqa: PLC0415 - only a mistake needs it

    right = list(right)
    for candidate in right:
        if "+" in word and sorted(word.split("+")) == sorted(candidate.split("+")):
            return candidate
    spellings = {_bare(candidate): candidate for candidate in reversed(right)}
    matches = difflib.get_close_matches(_bare(word[:LONGEST]), spellings, n=1, cutoff=cutoff)
    return spellings[matches[0]] if matches else None


def wrong(found: object, allowed: str, instead: str | None = None) -> str:
    """Return a message with the found value, the allowed values and, if known, the nearest correct value."""
    if instead is None:
        return f"found {shown(found)}; allowed: {allowed}"
    return f"found {shown(found)}; did you mean {shown(instead)}? Allowed: {allowed}"


def _bare(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())
