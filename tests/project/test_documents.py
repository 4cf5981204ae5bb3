"""Tests of the documents that are made from the code."""

import xml.etree.ElementTree as ET

from generators import command_line, metrics_table
from generators.pictures import pictures


def test_the_command_line_page_is_not_stale() -> None:
    """The page says what the commands say; `make generate` writes it."""
    assert command_line.PAGE.read_text() == command_line.page()


def test_the_table_of_metrics_is_not_stale() -> None:
    """The page says what is served, every metric of it; `make generate` writes it."""
    assert metrics_table.PAGE.read_text() == metrics_table.page()


def test_the_pictures_are_not_stale() -> None:
    """README shows what the demonstration prints, and the GPUs as it shares them; `make pictures` draws them."""
    drawn = pictures()
    assert {path: path.read_text() for path in drawn} == drawn


def test_the_pictures_fit_a_page() -> None:
    """They are small SVG files that load nothing from elsewhere."""
    for path, text in pictures().items():
        ET.fromstring(text)  # noqa: S314 - our own text
        assert path.stat().st_size < 32 << 10
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
