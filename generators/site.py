"""The documents as a site, with search, a sidebar and versions: `make site`. zensical.toml has the sidebar.

Each release is a folder of the site. The site of earlier releases, if given in the folder, stays there.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from generators.pages import DOCUMENTS
from gpushare_plugin import __version__

ROOT = DOCUMENTS.parent
CONFIG = "zensical.toml"
SOURCE, SITE = "source", "site"
"""Where Zensical reads and writes, beside the config, as the config says."""

_INDEXES = ("README.md", "index.md")
_LINK = re.compile(r"""\]\(([^)\s#]+)|(?:src|srcset|href)="([^"#]+)""")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--version", default=__version__, help="The folder of this site among others.")
def site(folder: Path, version: str) -> None:
    """Write the site of the documents into FOLDER; the sites of other versions there stay."""
    with tempfile.TemporaryDirectory() as work:
        made = build(ROOT, Path(work))
        shutil.rmtree(folder / version, ignore_errors=True)
        shutil.copytree(made, folder / version)
    found = versions(folder)
    (folder / "versions.json").write_text(json.dumps(found, indent=2) + "\n")
    (folder / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={found[0]["version"]}/">\n')
    click.echo(folder / version / "index.html")


def build(root: Path, work: Path) -> Path:
    """Build the site of a repository in the empty folder `work`, and return the folder of the site.

    Raises CalledProcessError if a link leads nowhere; Zensical has then printed the page and the line.
    """
    stage(root, work)
    return render(work)


def render(work: Path) -> Path:
    """Build the site of what is staged; see `build`."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(work / CONFIG)]
    subprocess.run(command, cwd=work, check=True)
    for hidden in (work / SOURCE).glob(".*"):  # which Zensical leaves out
        shutil.copytree(hidden, work / SITE / hidden.name)
    return work / SITE


def stage(root: Path, work: Path) -> None:
    """Copy the pages, and the files of the repository that the pages link to, to where Zensical reads them."""
    shutil.copyfile(root / CONFIG, work / CONFIG)
    source = work / SOURCE
    linked = [each for each in targets(root) if each.is_relative_to(root)]
    folders = [each for each in linked if each.is_dir() and not any((each / name).exists() for name in _INDEXES)]
    within = [file for folder in folders for file in folder.iterdir() if file.is_file()]
    for file in {*pages(root), *(each for each in linked if each.is_file()), *within}:
        target = source / file.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    for folder in folders:
        (source / folder.relative_to(root) / "index.md").write_text(listing(folder))


def pages(root: Path) -> list[Path]:
    """Return the pages of the site."""
    return sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md"), root / "charts/gpushare/README.md"])


def targets(root: Path) -> set[Path]:
    """Return the files and folders that pages link to or show."""
    links = ((page, link) for page in pages(root) for link in _LINK.finditer(page.read_text()))
    return {(page.parent / (link[1] or link[2])).resolve() for page, link in links if ":" not in link[0]}


def listing(folder: Path) -> str:
    """Return a page with links to the files of a folder, which a site does not list by itself."""
    lines = [f"- [{title(file)}]({file.name})" for file in sorted(folder.iterdir()) if file.is_file()]
    return "\n".join([f"# {folder.name}", "", *lines, ""])


def title(file: Path) -> str:
    """Return the heading of a page, or the name of another file."""
    return file.read_text().partition("\n")[0].removeprefix("# ") if file.suffix == ".md" else file.name


def versions(folder: Path) -> list[dict[str, object]]:
    """Return the versions that a folder has sites of, the newest first, in the form of mike's versions.json."""
    names = [each.name for each in folder.iterdir() if each.is_dir() and each.name[0].isdigit()]
    ordered = sorted(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)
    return [{"version": name, "title": name, "aliases": []} for name in ordered]


if __name__ == "__main__":
    site()
