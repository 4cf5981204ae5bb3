"""Tests of `docs/architecture.md`: the picture of the rooms agrees with the code, and paths of the page exist."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gpushare_plugin"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PICTURE = PAGE.split("```mermaid\n")[1].split("```")[0]

Arrows = dict[str, set[str]]
"""Rooms that each room imports."""


@pytest.fixture(scope="module")
def imports() -> Arrows:
    """Return the rooms that the modules of each room import."""
    found: Arrows = {room: set() for room in rooms()}
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0]
        if room in found:
            lines = re.findall(r"^\s*(?:from|import) gpushare_plugin\.(\w+)", file.read_text(), re.MULTILINE)
            found[room] |= {each for each in lines if each != room}
    return found


def test_the_picture_names_every_room() -> None:
    """Each folder of the package is in the picture with its purpose, and nothing else is."""
    named = re.findall(r"^ +(\w+)\[\"(\w+): .+\"\]$", PICTURE, re.MULTILINE)
    assert [room for room, title in named if room != title] == []
    assert {room for room, _ in named} == rooms()


def test_the_picture_has_the_layers_of_the_import_contracts() -> None:
    """Each arrow leads from a higher layer of the contract to a lower layer, and the contract has the same rooms."""
    layer = {room: number for number, row in enumerate(layers()) for room in row}
    assert layer.keys() == rooms()
    assert [(room, each) for room, reached in arrows().items() for each in reached if layer[each] <= layer[room]] == []


def test_each_arrow_of_the_picture_is_an_import(imports: Arrows) -> None:
    """The picture shows no path between rooms that the code does not take."""
    assert {room: reached - imports[room] for room, reached in arrows().items() if not reached <= imports[room]} == {}


def test_each_import_follows_the_arrows(imports: Arrows) -> None:
    """Whatever room a room imports is reached by arrows; `base` is for all."""
    drawn = arrows()
    beside = {room: used - reached(room, drawn) - {"base"} for room, used in imports.items()}
    assert {room: used for room, used in beside.items() if used} == {}


def test_each_room_says_what_it_is_for() -> None:
    """The docstring of a room and of each module in it says what it is for, in place of a list on the page."""
    silent = [
        str(file.relative_to(ROOT))
        for file in PACKAGE.rglob("*.py")
        if "api" not in file.parts and not file.read_text().lstrip().startswith('"""')
    ]
    assert silent == []


def test_paths_that_the_page_names_are_there() -> None:
    """Each path between backquotes exists, in the package or in the repository."""
    paths = re.findall(r"`(\w[\w./-]*(?:/|\.(?:py|yaml|json|toml|txt|md|tpl)))`", PAGE.split("## Rooms")[1])
    assert len(paths) > 60
    assert [path for path in paths if not (ROOT / path).exists() and not (PACKAGE / path).exists()] == []


def rooms() -> set[str]:
    """Return the folders of the package."""
    return {file.parent.name for file in PACKAGE.glob("*/__init__.py")}


def layers() -> list[list[str]]:
    """Return the rooms of each layer of the import contract, from the top."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    contract = next(each for each in tool["importlinter"]["contracts"] if each["name"] == "Imports point down only")
    return [names for row in contract["layers"] if (names := [each for each in row.split(" | ") if each in rooms()])]


def arrows() -> Arrows:
    """Return where the arrows of the picture lead, the dotted ones included."""
    drawn: Arrows = {room: set() for room in rooms()}
    for left, right in re.findall(r"^ +([\w &]+?) (?:-->|-\. files \.->) ([\w &]+)$", PICTURE, re.MULTILINE):
        for room in left.split(" & "):
            drawn[room] |= set(right.split(" & "))
    return drawn


def reached(room: str, drawn: Arrows) -> set[str]:
    """Return every room to which a path of arrows leads from a room."""
    found: set[str] = set()
    while new := set().union(drawn[room], *(drawn[each] for each in found)) - found:
        found |= new
    return found
