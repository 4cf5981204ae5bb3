"""Tests of `tests.project.mutants`: what is drawn, and that a mutant is killed by a test that fails with it alone."""

import ast
from pathlib import Path

import pytest

from tests.project.mutants import draw, mutants, report

ENDS = ("2  ->  3", "room - 1", "room <= LIMIT")
RULES = '''\
LIMIT: int = 7

def fits(sizes: list[int | None], room: int = 2 + 3) -> bool:
    """Return whether they fit."""
    if room < LIMIT and sizes:
        return min(size * 2 for size in sizes if size) <= room
    return False

def untested(room: int) -> int:
    return room + 1
'''
TEST = """\
from gpushare_plugin.rules.fit import fits

def test_fit():
    assert fits([3], 6)
    assert not fits([4], 6)
"""


def test_every_change_stands_where_it_says() -> None:
    """Functions are changed, and no annotation, default or docstring; the rest of the file stays as it is."""
    found = {str(each): each.source(RULES) for each in mutants("fit.py", ast.parse(RULES))}
    assert len(found) == 18
    changed = found["fit.py:5: room < LIMIT  ->  room <= LIMIT"].splitlines()
    assert changed[4] == "    if (room <= LIMIT) and sizes:"
    assert [*changed[:4], *changed[5:]] == [*RULES.splitlines()[:4], *RULES.splitlines()[5:]]
    assert "fit.py:6: size * 2  ->  size // 2" in found
    assert "fit.py:6: size  ->  not size" in found
    assert all(ast.parse(each) for each in found.values())


def test_a_mutant_that_no_test_notices_survives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mutants that no test reaches survive unseen; others meet the tests that reach them."""
    trees = [tmp_path / "tree", tmp_path / "noting"]
    for tree in trees:
        for name, text in {
            "gpushare_plugin/__init__.py": "",
            "gpushare_plugin/rules/__init__.py": "",
            "gpushare_plugin/rules/fit.py": RULES,
            "tests/unit/test_fit.py": TEST,
        }.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
    drawn = [each for each in draw(trees[0], ["rules"], 100, seed=1) if str(each).endswith(ENDS)]
    report(trees[0], trees[1], drawn, limit=60)
    head, *survivors = capsys.readouterr().out.splitlines()
    assert head == "1 of 3 killed (33%); these survive:"
    assert sorted(survivors) == [
        "gpushare_plugin/rules/fit.py:10: room + 1  ->  room - 1  (0 tests reach it)",
        "gpushare_plugin/rules/fit.py:5: room < LIMIT  ->  room <= LIMIT  (1 tests reach it)",
    ]
