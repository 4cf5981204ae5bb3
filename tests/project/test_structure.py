"""Tests of how the package is laid out: no part is too large to read."""

import ast
from pathlib import Path

import gpushare_plugin

LINES = 200
"""Lines that a class may have."""

(ROOT,) = map(Path, gpushare_plugin.__path__)


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
