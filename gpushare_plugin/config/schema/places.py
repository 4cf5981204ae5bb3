"""Values with their places: the place in the file, or the option that gives the value."""

import re
from collections.abc import Iterable, Mapping
from types import EllipsisType
from typing import Self

from gpushare_plugin.base.errors import Path, Problem
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.schema.spelling import printable, shown


class SourcePlace(Struct, frozen=True):
    """The place of a value."""

    source: str
    """The name of the file, or the option or variable that gives the value, for example `--mig-strategy`."""
    path: Path = ()
    """The path in the spelling of the file, wrong keys included."""
    line: int = 0
    """The line, from 1; 0 outside a file."""
    column: int = 0
    """The column, from 1; 0 outside a file."""

    def __str__(self) -> str:
        """Spell the place in the style of compilers: `gpushare.yaml:7:11: sharing.memory.resources[0].unit`."""
        source = printable(self.source)
        where = f"{source}:{self.line}:{self.column}" if self.line else source
        return f"{where}: {spelled(self.path)}" if self.path else where

    @property
    def order(self) -> tuple[bool, int, int, str]:
        """A key for sorting by line and column, with places outside the file last."""
        return (not self.line, self.line, self.column, self.source)


def spelled(path: Path) -> str:
    """Spell `path` in the style of `sharing.memory.resources[0].unit`."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{_spelled_key(key)}" for key in path)
    return text.removeprefix(".")


def _spelled_key(key: str) -> str:
    return key if re.fullmatch(r"[-\w]{1,80}", key) else shown(key)


class Origin(Struct, frozen=True):
    """The place of a text: the text is a whole file, or a block of lines in a file."""

    source: str
    """The name of the file."""
    path: Path = ()
    """The path of the block in the file."""
    lines: int = 0
    """The number of lines above the block."""
    columns: int = 0
    """The number of columns to the left of the block."""
    quoted: bool = False
    """Whether the text is in quotes, without lines of its own in the file.

    All values of a quoted text have the same place, right after `lines` and `columns`.
    """

    def place(self, line: int, column: int, path: Path = ()) -> SourcePlace:
        """Return the place in the file of a line and column of the text, both from 1."""
        line, column = (1, 1) if self.quoted else (line, column)
        return SourcePlace(self.source, (*self.path, *path), self.lines + line, self.columns + column)


class Finding(Struct, frozen=True):
    """A mistake in a file."""

    place: SourcePlace
    """The reported place."""
    message: str
    """The mistake and, if known, the remedy, in words."""

    @property
    def path(self) -> Path:
        """The path in the spelling of the file."""
        return self.place.path


class PlacedValue(Struct):
    """A value with its place: a node of a tree of sections, lists and scalars."""

    place: SourcePlace
    """The place of a scalar, or of the key of a section or list."""
    key_place: SourcePlace
    """The place of the key, also for a scalar."""
    value: object
    """A scalar, the nodes of a section by key, or the nodes of a list in order."""

    @classmethod
    def of(cls, data: object, source: str, path: Path = ()) -> Self:
        """Make a node of plain data given by `source`, for example an option, and not by a file."""
        place = SourcePlace(source, path)
        value = data
        if isinstance(data, Mapping):
            value = {key: cls.of(member, source, (*path, key)) for key, member in data.items()}
        elif isinstance(data, (list, tuple)):
            value = [cls.of(member, source, (*path, index)) for index, member in enumerate(data)]
        return cls(place, place, value)

    @property
    def section(self) -> dict[str, "PlacedValue"] | None:
        """The nodes of a section by key; None for any other value."""
        return self.value if isinstance(self.value, dict) else None

    @property
    def items(self) -> list["PlacedValue"] | None:
        """The nodes of a list in order; None for any other value."""
        return self.value if isinstance(self.value, list) else None

    @property
    def text(self) -> str:
        """The value if it is text; empty for any other value."""
        return self.value if isinstance(self.value, str) else ""

    def plain(self) -> object:
        """Return the value without places."""
        if self.section is not None:
            return {key: member.plain() for key, member in self.section.items()}
        if self.items is not None:
            return [member.plain() for member in self.items]
        return self.value

    def child(self, key: str | int) -> "PlacedValue | None":
        """Return the node at `key` of a section or list; None for a missing key."""
        if self.section is not None and isinstance(key, str):
            return self.section.get(key)
        if self.items is not None and isinstance(key, int) and 0 <= key < len(self.items):
            return self.items[key]
        return None

    def along(self, path: Path) -> list["PlacedValue"]:
        """Return this node and the nodes below along `path`, up to the first missing key."""
        nodes = [self]
        for key in path:
            node = nodes[-1].child(key)
            if node is None:
                break
            nodes.append(node)
        return nodes

    def at(self, *path: str | EllipsisType) -> list["PlacedValue"]:
        """Return the nodes at `path`, empty if none exist; `...` in `path` means every entry of a list."""
        nodes = [self]
        for key in path:
            if isinstance(key, str):
                nodes = [inner for node in nodes if (inner := node.child(key)) is not None]
            else:
                nodes = [item for node in nodes for item in node.items or ()]
        return nodes


class SettingPlaces(Struct, frozen=True):
    """Finds the place of a setting: a place in the file, or the option that gives the value."""

    root: PlacedValue
    """All values of the config."""

    def place(self, path: Path) -> SourcePlace:
        """Return the place of the setting at `path` of the config.

        For a missing setting, the result has the place of the nearest section around the setting.
        """
        nodes = self.root.along(path)
        found = nodes[-1].place
        return SourcePlace(found.source, (*found.path, *path[len(nodes) - 1 :]), found.line, found.column)

    def describe(self, path: Path) -> str:
        """Spell the place of the setting at `path`: `gpushare.yaml:7:11: sharing.memory.resources[0].unit`."""
        return str(self.place(path))

    def placed(self, problems: Iterable[Problem | Finding]) -> list[Finding]:
        """Return each problem once, with its place, in the order of the file."""
        placed = {
            problem if isinstance(problem, Finding) else Finding(self.place(problem.path), problem.message)
            for problem in problems
        }
        return sorted(placed, key=lambda each: (each.place.order, str(each.place), each.message))

    def lines(self, problems: Iterable[Problem | Finding]) -> list[str]:
        """Spell each problem once, the place before the message, in the order of the file."""
        return [f"{each.place}: {each.message}" for each in self.placed(problems)]
