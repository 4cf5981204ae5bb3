"""Makes `docs/log.md` from the calls that log; `python -m generators.log_events` writes it.

The code gives event, level and keys; `generators/log_meanings.py` says what they mean, or a test fails.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from generators.log_meanings import EVENTS, KEYS
from generators.pages import DOCUMENTS

PAGE = DOCUMENTS / "log.md"
PACKAGE = Path(__file__).parent.parent / "gpushare_plugin"

LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error", "log": "any"}
"""Methods of a logger, each with the level that it logs at; `log` is told the level by its caller."""

_NOT_KEYS = {"exc_info"}
_HEAD = """\
# Log events

Made by `make generate` from the code and from `generators/log_meanings.py`.

`gpushare run` and `gpushare mps` write one event a line to standard error, as JSON or for a terminal (`--log-format`).
`--log-level` is the minimum level. Names of events are stable: search and alert by `event` and `level`, not by the
sentences in `reason`. For example, each GPU that fails is one such line:

```json
{"uuid": "GPU-5f4c2a1b-…", "reason": "XID 79", "event": "gpu_unhealthy", "level": "error", "timestamp": "…"}
```

Every event also has `timestamp` (UTC). A defect of gpushare has `exception`, the stack: report it.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One call that logs: the event, the level, the names of its keys, and the file."""

    name: str
    level: str
    keys: frozenset[str]
    file: Path


def events(package: Path = PACKAGE) -> list[Event]:
    """Return every event that the package logs, but for its test kit; raises ValueError where a name is computed."""
    files = sorted(file for file in package.rglob("*.py") if "testing" not in file.relative_to(package).parts)
    return [event for file in files for event in in_source(file.read_text(), file)]


def in_source(source: str, file: Path) -> Iterator[Event]:
    """Yield the events of one file; raises ValueError with file and line where the name of an event cannot be read.

    A name may be a variable where a function of the same file has a parameter `event`: then the calls of that
    function name the events, and give them their keys.
    """
    tree = ast.parse(source)
    loggers = _Loggers(tree)
    passed_on = {function.name: _keys_of(function) for function in _functions(tree) if "event" in _names(function)}
    levels = set[str]()
    for call in _calls(tree):
        method = loggers.method(call.func)
        if method is None:
            continue
        arguments = call.args[1:] if method.level == "any" else call.args
        names = _texts(arguments[0]) if arguments else []
        if not names and not passed_on:
            raise ValueError(f"{file}:{call.lineno}: write the event's name as a text, so that it can be searched for")
        if not names:
            levels.add(method.level)
        for name in names:
            yield Event(name, method.level, method.keys | _keywords(call), file)
    for call in _calls(tree):
        function = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        for name in _texts(call.args[0]) if function in passed_on and call.args else ():
            for level in levels:
                yield Event(name, level, passed_on[function] | _keywords(call), file)


@dataclass(frozen=True, slots=True)
class _Method:
    level: str
    keys: frozenset[str]


class _Loggers:
    """The loggers of a file and their methods, by the expressions that name them, each with the keys bound to it."""

    def __init__(self, tree: ast.Module) -> None:
        self._bound: dict[str, frozenset[str]] = {}
        self._methods: dict[str, _Method] = {}
        assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
        for _ in range(2):  # a logger may be used above the line that makes it
            for node in assignments:
                keys, method = self._keys(node.value), self.method(node.value)
                for target in map(ast.unparse, node.targets):
                    if keys is not None:
                        self._bound[target] = keys
                    if method is not None:
                        self._methods[target] = method

    def method(self, value: ast.expr) -> _Method | None:
        """Return what a call of this expression logs, or None for what is no method of a logger."""
        if isinstance(value, ast.IfExp):
            either, other = self.method(value.body), self.method(value.orelse)
            return either and other and _Method(f"{either.level} or {other.level}", either.keys)
        if isinstance(value, ast.Attribute) and value.attr in LEVELS:
            keys = self._keys(value.value)
            return None if keys is None else _Method(LEVELS[value.attr], keys)
        return self._methods.get(ast.unparse(value))

    def _keys(self, value: ast.expr) -> frozenset[str] | None:
        if not isinstance(value, ast.Call):
            return self._bound.get(ast.unparse(value))
        if ast.unparse(value.func) == "structlog.get_logger":
            return frozenset()
        if isinstance(value.func, ast.Attribute) and value.func.attr == "bind":
            keys = self._keys(value.func.value)
            return None if keys is None else keys | _keywords(value)
        return None


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _names(function: ast.FunctionDef) -> list[str]:
    return [each.arg for each in function.args.args]


def _keys_of(function: ast.FunctionDef) -> frozenset[str]:
    return frozenset(_names(function)) - {"self", "event"}


def _keywords(call: ast.Call) -> frozenset[str]:
    return frozenset(each.arg for each in call.keywords if each.arg) - _NOT_KEYS


def _texts(expression: ast.expr) -> list[str]:
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        return [expression.value]
    if isinstance(expression, ast.IfExp):
        return [*_texts(expression.body), *_texts(expression.orelse)]
    return []


def page() -> str:
    """Return the whole page."""
    logged = events()
    names = sorted({event.name for event in logged})
    keys = sorted({key for event in logged for key in event.keys})
    return "\n".join(
        [
            _HEAD,
            "## Events\n",
            "| event | level | keys | meaning |",
            "|---|---|---|---|",
            *(_row(name, [event for event in logged if event.name == name]) for name in names),
            "\n## Keys\n",
            "| key | meaning |",
            "|---|---|",
            *(f"| `{key}` | {KEYS.get(key, '')} |" for key in keys),
            "",
        ]
    )


def _row(name: str, logged: list[Event]) -> str:
    levels = ", ".join(sorted({event.level for event in logged}))
    keys = ", ".join(f"`{key}`" for key in sorted(frozenset[str]().union(*(event.keys for event in logged))))
    return f"| `{name}` | {levels} | {keys} | {EVENTS.get(name, '')} |"


if __name__ == "__main__":
    PAGE.write_text(page())
