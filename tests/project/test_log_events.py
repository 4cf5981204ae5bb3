"""Tests of `docs/log.md` and of how the events of the log are read from the code."""

import re
from pathlib import Path

import pytest

import gpushare_plugin
from generators import log_events
from generators.log_meanings import EVENTS, KEYS


@pytest.fixture(scope="module")
def logged() -> list[log_events.Event]:
    """Return the events that the package logs."""
    return log_events.events()


def test_the_page_is_not_stale() -> None:
    """The page says what the code logs; `make generate` writes it."""
    assert log_events.PAGE.read_text() == log_events.page(), "run make generate"


def test_every_event_has_a_meaning(logged: list[log_events.Event]) -> None:
    """Each event that is logged is explained in `generators/log_meanings.py`, and nothing else is."""
    assert {event.name for event in logged} == EVENTS.keys()


def test_every_key_has_a_meaning(logged: list[log_events.Event]) -> None:
    """Events use the keys of one table, so that one search finds, for example, all events of a GPU."""
    assert {key for event in logged for key in event.keys} == KEYS.keys()


def test_events_are_words_to_search_for(logged: list[log_events.Event]) -> None:
    """An event is named in snake_case: stable, without punctuation, the same in every format of the log."""
    assert [event.name for event in logged if not event.name.isidentifier() or event.name.lower() != event.name] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('_log.info("started", version="1")', [("started", "info", {"version"})]),
        ('structlog.get_logger().error("failed", exc_info=True)', [("failed", "error", set())]),
        ('_log.exception("crashed")', [("crashed", "error", set())]),
        ('_log.log(level, "line", text="")', [("line", "any", {"text"})]),
        ('_log.info("up" if well else "down")', [("up", "info", set()), ("down", "info", set())]),
        ('bound = _log.bind(resource="r")\nbound.info("served", count=1)', [("served", "info", {"resource", "count"})]),
        ('tell = _log.debug if again else _log.info\ntell("served")', [("served", "debug or info", set())]),
        (
            'def warn(event, reason):\n    _log.warning(event, reason=reason)\nwarn("slow", "why")',
            [("slow", "warning", {"reason"})],
        ),
        (
            'bound = _log.bind(resource="r")\ndef warn(event, **k):\n    bound.warning(event)\nwarn("gone", path="p")',
            [("gone", "warning", {"resource", "path"})],
        ),
        ('facts = {"reason": "r"} if well else {}\n_log.info("up", **facts)', [("up", "info", {"reason"})]),
        ('other.info("no logger")', []),
    ],
)
def test_events_are_read_from_calls(source: str, expected: list[tuple[str, str, set[str]]]) -> None:
    """Each way in which the code logs is understood: event, level and keys."""
    found = log_events.in_source(f"_log = structlog.get_logger()\n{source}", Path("module.py"))
    assert [(event.name, event.level, set(event.keys)) for event in found] == expected


def test_reasons_have_words_of_errors_and_not_their_code() -> None:
    """`OSError(2, '...')` says to people less than `in_words` of it."""
    root = Path(gpushare_plugin.__file__).parent
    raw = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        if "testing" not in file.parts
        if re.search(r"\{(error|exception)!r\}|repr\((error|exception)\)", file.read_text())
    }
    assert raw == set()


def test_an_event_has_one_level(logged: list[log_events.Event]) -> None:
    """Whoever filters by level sees an event always or never."""
    levels: dict[str, set[str]] = {}
    for event in logged:
        levels.setdefault(event.name, set()).add(event.level)
    assert {name: found for name, found in levels.items() if len(found) > 1} == {}


def test_a_computed_name_is_a_mistake() -> None:
    """An event whose name cannot be read from the code could not be searched for either."""
    with pytest.raises(ValueError, match=r"module\.py:2: write the event's name as a text"):
        list(log_events.in_source('_log = structlog.get_logger()\n_log.info(f"{a} failed")', Path("module.py")))
