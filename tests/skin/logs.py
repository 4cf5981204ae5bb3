"""What programs log, beside the page that says what they may."""

import json
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from generators.log_events import events
from tests.skin.golden import masked

_EVERY = {"event", "level", "timestamp"}

Event = Mapping[str, Any]


class _Documented(NamedTuple):
    levels: frozenset[str]
    keys: frozenset[str]


@cache
def _documented_events() -> Mapping[str, _Documented]:
    """Return levels and keys of each event, from which `docs/log.md` is generated; the page has common keys once."""
    found: dict[str, _Documented] = {}
    for each in events():
        before = found.get(each.name, _Documented(frozenset(), frozenset()))
        found[each.name] = _Documented(before.levels.union(each.level.split()), before.keys | each.keys)
    return found


def undocumented(log: Iterable[Event]) -> list[Event]:
    """Return the events that `docs/log.md` does not have so, with their level and their keys."""
    return [each for each in log if not _documented(each)]


def _documented(logged: Event) -> bool:
    row = _documented_events().get(logged["event"])
    if row is None or not logged.keys() - _EVERY <= row.keys:
        return False
    return not row.levels.isdisjoint({"any", logged["level"]})


def lines(log: Iterable[Event], events: Collection[str], /, **places: object) -> str:
    """Return the lines of events of these names as they were logged, each once, in the order of the alphabet."""
    found = {masked(json.dumps(each, ensure_ascii=False), **places) for each in log if each["event"] in events}
    return "".join(f"{line}\n" for line in sorted(found))
