"""Tests of the documents that are made from the code."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from generators import command_line, dashboard, events_table, metrics_table
from generators.pictures import pictures

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]


def test_the_command_line_page_is_not_stale() -> None:
    """The page says what the commands say; `make generate` writes it."""
    assert command_line.PAGE.read_text() == command_line.page()


def test_the_table_of_metrics_is_not_stale() -> None:
    """The page says what is served, every metric of it; `make generate` writes it."""
    assert metrics_table.PAGE.read_text() == metrics_table.page()


def test_the_dashboard_is_not_stale() -> None:
    """The chart has the dashboard that the table of its panels describes; `make generate` writes it."""
    assert dashboard.FILE.read_text() == dashboard.dashboard()


def test_the_table_of_events_is_not_stale() -> None:
    """The page says what can happen, every Event of it; `make generate` writes it."""
    assert events_table.PAGE.read_text() == events_table.page()


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


def test_links_lead_somewhere() -> None:
    """Each link of a page to a file of the repository, or to a section of a page, is right."""
    links = [
        (page, target)
        for page in PAGES
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text())
        if not target.startswith("https://")
    ]
    assert len(links) > 50
    assert [f"{page.relative_to(ROOT)}: {target}" for page, target in links if not leads_somewhere(page, target)] == []


def leads_somewhere(page: Path, target: str) -> bool:
    """Whether a link of a page leads to a file, and to a section of it where it names one."""
    name, _, section = target.partition("#")
    file = page.parent / name if name else page
    return file.exists() and (not section or section in sections(file))


def sections(page: Path) -> set[str]:
    """Return the names by which links lead to the sections of a page: its headings, as GitHub changes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
