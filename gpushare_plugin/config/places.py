"""Values with their places: what stands where in the file, or which option set it."""

import re
from collections.abc import Iterable, Mapping
from types import EllipsisType
from typing import Self

from gpushare_plugin.config.spelling import printable, shown
from gpushare_plugin.foundation.errors import Path, Problem
from gpushare_plugin.foundation.structs import Struct


class SourcePlace(Struct, frozen=True):
    """Where a value comes from.

    `source` is the file's name or what set the value in its stead, such as `--mig-strategy`. `line` and `column` count
    from 1; `line` is 0 outside a file. `path` is spelled as in the file, wrong keys included.
    """

    source: str
    path: Path = ()
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        """Spell the place as compilers do: `gpushare.yaml:7:11: sharing.memory.resources[0].unit`."""
        source = printable(self.source)
        where = f"{source}:{self.line}:{self.column}" if self.line else source
        return f"{where}: {spelled(self.path)}" if self.path else where

    @property
    def order(self) -> tuple[bool, int, int, str]:
        """Sort by line and column, what is outside the file last."""
        return (not self.line, self.line, self.column, self.source)


def spelled(path: Path) -> str:
    """Spell `path` as in `sharing.memory.resources[0].unit`."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{_spelled_key(key)}" for key in path)
    return text.removeprefix(".")


def _spelled_key(key: str) -> str:
    return key if re.fullmatch(r"[-\w]{1,80}", key) else shown(key)


class Origin(Struct, frozen=True):
    """Where a text stands: it is the whole of a file, or a block of lines in it.

    `lines` are above the block, and `columns` to its left; `path` leads to it. `source` is the file's name. A text in
    quotes, whose own lines the file does not have, is `quoted`: it has the one place after `lines` and `columns`.
    """

    source: str
    path: Path = ()
    lines: int = 0
    columns: int = 0
    quoted: bool = False

    def place(self, line: int, column: int, path: Path = ()) -> SourcePlace:
        """Return the place in the file of what stands at this line and column of the text, from 1."""
        line, column = (1, 1) if self.quoted else (line, column)
        return SourcePlace(self.source, (*self.path, *path), self.lines + line, self.columns + column)


class Finding(Struct, frozen=True):
    """What is wrong with a file, and the place it is reported at."""

    place: SourcePlace
    message: str

    @property
    def path(self) -> Path:
        """The path as the file spells it."""
        return self.place.path


class PlacedValue(Struct):
    """A value and where it stands; a section holds such values by key, a list holds them in order.

    `place` is where a scalar stands, and where the key of a section or list stands; `key_place` is the key's for all.
    """

    place: SourcePlace
    key_place: SourcePlace
    value: object

    @classmethod
    def of(cls, data: object, source: str, path: Path = ()) -> Self:
        """Make a node of plain data that `source`, something else than a file, has set."""
        place = SourcePlace(source, path)
        value = data
        if isinstance(data, Mapping):
            value = {key: cls.of(member, source, (*path, key)) for key, member in data.items()}
        elif isinstance(data, (list, tuple)):
            value = [cls.of(member, source, (*path, index)) for index, member in enumerate(data)]
        return cls(place, place, value)

    @property
    def section(self) -> dict[str, "PlacedValue"] | None:
        """The nodes by key, if this is a section."""
        return self.value if isinstance(self.value, dict) else None

    @property
    def items(self) -> list["PlacedValue"] | None:
        """The nodes in order, if this is a list."""
        return self.value if isinstance(self.value, list) else None

    @property
    def text(self) -> str:
        """The text, empty if this is something else."""
        return self.value if isinstance(self.value, str) else ""

    def plain(self) -> object:
        """Give the value without places."""
        if self.section is not None:
            return {key: member.plain() for key, member in self.section.items()}
        if self.items is not None:
            return [member.plain() for member in self.items]
        return self.value

    def child(self, key: str | int) -> "PlacedValue | None":
        """Return the node at `key` of a section or list, None where there is none."""
        if self.section is not None and isinstance(key, str):
            return self.section.get(key)
        if self.items is not None and isinstance(key, int) and 0 <= key < len(self.items):
            return self.items[key]
        return None

    def along(self, path: Path) -> list["PlacedValue"]:
        """Return the nodes from this one on down `path`, as far as it exists."""
        nodes = [self]
        for key in path:
            node = nodes[-1].child(key)
            if node is None:
                break
            nodes.append(node)
        return nodes

    def at(self, *path: str | EllipsisType) -> list["PlacedValue"]:
        """Return the nodes at `path`, where `...` stands for every entry of a list; none where there is none."""
        nodes = [self]
        for key in path:
            if isinstance(key, str):
                nodes = [inner for node in nodes if (inner := node.child(key)) is not None]
            else:
                nodes = [item for node in nodes for item in node.items or ()]
        return nodes


class SettingPlaces(Struct, frozen=True):
    """Finds the place of a setting in the file, or in what set it in its stead."""

    root: PlacedValue

    def place(self, path: Path) -> SourcePlace:
        """Return where the setting at `path` of the config stands.

        For a setting that is not given, this is the place of the nearest section around it.
        """
        nodes = self.root.along(path)
        found = nodes[-1].place
        return SourcePlace(found.source, (*found.path, *path[len(nodes) - 1 :]), found.line, found.column)

    def describe(self, path: Path) -> str:
        """Spell the place of the setting at `path`, such as `gpushare.yaml:7:11: sharing.memory.resources[0].unit`."""
        return str(self.place(path))

    def placed(self, problems: Iterable[Problem | Finding]) -> list[Finding]:
        """Return each problem once, with its place, in the order of the file."""
        placed = {
            problem if isinstance(problem, Finding) else Finding(self.place(problem.path), problem.message)
            for problem in problems
        }
        return sorted(placed, key=lambda each: (each.place.order, str(each.place), each.message))

    def lines(self, problems: Iterable[Problem | Finding]) -> list[str]:
        """Spell each problem once, its place before its message, in the order of the file."""
        return [f"{each.place}: {each.message}" for each in self.placed(problems)]
