"""Tests of `docs/architecture.md`: the picture of the folders agrees with the code, and paths of the page exist."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gpushare_plugin"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PICTURE = PAGE.split("```mermaid\n")[1].split("```")[0]

Arrows = dict[str, set[str]]
"""Folders that each folder imports."""


@pytest.fixture(scope="module")
def imports() -> Arrows:
    """Return the folders that the modules of each folder import."""
    found: Arrows = {folder: set() for folder in folders()}
    for file in PACKAGE.rglob("*.py"):
        folder = file.relative_to(PACKAGE).parts[0]
        if folder in found:
            lines = re.findall(r"^\s*(?:from|import) gpushare_plugin\.(\w+)", file.read_text(), re.MULTILINE)
            found[folder] |= {each for each in lines if each != folder}
    return found


def test_the_picture_names_every_room() -> None:
    """Each folder of the package is in the picture with its purpose, and nothing else is."""
    named = re.findall(r"^ +(\w+)\[\"(\w+): .+\"\]$", PICTURE, re.MULTILINE)
    assert [folder for folder, title in named if folder != title] == []
    assert {folder for folder, _ in named} == folders()


def test_the_picture_has_the_layers_of_the_import_contracts() -> None:
    """Each arrow leads from a higher layer of the contract to a lower layer, and the contract has the same folders."""
    layer = {folder: number for number, row in enumerate(layers()) for folder in row}
    assert layer.keys() == folders()
    assert [
        (folder, each) for folder, reached in arrows().items() for each in reached if layer[each] <= layer[folder]
    ] == []


def test_each_arrow_of_the_picture_is_an_import(imports: Arrows) -> None:
    """The picture shows no path between folders that the code does not take."""
    assert {
        folder: reached - imports[folder] for folder, reached in arrows().items() if not reached <= imports[folder]
    } == {}


def test_each_import_follows_the_arrows(imports: Arrows) -> None:
    """Whatever folder a folder imports is reached by arrows; `base` is for all."""
    drawn = arrows()
    beside = {folder: used - reached(folder, drawn) - {"base"} for folder, used in imports.items()}
    assert {folder: used for folder, used in beside.items() if used} == {}


def test_each_folder_says_what_it_is_for() -> None:
    """The docstring of a folder and of each module in it says what it is for, in place of a list on the page."""
    silent = [
        str(file.relative_to(ROOT))
        for file in PACKAGE.rglob("*.py")
        if "api" not in file.parts and not file.read_text().lstrip().startswith('"""')
    ]
    assert silent == []


def test_paths_that_the_page_names_are_there() -> None:
    """Each path between backquotes exists, in the package or in the repository."""
    paths = re.findall(r"`(\w[\w./-]*(?:/|\.(?:py|yaml|json|toml|txt|md|tpl)))`", PAGE.split("## Folders")[1])
    assert len(paths) > 60
    assert [path for path in paths if not (ROOT / path).exists() and not (PACKAGE / path).exists()] == []


def folders() -> set[str]:
    """Return the folders of the package."""
    return {file.parent.name for file in PACKAGE.glob("*/__init__.py")}


def layers() -> list[list[str]]:
    """Return the folders of each layer of the import contract, from the top."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    contract = next(each for each in tool["importlinter"]["contracts"] if each["name"] == "Imports point down only")
    return [names for row in contract["layers"] if (names := [each for each in row.split(" | ") if each in folders()])]


def arrows() -> Arrows:
    """Return where the arrows of the picture lead, the dotted ones included."""
    drawn: Arrows = {folder: set() for folder in folders()}
    for left, right in re.findall(r"^ +([\w &]+?) (?:-->|-\. files \.->) ([\w &]+)$", PICTURE, re.MULTILINE):
        for folder in left.split(" & "):
            drawn[folder] |= set(right.split(" & "))
    return drawn


def reached(folder: str, drawn: Arrows) -> set[str]:
    """Return every folder to which a path of arrows leads from a folder."""
    found: set[str] = set()
    while new := set().union(drawn[folder], *(drawn[each] for each in found)) - found:
        found |= new
    return found
