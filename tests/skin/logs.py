"""What programs log, beside the page that says what they may."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.skin.golden import masked

PAGE = Path(__file__).parents[2] / "docs/log.md"
_ROW = re.compile(r"## (?P<level>.+)|\| `(?P<event>\w+)` \| (?P<keys>[^|]*) \|")
"""The heading of a table, which is the level of its events, or a row of the table."""
_EVERY = {"event", "level", "timestamp"}

Event = Mapping[str, Any]


class _Documented(NamedTuple):
    level: str
    keys: frozenset[str]


@cache
def _page() -> dict[str, _Documented]:
    text = PAGE.read_text()
    head = text.partition("The tables leave")[0].rpartition("\n\n")[2]
    documented, level, often = {}, "", frozenset(re.findall(r"`(\w+)`", head))
    for row in filter(None, map(_ROW.match, text.splitlines())):
        level = row["level"] or level
        if row["event"]:
            documented[row["event"]] = _Documented(level, often | frozenset(re.findall(r"`(\w+)`", row["keys"])))
    return documented


def undocumented(log: Iterable[Event]) -> list[Event]:
    """Return the events that `docs/log.md` does not have so, with their level and their keys."""
    return [each for each in log if not _documented(each)]


def _documented(logged: Event) -> bool:
    row = _page().get(logged["event"])
    if row is None or not logged.keys() - _EVERY <= row.keys:
        return False
    return row.level == "any" or logged["level"] in row.level.split()


def lines(log: Iterable[Event], events: Collection[str], /, **places: object) -> str:
    """Return the lines of events of these names as they were logged, each once, in the order of the alphabet."""
    found = {masked(json.dumps(each, ensure_ascii=False), **places) for each in log if each["event"] in events}
    return "".join(f"{line}\n" for line in sorted(found))
