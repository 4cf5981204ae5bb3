"""Tests of how the package is laid out: one name means one thing, and folders lead one way."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import gpushare_plugin

(ROOT,) = map(Path, gpushare_plugin.__path__)
NAME = gpushare_plugin.__name__


def modules() -> Iterator[tuple[Path, ast.Module]]:
    """Yield the path, in the package, and the syntax tree of each module outside the test kit that people wrote."""
    for file in ROOT.rglob("*.py"):
        path = file.relative_to(ROOT)
        if path.parts[0] != "testing" and "_pb2" not in path.stem:
            yield path, ast.parse(file.read_text())


def imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """Yield the modules of the package that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (*(f"{node.module}.{each.name}" for each in node.names), node.module)
            if found := next((name for name in names if name in known), None):
                yield found


def test_no_class_name_means_two_things() -> None:
    """Whoever reads the name of a class knows which one is meant; a leading underscore makes no other name."""
    where: defaultdict[str, set[str]] = defaultdict(set)
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                where[node.name.lstrip("_")].add(str(path))
    twice = {name: sorted(files) for name, files in where.items() if len(files) > 1}
    assert twice == {}


def test_no_two_folders_import_each_other() -> None:
    """A folder that imports another one is not imported by that one: a reader goes in one direction."""
    trees = dict(modules())
    names = {".".join((NAME, *path.with_suffix("").parts)).removesuffix(".__init__") for path in trees}
    arrows = {
        ("/".join(path.parent.parts), "/".join(name.split(".")[1:-1]))
        for path, tree in trees.items()
        for name in imported(tree, names)
    }
    pairs = {frozenset(arrow) for arrow in arrows if arrow[0] != arrow[1] and arrow[::-1] in arrows}
    assert pairs == set()
