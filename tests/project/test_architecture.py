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
    """No module of the package is missing in the tree, except generated code and the inside of the test kit."""
    words = set(re.findall(r"\w+", "\n".join(TREE)))
    modules = [
        file.relative_to(PACKAGE)
        for file in PACKAGE.rglob("*.py")
        if file.stem != "__init__" and not {"api", "testing"} & set(file.relative_to(PACKAGE).parts)
    ]
    assert len(modules) > 100
    assert [str(module) for module in sorted(modules) if module.stem not in words] == []


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
    above: list[tuple[int, Path]] = []
    for line in TREE:
        indent = len(line) - len(line.lstrip())
        while above and above[-1][0] >= indent:
            above.pop()
        folder = above[-1][1] if above else ROOT
        names = re.split(r"\s{2,}", line.strip())[0].split(", ")
        if not all(re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", name) and ("." in name or "/" in name) for name in names):
            if folder == ROOT and names == ["image/", "Dockerfile"]:
                yield from (ROOT / name for name in names)
            continue  # the line above goes on
        yield from (folder / name for name in names)
        above.append((indent, folder / names[0]))


def exists(path: str) -> bool:
    """Whether a path of the table is there, as it is or somewhere below one of these folders."""
    places = [ROOT / top for top in ("gpushare_plugin", "charts", "generators")]
    return (ROOT / path).exists() or any(file.match(path.rstrip("/")) for top in places for file in top.rglob("*"))
