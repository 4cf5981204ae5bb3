"""Tests of the documents that are made from the code."""

from tests.command_line import PAGE, page


def test_the_command_line_page_is_not_stale() -> None:
    """The page says what the commands say; `make generate` writes it."""
    assert PAGE.read_text() == page()
