"""Tests of the documents that are made from the code."""

from generators import command_line, metrics_table


def test_the_command_line_page_is_not_stale() -> None:
    """The page says what the commands say; `make generate` writes it."""
    assert command_line.PAGE.read_text() == command_line.page()


def test_the_table_of_metrics_is_not_stale() -> None:
    """The page says what is served, every metric of it; `make generate` writes it."""
    assert metrics_table.PAGE.read_text() == metrics_table.page()
