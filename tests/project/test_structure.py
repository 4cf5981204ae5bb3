"""Tests of how the package is laid out: a reader finds each part by its name, and no part is too large to read."""

import ast
from collections.abc import Iterator
from pathlib import Path

import gpushare_plugin

ENTRIES = 10
"""Modules and packages that a package may have, `__init__` and `__main__` aside."""
LINES = 200
"""Lines that a class may have."""

(ROOT,) = map(Path, gpushare_plugin.__path__)


def packages() -> Iterator[Path]:
    """Yield the folder of every package, the whole included."""
    return (file.parent for file in ROOT.rglob("__init__.py"))


def entries(package: Path) -> set[str]:
    """Return the names of the modules and packages that a package has itself."""
    modules = {file.stem for file in package.glob("*.py") if not file.stem.startswith("__")}
    return modules | {file.parent.name for file in package.glob("*/__init__.py")}


def test_no_package_has_more_entries_than_one_can_take_in() -> None:
    """A package that grows is split into parts with names."""
    counts = {str(package.relative_to(ROOT)): len(entries(package)) for package in packages()}
    assert {package: count for package, count in counts.items() if count > ENTRIES} == {}


def test_no_class_is_longer_than_a_few_screens() -> None:
    """A class that grows has more than one job; each gets a class of its own."""
    lengths = {
        f"{file.relative_to(ROOT)}: {node.name}": node.end_lineno - node.lineno + 1
        for file in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef) and node.end_lineno is not None
    }
    assert lengths
    assert {name: length for name, length in lengths.items() if length > LINES} == {}
