"""Golden files: how they are compared, and what in them changes from run to run and is therefore masked."""

import json
import re
import time
from collections.abc import Callable, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Any

from gpushare_plugin import __version__
from tests.waiting import until

GOLDEN = Path(__file__).parent / "golden"
REMEDY = "if the change is meant: python -m tests.skin.record"
QUIET = 10.0
"""Seconds without a change after which what is seen counts as what there is, where no golden file says what comes."""

Texts = dict[str, str]
"""The texts of a scene by the names of their files below `golden/`."""

_MASKS: tuple[tuple[str, str], ...] = (
    (rf"(?<![\w.]){re.escape(__version__)}(?![\w.])", "<version>"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?", "<time>"),
    (r"\b1[6-9]\d{17}\b", "<nanoseconds>"),
    (r'(?<="clients_asked_at": )[\d.]+', "<seconds since the start of the machine>"),
    (r"127\.0\.0\.1:\d{5}", "127.0.0.1:<port>"),
    (r"_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "_<identity>"),
    (r"\b\d+d(\d+h)?\b *", "<age> "),
    (r"\bWAITS +", "WAITS "),
)


def masked(text: str, /, **places: object) -> str:
    """Return a text without what another run would have otherwise: version, times, ports, and `places` by their names.

    A place is a path, a UID or whatever else the scene knows to be drawn; the longest ones are replaced first.
    """
    for name, place in sorted(places.items(), key=lambda each: -len(str(each[1]))):
        text = text.replace(str(place), f"<{name}>")
    for pattern, mask in _MASKS:
        text = re.sub(pattern, mask, text)
    return text


def as_json(data: Any) -> str:
    """Return data as JSON to read, one value a line; JSON in a text of it stays a text."""
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def unfolded(text: str) -> Any:
    """Return JSON as data for `as_json`, with what is JSON in a text of it as data, too."""
    return _unfolded(json.loads(text))


def _unfolded(data: Any) -> Any:
    match data:
        case dict():
            return {key: _unfolded(value) for key, value in data.items()}
        case list():
            return [_unfolded(each) for each in data]
        case str() if data[:1] in {"{", "["}:
            try:
                return {"JSON text": _unfolded(json.loads(data))}
            except ValueError:
                return data
    return data


def golden(name: str) -> str | None:
    """Return what a file has, None where there is none."""
    file = GOLDEN / name
    return file.read_text() if file.exists() else None


async def settled(look: Callable[[], str], name: str, having: str = "") -> str:
    """Return what is seen once it is what the golden file has, or once it has not changed for a while.

    Before it has the text `having`, what is waited for has not begun to show.
    """
    expected, before, since = golden(name), "", time.monotonic()

    def seen() -> str:
        nonlocal before, since
        if (now := look()) != before:
            before, since = now, time.monotonic()
        return now if now == expected or (having in now and time.monotonic() - since > QUIET) else ""

    return await until(seen, lambda: f"{name} still changes")


def differences(texts: Mapping[str, str]) -> str:
    """Return what is otherwise than in the golden files, for people; nothing where all is the same."""
    parts = [_difference(name, golden(name), text) for name, text in texts.items() if golden(name) != text]
    return "\n".join([*parts, REMEDY]) if parts else ""


def _difference(name: str, before: str | None, now: str) -> str:
    if before is None:
        return f"golden/{name} is missing; it would be:\n{now}"
    lines = unified_diff(before.splitlines(), now.splitlines(), f"golden/{name}", "as it is now", lineterm="")
    return "\n".join(lines) or f"golden/{name}: the end of its last line is otherwise"
