"""Tests of `docs/architecture.md`: the page names what there is."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gpushare_plugin"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
TREE = [line.removeprefix("    ") for line in PAGE.splitlines() if line.startswith("    ")]


def test_paths_that_the_tree_names_are_there() -> None:
    """Each line of the tree begins with folders or files that exist, indented below their folder."""
    missing = [path for path in tree() if not path.exists()]
    assert [str(path.relative_to(ROOT)) for path in missing] == []


def test_the_tree_names_every_module() -> None:
    """Each module is in the tree, in a line of its own or in the words about its folder.

    Except generated code and the inside of the test kit. The same word elsewhere in the tree names another thing.
    """
    said = described()
    modules = [
        file
        for file in PACKAGE.rglob("*.py")
        if file.stem != "__init__" and not {"api", "testing"} & set(file.relative_to(PACKAGE).parts)
    ]
    assert len(modules) > 100
    missing = []
    for file in sorted(set(modules) - said.keys()):
        folder = next(each for each in file.parents if each in said)
        if file.stem not in re.findall(r"\w+", said[folder]):
            missing.append(f"{file.relative_to(ROOT)}: not named at {folder.relative_to(ROOT)}/")
    assert missing == [], "\n".join(missing)


def test_files_that_the_table_of_changes_names_are_there() -> None:
    """The files that the table names exist, but for those to come."""
    rows = PAGE.split("## Where does a change go?")[1].split("\n## ")[0].splitlines()
    paths = [
        path
        for row in rows
        if "to come" not in row
        for path in re.findall(r"`([\w/.-]+(?:/|\.py|\.yaml|\.json|\.toml|\.txt|\.md))`", row)
    ]
    assert len(paths) > 30
    assert [path for path in paths if not exists(path)] == []


def tree() -> Iterator[Path]:
    """Yield every path that begins a line of the tree, or follows there after a comma."""
    yield from described()


def described() -> dict[Path, str]:
    """Return what the tree says of each path that begins a line, or follows there after a comma."""
    said: dict[Path, str] = {}
    above: list[tuple[int, Path]] = []
    last: list[Path] = []
    for line in TREE:
        indent = len(line) - len(line.lstrip())
        while above and above[-1][0] >= indent:
            above.pop()
        folder = above[-1][1] if above else ROOT
        names = re.split(r"\s{2,}", line.strip())[0].split(", ")
        if not all(re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", name) and ("." in name or "/" in name) for name in names):
            if folder == ROOT and names == ["image/", "Dockerfile"]:
                said |= {ROOT / name: line for name in names}
            said |= {path: f"{said[path]} {line}" for path in last}  # the line above goes on
            continue
        last = [folder / name for name in names]
        said |= dict.fromkeys(last, line)
        above.append((indent, last[0]))
    return said


def exists(path: str) -> bool:
    """Whether a path of the table is there, as it is or somewhere below one of these folders."""
    places = [ROOT / top for top in ("gpushare_plugin", "charts", "generators")]
    return (ROOT / path).exists() or any(file.match(path.rstrip("/")) for top in places for file in top.rglob("*"))
