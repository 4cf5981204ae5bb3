"""Mutants of the pure rules, and how many of them the unit tests alone notice.

`python -m tests.project.mutants --commit COMMIT FOLDER…` draws mutants by a seed in these folders of any commit, below
`gpushare_plugin`, such as `core` and `ledger`, and prints the share that is killed and each mutant that survives.
The unit tests run once, to learn which of them reach which mutant; then each mutant meets the tests that reach it.
"""

import argparse
import ast
import compileall
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from random import Random

from tests.project import reached

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = "gpushare_plugin", "tests/unit"
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
NEAREST = 4
"""Files of tests that are run first, those nearest to the mutant: they kill most, and few files are read soon."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a file: the node that is replaced, and what stands there instead."""

    file: str
    statement: ast.stmt
    node: ast.expr | ast.stmt
    instead: ast.AST

    def __str__(self) -> str:
        """Tell the place and the change."""
        old, new = (" ".join(ast.unparse(each).split()) for each in (self.node, self.instead))
        return f"{self.file}:{self.node.lineno}: {old}  ->  {new}"

    def source(self, original: str) -> str:
        """Return the text of the file with the change; all other lines stay as they are."""
        lines = original.encode().splitlines(keepends=True)
        first, last = self.node.lineno - 1, (self.node.end_lineno or 0) - 1
        before, after = lines[first][: self.node.col_offset], lines[last][self.node.end_col_offset :]
        new = ast.unparse(self.instead)
        if isinstance(self.instead, ast.expr):
            new = f"({new})"
        return b"".join([*lines[:first], before, new.encode(), after, *lines[last + 1 :]]).decode()


def mutants(file: str, tree: ast.Module) -> Iterator[Mutant]:
    """Yield every mutant of a file, in the order of the text: of what functions do, not of what annotates them."""
    for function in _functions(tree):
        for statement in function.body:
            yield from _within(file, statement, statement)


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions of modules and classes; functions within functions are part of these."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from _functions(child)


def _within(file: str, node: ast.AST, statement: ast.stmt) -> Iterator[Mutant]:
    """Yield the mutants of a node and of all within; `statement` is the innermost one around the node."""
    if isinstance(node, ast.stmt):
        statement = node
    for old, new in _changes(node):
        yield Mutant(file, statement, old, new)
    for child in _children(node):
        yield from _within(file, child, statement)


def _children(node: ast.AST) -> Iterable[ast.AST]:
    """Return the parts of a node without annotations, decorators, defaults, patterns and texts."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.body
        case ast.AnnAssign():
            return [] if node.value is None else [node.value]
        case ast.Lambda():
            return [node.body]
        case ast.JoinedStr() | ast.pattern():
            return []
    return ast.iter_child_nodes(node)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:
    """Yield a node, or a condition in the node, with what may stand there instead."""
    if isinstance(node, ast.expr):
        for new in (*_of_operators(node), *_of_values(node)):
            yield node, new
    elif isinstance(node, ast.stmt):
        for new in _of_statement(node):
            yield node, new
    for condition in _conditions(node):
        for new in _opposite(condition):
            yield condition, new


def _of_operators(node: ast.expr) -> Iterator[ast.AST]:
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                for other in COMPARISONS[type(operator)]:
                    yield _with(node, ops=[*node.ops[:index], other(), *node.ops[index + 1 :]])
        case ast.BoolOp():
            yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.BinOp() if type(node.op) in OPERATORS:
            yield _with(node, op=OPERATORS[type(node.op)]())


def _of_values(node: ast.expr) -> Iterator[ast.AST]:
    match node:
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
            yield _with(node, func=ast.Name(FUNCTIONS[name]))


def _of_statement(node: ast.stmt) -> Iterator[ast.AST]:
    match node:
        case ast.Return(value=ast.Constant(value=str() | None)) | ast.Expr(value=ast.Constant()):
            pass  # a docstring, or a text, which people read
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def _conditions(node: ast.AST) -> Iterable[ast.expr]:
    """Return the conditions of a node, comparisons aside: these are changed by themselves."""
    match node:
        case ast.If() | ast.While() | ast.IfExp():
            found = [node.test]
        case ast.comprehension():
            found = node.ifs
        case ast.match_case(guard=ast.expr() as guard):
            found = [guard]
        case _:
            found = []
    return [each for each in found if not isinstance(each, ast.Compare)]


def _opposite(condition: ast.expr) -> Iterator[ast.expr]:
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        yield condition.operand
    else:
        yield ast.UnaryOp(ast.Not(), condition)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def draw(tree: Path, folders: Iterable[str], count: int, seed: int) -> list[Mutant]:
    """Draw mutants of all the modules in these folders of a tree."""
    found: list[Mutant] = []
    for folder in folders:
        for path in sorted((tree / PACKAGE / folder).rglob("*.py")):
            found += mutants(str(path.relative_to(tree)), ast.parse(path.read_text()))
    _tell(f"{len(found)} mutants there are, of which {min(count, len(found))} are drawn by the seed {seed}")
    return Random(seed).sample(found, min(count, len(found)))  # noqa: S311 - the same in each run


def instrument(tree: Path, drawn: Sequence[Mutant]) -> None:
    """Have each statement with a mutant note that it is reached."""
    for file in {each.file for each in drawn}:
        module = ast.parse((tree / file).read_text())
        wanted = {
            (each.statement.lineno, each.statement.col_offset): [
                number
                for number, other in enumerate(drawn)
                if other.file == file and other.statement.lineno == each.statement.lineno
            ]
            for each in drawn
            if each.file == file
        }
        for node in ast.walk(module):
            for field in ("body", "orelse", "finalbody"):
                if isinstance(block := getattr(node, field, None), list):
                    setattr(node, field, [new for each in block for new in _noted(each, wanted)])
        (tree / file).write_text(ast.unparse(module))


def _noted(statement: ast.stmt, wanted: Mapping[tuple[int, int], list[int]]) -> Iterator[ast.stmt]:
    """Yield a statement after what notes that it is reached; a child process has nobody who reads the note."""
    for number in wanted.get((statement.lineno, statement.col_offset), ()):
        note = f"__import__('sys').__dict__.setdefault({reached.REACHED!r}, set()).add({number})"
        yield from ast.parse(note).body
    yield statement


@dataclass(frozen=True, slots=True)
class Test:
    """A unit test, and the mutants that it reaches."""

    id: str
    seconds: float
    passed: bool
    reached: Sequence[int]

    @property
    def file(self) -> str:
        """The file of the test."""
        return self.id.split("::")[0]

    def distance(self, mutant: Mutant) -> tuple[int, float]:
        """Order tests: first those of folders that mirror the mutant's, then those that take less time."""
        of_test, of_mutant = self.file.removeprefix(f"{TESTS}/").split("/"), mutant.file.split("/")[1:]
        same = [a in {b, f"test_{b}"} for a, b in zip(of_test, of_mutant, strict=False)]
        return -(same.index(False) if False in same else len(same)), self.seconds


def run(tree: Path, file: Path, limit: float, *arguments: str) -> int | None:
    """Run tests in a tree and return the exit status, None where they take too long."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = (sys.executable, reached.__file__, str(file), "-q", "-p", "no:cacheprovider", *arguments)
    try:
        return subprocess.run(
            command,
            cwd=tree,
            env=environment,
            timeout=limit,
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def is_killed(tree: Path, mutant: Mutant, tests: Sequence[Test], limit: float) -> bool:
    """Return whether one of these tests fails, or does not end, with the mutant in the tree: the nearest ones first."""
    path = tree / mutant.file
    original = path.read_text()
    path.write_text(mutant.source(original))
    Path(cache_from_source(str(path))).unlink(missing_ok=True)  # byte code is told apart by whole seconds
    nearest = sorted(tests, key=lambda each: each.distance(mutant))
    first = list(dict.fromkeys(each.file for each in nearest))[:NEAREST]
    try:
        for some in ([each for each in nearest if (each.file in first) is near] for near in (True, False)):
            if some:
                chosen = tree / "chosen.json"
                chosen.write_text(json.dumps([each.id for each in some]))
                files = sorted({each.file for each in some})
                if run(tree, chosen, limit, "-x", "-o", f"timeout={limit / 10}", *files) != 0:
                    return True
    finally:
        path.write_text(original)
    return False


def main() -> None:
    """Print the share of mutants that unit tests kill, and those that survive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="folder of pure rules, below the package")
    parser.add_argument("--commit", default="HEAD", help="commit whose rules and tests these are (default: HEAD)")
    parser.add_argument("--count", type=int, default=100, help="how many mutants are drawn (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="seed by which they are drawn (default: 1)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a run of tests (default: 600)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = Path(folder, "tree"), Path(folder, "noting")
        for tree in trees:
            tree.mkdir()
            archive = subprocess.run(["git", "archive", options.commit], cwd=ROOT, check=True, stdout=subprocess.PIPE)  # noqa: S607
            subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)  # noqa: S607
        drawn = draw(trees[0], options.folders, options.count, options.seed)
        report(*trees, drawn, options.limit)


def report(tree: Path, noting: Path, drawn: Sequence[Mutant], limit: float) -> None:
    """Print what becomes of these mutants, of two copies of one tree."""
    instrument(noting, drawn)
    began = time.monotonic()
    found = noting / "reached.json"
    run(noting, found, 3600.0, TESTS)
    tests = [Test(*each) for each in json.loads(found.read_text())]
    passing = [each for each in tests if each.passed]
    _tell(f"{len(passing)} of {len(tests)} unit tests pass without mutants, in {time.monotonic() - began:.0f} s")
    compileall.compile_dir(tree / PACKAGE, quiet=2)
    survivors = []
    for number, mutant in enumerate(drawn):
        began = time.monotonic()
        reaching = [each for each in passing if number in each.reached]
        if survives := not (reaching and is_killed(tree, mutant, reaching, limit)):
            survivors.append(f"{mutant}  ({len(reaching)} tests reach it)")
        _tell(f"{number + 1:3} {time.monotonic() - began:5.1f} s {'survives' if survives else 'killed'} {mutant}")
    killed = len(drawn) - len(survivors)
    print(f"{killed} of {len(drawn)} killed ({killed / len(drawn):.0%}); these survive:", *survivors, sep="\n")  # noqa: T201


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
