"""Tests of `gpushare_plugin.observe.events`: Events that people and alerts can rely on."""

import re

from gpushare_plugin.observe.events import EVENTS


def test_reasons_are_unique_words_in_camel_case() -> None:
    """As the API asks for: a reason and an action are short words for machines (at most 128 characters)."""
    assert len({kind.reason for kind in EVENTS}) == len(EVENTS)
    for kind in EVENTS:
        assert re.fullmatch("([A-Z][a-z]+)+", kind.reason)
        assert re.fullmatch("([A-Z][a-z]+)+", kind.action)


def test_every_warning_has_a_remedy() -> None:
    """Whoever is warned is told what to do."""
    assert [kind.reason for kind in EVENTS if kind.type == "Warning" and not kind.remedy] == []
    assert [kind.reason for kind in EVENTS if not kind.meaning.endswith(".")] == []
