"""Tests of `gpushare_plugin.cli.logs`: the log for people."""

import pytest

from gpushare_plugin.cli.logs import console_renderer

EVENT = {
    "timestamp": "2026-11-22T05:24:19Z",
    "level": "warning",
    "event": "gpu_left_out",
    "index": 1,
    "instance": None,
    "mig": False,
    "uuid": "GPU-b3e4bb69",
    "gpus": ["a", "b"],
    "reason": 'GPU is lost; "found" nothing',
}


def written(*, colours: bool, **changes: object) -> str:
    """Return the line of an event."""
    return str(console_renderer(colours=colours)(None, "warning", {**EVENT, **changes}))


def test_a_line_for_people_has_no_padding_and_no_python() -> None:
    """Time, level, event and what belongs to it in the order of the code; words bare, sentences in quotes."""
    assert written(colours=False) == (
        "2026-11-22T05:24:19Z WARNING gpu_left_out index=1 mig=false uuid=GPU-b3e4bb69 "
        r'''gpus=["a", "b"] reason="GPU is lost; \"found\" nothing"'''
    )


def test_colours_change_nothing_but_the_looks() -> None:
    """They are added for terminals; without them there is no control sequence."""
    assert "\x1b[" in written(colours=True)
    assert "\x1b[" not in written(colours=False)


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[2Jgone", "\x9b2J", "split\u2028line", ""])
def test_what_is_logged_stays_on_its_line(text: str) -> None:
    """A text from outside can neither begin a line of its own nor speak to the terminal."""
    line = written(colours=False, reason=text)
    assert line.isprintable()
    assert len(line.splitlines()) == 1
