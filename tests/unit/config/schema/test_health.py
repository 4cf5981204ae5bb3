"""The section `health`: what it takes, and the policy it means."""

from collections.abc import Callable

import pytest

from gpushare_plugin.config.loading.load import Loaded, dump, load
from gpushare_plugin.config.schema.sections import Health
from gpushare_plugin.config.schema.values import Xids, parse_xids, plain_xids, xids_in
from gpushare_plugin.core.health import XidPolicy


def health(loaded: Loaded) -> Health:
    """Give the section of settings that must be right."""
    assert loaded.lines(loaded.problems) == []
    assert loaded.config is not None
    return loaded.config.health


@pytest.mark.parametrize("text", ["version: v1", "health:", "health: {}"])
def test_a_file_without_health_leaves_xids_their_usual_meaning(load_text: Callable[..., Loaded], text: str) -> None:
    """A file that says nothing of health leaves the XIDs their usual meaning."""
    section = health(load_text(text))
    assert section.policy() == XidPolicy()
    assert (section.good_probes, section.probe_seconds, section.rescan_seconds) == (3, 5, 30)
    assert health(load(None)) == section


def test_the_file_says_what_an_xid_means(load_text: Callable[..., Loaded]) -> None:
    """What is ignored adds to the application's own, what is watched wins, what needs a reset is told whole."""
    section = health(load_text("health: {ignoredXids: [56], watchedXids: [13], resetXids: [95], probeSeconds: 0.5}"))
    verdicts = {xid: section.policy().verdict(xid) for xid in (13, 31, 79, 56, 95)}
    assert verdicts == {
        13: "until recovery",
        31: "ignore",
        79: "until recovery",
        56: "ignore",
        95: "until reset",
    }
    assert section.probe_seconds == 0.5


def test_the_word_all_stands_for_every_xid(load_text: Callable[..., Loaded]) -> None:
    """Every XID can be ignored, every XID can be watched; what is watched wins."""
    nothing = health(load_text("health: {ignoredXids: all, watchedXids: [48], resetXids: []}")).policy()
    assert [nothing.verdict(xid) for xid in (79, 56, 48)] == ["ignore", "ignore", "until recovery"]
    everything = health(load_text("health: {ignoredXids: all, watchedXids: all}")).policy()
    assert [everything.verdict(xid) for xid in (13, 79)] == ["until recovery", "until reset"]


@pytest.mark.parametrize("text", ["health: {ignoredXids: all, watchedXids: [48, 13], resetXids: []}", "health: {}"])
def test_the_health_section_survives_being_written_out(load_text: Callable[..., Loaded], text: str) -> None:
    """The effective settings load back to the same."""
    loaded = load_text(text)
    assert loaded.config is not None
    assert load_text(dump(loaded.config)).config == loaded.config


@pytest.mark.parametrize("xids", ["all", (), (48, 13)])
def test_spelled_xids_read_back(xids: Xids) -> None:
    """Spelling and reading are inverse."""
    assert parse_xids(plain_xids(xids)) == xids


@pytest.mark.parametrize(
    ("text", "xids"),
    [
        ("13, 48", (13, 48)),
        ("048", (48,)),
        ("all", "all"),
        ("13,XIDS", "all"),
        (" All ", "all"),
        ("13,,many", (13, "many")),
        ("all,many", ("many",)),
        ("-1,0x30,²", ("-1", "0x30", "²")),
        ("9" * 5000, ("9" * 5000,)),
        (",", ()),
    ],
)
def test_xids_are_read_as_nvidias_variables_have_them(text: str, xids: object) -> None:
    """Numbers between commas, or one word for all of them; what is neither is left to be refused, also beside `all`."""
    assert xids_in(text) == xids
