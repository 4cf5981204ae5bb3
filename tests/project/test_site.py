"""The documents as a site: `make site`."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner

from generators import site
from generators.site import ROOT

_ADDRESS = re.compile(r"""<(?:a|img|link|script|source)\b[^>]*?\b(?:href|src|srcset)="?([^"\s>]+)""")
_NAME = re.compile(r"""\bid="?([^"\s>]+)""")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site of this repository."""
    return site.build(ROOT, tmp_path_factory.mktemp("site"))


def test_each_link_anchor_and_picture_of_the_site_is_there(built: Path) -> None:
    """Each address in the pages leads to a file of the site, and to a part of the page if it names a part."""
    pages = {page: page.read_text() for page in built.rglob("*.html") if page.name != "404.html"}
    names = {page: set(_NAME.findall(text)) for page, text in pages.items()}
    links = [(page, address) for page, text in pages.items() for address in _ADDRESS.findall(text)]
    assert len(links) > 1000
    lost = {(str(page.relative_to(built)), address) for page, address in links if not leads(page, address, names)}
    assert lost == set()


def leads(page: Path, address: str, names: dict[Path, set[str]]) -> bool:
    """Whether an address on a page of the site leads somewhere; addresses of other sites do."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return True
    file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if file.is_dir():
        file /= "index.html"
    return file.exists() and (not parts.fragment or unquote(parts.fragment) in names.get(file, ()))


def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A wrong name of a section is printed, and no site is built."""
    site.stage(ROOT, tmp_path)
    page = tmp_path / site.SOURCE / "docs/asking.md"
    page.write_text(page.read_text() + "\n[wrong](mig.md#no-such-section)\n")
    with pytest.raises(subprocess.CalledProcessError):
        site.render(tmp_path)
    assert "anchor does not exist" in capfd.readouterr().err


def test_each_page_is_in_the_sidebar() -> None:
    """The sidebar has each page that a person reads; the records of decisions have a list."""
    nav = tomllib.loads((ROOT / site.CONFIG).read_text())["project"]["nav"]
    pages = {str(page.relative_to(ROOT)) for page in site.pages(ROOT)}
    listed = {page for page in pages if re.match(r"docs/adr/(?!README)", page)}
    assert sorted(targets(nav)) == sorted(pages - listed)


def targets(nav: list[dict[str, Any]]) -> list[str]:
    """Return the pages of a part of the sidebar."""
    entries = [value for entry in nav for value in entry.values()]
    return [page for value in entries for page in ([value] if isinstance(value, str) else targets(value))]


def test_versions_stand_side_by_side(tmp_path: Path) -> None:
    """A site lists those of earlier releases, the newest first; the first page leads to the newest."""
    for earlier in ("0.9.0", "0.10.0"):
        (tmp_path / earlier).mkdir()
    CliRunner().invoke(site.site, [str(tmp_path), "--version", "0.2.0"], catch_exceptions=False)
    assert [each["version"] for each in site.versions(tmp_path)] == ["0.10.0", "0.9.0", "0.2.0"]
    assert "url=0.10.0/" in (tmp_path / "index.html").read_text()
    assert (tmp_path / "0.2.0/docs/install/index.html").exists()
