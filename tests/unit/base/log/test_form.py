"""Tests of `gpushare_plugin.base.log.form`: the log for people."""

import json
from collections.abc import Iterator

import pytest
import structlog

from gpushare_plugin.base.log.form import configure_log, console_renderer

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


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[2Jgone", "\x9b2J", "split\u2028line", "a\u202eb", "a\u200bb", ""])
def test_logged_text_stays_on_its_line(text: str) -> None:
    """A text from outside can neither begin a line of its own nor speak to the terminal."""
    line = written(colours=False, reason=text, names=[text])
    assert line.isprintable()
    assert len(line.splitlines()) == 1


@pytest.fixture
def _configuration() -> Iterator[None]:
    """Leave the configuration of the log as it was."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


class Untold:
    """A value that nobody may look at."""

    def __repr__(self) -> str:
        """Return what shows that somebody looked."""
        return "told all the same"


@pytest.mark.usefixtures("_configuration")
@pytest.mark.parametrize("form", ["json", "text"])
def test_a_stack_has_no_values_of_variables(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The log of a defect says where it is; what was being worked on can be large, secret, or sent by an attacker."""
    configure_log(form, "info")

    def fail(value: Untold) -> None:
        raise ValueError(type(value))

    try:
        fail(Untold())
    except ValueError:
        structlog.get_logger().exception("unexpected_error")
    line = capsys.readouterr().err
    assert "in fail" in line or json.loads(line)["exception"][0]["frames"][-1]["name"] == "fail"
    assert "told all the same" not in line


def test_a_stack_shows_the_message_of_its_error_as_text() -> None:
    """It has lines of its own; the message of an error may repeat text from outside."""
    text = written(colours=False, exc_info=ValueError("found \x1b[2J\u202e"))
    assert all(line.isprintable() for line in text.split("\n"))
    assert "ValueError: found \\x1b[2J\\u202e" in text
