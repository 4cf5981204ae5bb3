"""TOML files of the node: what is in them, or which line of them no program can read, by the name of its key.

Facts: toml.io, TOML 1.0.0, "Keys" and "Table" (a key or a table that stands twice makes the file invalid).
"""

import re
import tomllib

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.doctor.node.host import HostRoot

_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_TWICE = ("Cannot ", "Duplicate ")
"""How the messages of `tomllib` about something that stands twice begin."""
_TABLE = re.compile(r"\s*(\[\[?[^\[\]]+\]?\])\s*(?:#.*)?$")
_KEY = re.compile(
    r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=(?!.*(?:\"\"\"|'''))"
)
"""The key of a line whose value does not go over several lines: such lines can have a secret before a `=`."""


class TomlError(GpushareError):
    """A file is no TOML; the message says in which line, and names the key of this line, but no value."""

    def __init__(self, said: str, twice: tuple[str, ...] = (), lines: tuple[int, ...] = ()) -> None:
        """Say what is wrong in `lines`; `twice` has the key that stands in each of them, or all tables that do so."""
        super().__init__(said)
        self.twice = twice
        self.lines = lines

    def correction(self, file: str) -> str:
        """Return what to do in `file`, as an instruction."""
        numbers = " and ".join(map(str, self.lines))
        if not self.twice:
            return f"correct {file}{f' in line {numbers}, or just before' if numbers else ''}"
        if self.twice[0].startswith("["):
            return f"{self.keeps_once(file)}, with the settings that are below both places"
        lines = f"{'lines' if len(self.lines) > 1 else 'line'} {numbers}"
        return f"{self.keeps_once(file)} ({lines}); of two lists, keep the entries of both"

    def keeps_once(self, file: str) -> str:
        """Return that what stands twice is kept once in `file`, as an instruction."""
        return f"keep {'each of ' if len(self.twice) > 1 else ''}{' and '.join(self.twice)} once in {file}"


def read_toml(host: HostRoot, path: str) -> dict[str, object]:
    """Return the content of the TOML file at `path`, an empty one without a file.

    Raises UnreadableError for a file that cannot be read, and TomlError for one that is no TOML.
    """
    return parsed_toml(host.text(path) or "")


def parsed_toml(content: str) -> dict[str, object]:
    """Return what a TOML text says; raise TomlError for a text that is no TOML."""
    try:
        return tomllib.loads(content)
    except RecursionError as error:
        raise TomlError("nested too deeply") from error
    except ValueError as error:
        raise _mistake(content.split("\n"), str(error)) from error


def _mistake(lines: list[str], said: str) -> TomlError:
    """Return the mistake that `tomllib` names in words, with the key or the table of its line."""
    place = _PLACE.search(said)
    if place is None:
        return TomlError(said)
    number = int(place[1]) if place[1] else len("\n".join(lines).rstrip().split("\n"))
    name = _name(lines[number - 1]) if number <= len(lines) else ""
    reason = said[: place.start()]
    if not name or not reason.startswith(_TWICE):
        return TomlError(f"line {number}{name and f', {name}'}: {reason}", lines=(number,))
    first = _first(lines, number, name)
    return TomlError(
        f"line {number}: {name} stands a second time{f', after line {first}' if first else ''}",
        _tables_twice(lines) or (name,) if name.startswith("[") else (name,),
        (first, number) if first else (number,),
    )


def _tables_twice(lines: list[str]) -> tuple[str, ...]:
    """Return the tables that begin more than once, in the order of the lines; those of a list of tables may do so."""
    names = [_plain(name) for line in lines if (name := _name(line)).startswith("[") and not name.startswith("[[")]
    return tuple(dict.fromkeys(name for name in names if names.count(name) > 1))


def _name(line: str) -> str:
    """Return the table that a line begins, in brackets, or the key that it sets; empty for another line."""
    found = _TABLE.match(line) or _KEY.match(line)
    return found[1] if found else ""


def _first(lines: list[str], number: int, name: str) -> int | None:
    """Return the first line, before line `number`, that begins the same table, or sets the same key of its table."""
    before = list(enumerate(lines[: number - 1], 1))
    if not name.startswith("["):
        begins = max((each for each, line in before if _TABLE.match(line)), default=0)
        before = before[begins:]
    return next((each for each, line in before if _plain(_name(line)) == _plain(name)), None)


def _plain(name: str) -> str:
    """Return a name in one spelling: TOML has two kinds of quotes."""
    return name.replace('"', "'").replace(" ", "")
