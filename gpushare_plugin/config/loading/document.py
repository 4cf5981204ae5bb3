"""The config file as text: YAML or JSON to values with places, and everything that can be wrong with the text."""

import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import yaml

from gpushare_plugin.config.loading.content import LARGEST_FILE, read_content
from gpushare_plugin.config.places import Finding, Node, Place
from gpushare_plugin.config.spelling import shown
from gpushare_plugin.foundation.errors import MOST_PROBLEMS, ConfigError, Path

SMALLEST = 'the smallest file has the one line "version: v1"'

MOST_VALUES = 10_000
MOST_LEVELS = 32
"""Limits on what a file can make of itself with aliases and nesting; settings need six levels."""


def read(file: FilePath, smallest: str = SMALLEST) -> tuple[Node | None, list[Finding]]:
    """Read the settings in `file`; `smallest` tells who gives an empty one what is expected.

    Returns None for a text that is no settings file at all. Raises ConfigError when the file cannot be read.
    """
    try:
        content = read_content(file)
    except OSError as error:
        raise ConfigError([f"{file}: {_unreadable(error)}"]) from error
    except ValueError as error:  # a NUL in the name
        raise ConfigError(
            [f"{shown(str(file))}: no file can have this name; give the path of the config file"]
        ) from error
    if len(content) > LARGEST_FILE:
        return None, [Finding(Place(str(file)), f"larger than {LARGEST_FILE:,} bytes; is this the config file?")]
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _at(content[: error.start].decode("utf-8", "replace"), str(file))
        return None, [Finding(place, f"found the byte 0x{content[error.start]:02x}; save the file as UTF-8 text")]
    return parse(text, str(file), smallest)


def parse(text: str, source: str, smallest: str = SMALLEST) -> tuple[Node | None, list[Finding]]:
    """Return the settings in `text`, YAML or JSON, and what is wrong with it as a text; never raises.

    `source` is the file's name, for the places. Nothing is returned but problems if the text cannot be understood.
    """
    builder = _Builder(source, smallest)
    try:
        root = builder.build(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except _NoSettingsError as error:
        return None, [*builder.findings, error.finding]
    except yaml.YAMLError as error:
        return None, [*builder.findings, _syntax(error, text, source)]
    return root, builder.findings


def write(data: object) -> str:
    """Spell plain data as YAML that `parse` reads back to the same."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False)


class _NoSettingsError(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__()
        self.finding = finding


class _Builder:
    """Builds nodes from parser events, so that depth and size are known before they can do harm."""

    def __init__(self, source: str, smallest: str) -> None:
        self._smallest = smallest
        self.findings: list[Finding] = []
        self._source = source
        self._anchors: dict[str, Node | None] = {}
        self._values = 0
        self._events: Iterator[Any] = iter(())

    def build(self, events: Iterator[Any]) -> Node:
        self._events = events
        next(events)  # the stream begins
        start = next(events)
        empty = Finding(Place(self._source, (), 1, 1), f"the file is empty; {self._smallest}")
        if isinstance(start, yaml.StreamEndEvent):
            raise _NoSettingsError(empty)
        root = self._node(next(events), ())
        next(events)  # the document ends
        if isinstance(after := next(events), yaml.DocumentStartEvent):
            raise self._stop(after, "a second document begins here; a config file holds one")
        if root.value is None:
            raise _NoSettingsError(empty)
        if root.section is None:
            raise self._stop(start, f'found {shown(root.plain())}; allowed: "version: v1" and other keys, one a line')
        return root

    def _node(self, event: Any, path: Path, key: Any = None) -> Node:
        """Build the node that `event` begins; `key` is the event of its key."""
        if len(path) > MOST_LEVELS:
            raise self._stop(event, f"nested more than {MOST_LEVELS} levels deep; settings need six")
        self._count(event)
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event, path, key)
        place = self._place(event, path)
        key_place = self._place(key, path) if key else place
        node = Node(place, key_place, None)
        if event.anchor:
            self._anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node.value = self._scalar(event, place)
            if node.value is None:  # the mark of nothing may be lines further down
                node.place = key_place
        else:
            self._plain_tag(event, place)
            node.place = key_place
            node.value = self._section(path) if isinstance(event, yaml.MappingStartEvent) else self._list(path)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _section(self, path: Path) -> dict[str, Node]:
        members: dict[str, Node] = {}
        merged: list[Node] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, path)
            text = key.value if isinstance(key.value, str) else None
            value = self._node(next(self._events), (*path, text or "?"), event)
            if text is None:
                self._find(Finding(key.place, f"found {shown(key.plain())} as a key; allowed: plain text"))
            elif text == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                merged += self._mergeable(value)
            elif text in members:
                first = members[text].key_place.line
                message = f'"{text}" stands here for the second time, the first is on line {first}; remove one'
                self._find(Finding(value.key_place, message))
            else:
                members[text] = value
        for source in merged:
            for name, member in (source.section or {}).items():
                if name not in members:
                    members[name] = self._copy(member, (*path, name))
        return members

    def _find(self, finding: Finding) -> None:
        if len(self.findings) >= MOST_PROBLEMS:
            raise _NoSettingsError(finding)
        self.findings.append(finding)

    def _key(self, event: Any, path: Path) -> Node:
        if isinstance(event, yaml.ScalarEvent):
            # `on: 1` and `5: 1` have the keys "on" and "5": what a key resolves to is of no interest.
            self._count(event)
            place = self._place(event, (*path, event.value))
            node = Node(place, place, event.value)
            if event.anchor:
                self._anchors[event.anchor] = node
            return node
        return self._node(event, (*path, "?"))

    def _mergeable(self, value: Node) -> list[Node]:
        sources = value.items if value.items is not None else [value]
        if any(source.section is None for source in sources):
            self._find(Finding(value.place, '"<<" takes a section, or a list of sections, to merge'))
            return []
        return sources

    def _list(self, path: Path) -> list[Node]:
        items: list[Node] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, (*path, len(items))))
        return items

    def _aliased(self, event: Any, path: Path, key: Any) -> Node:
        anchored = self._anchors.get(event.anchor)
        if anchored is None:
            fault = "stands inside what it names" if event.anchor in self._anchors else "names no anchor above"
            raise self._stop(event, f"the alias *{event.anchor} {fault}")
        copy = self._copy(anchored, path)
        copy.place = self._place(event, path)
        copy.key_place = self._place(key, path) if key else copy.place
        return copy

    def _copy(self, node: Node, path: Path) -> Node:
        """Copy `node` to another path; places in the file stay where the text is."""
        self._count_copy(node.place)
        if len(path) > MOST_LEVELS:
            raise _NoSettingsError(Finding(node.place, f"aliases nest more than {MOST_LEVELS} levels deep"))
        place = Place(node.place.source, path, node.place.line, node.place.column)
        key_place = Place(node.key_place.source, path, node.key_place.line, node.key_place.column)
        value = node.value
        if node.section is not None:
            value = {key: self._copy(member, (*path, key)) for key, member in node.section.items()}
        elif node.items is not None:
            value = [self._copy(member, (*path, index)) for index, member in enumerate(node.items)]
        return Node(place, key_place, value)

    def _scalar(self, event: Any, place: Place) -> object:
        if event.tag in {None, "!"}:
            return _resolved(event.value) if event.implicit[0] else event.value
        kind = _KINDS.get(event.tag)
        value = event.value if kind is str else _resolved(event.value)
        if kind is None or not isinstance(value, kind):
            self._find(Finding(place, f"found {shown(event.value)} tagged {shown(event.tag)}; remove the tag"))
        return value

    def _plain_tag(self, event: Any, place: Place) -> None:
        if event.tag not in {None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}:
            self._find(Finding(place, f"found the tag {shown(event.tag)}; remove the tag"))

    def _count(self, event: Any) -> None:
        self._count_copy(self._place(event, ()))

    def _count_copy(self, place: Place) -> None:
        self._values += 1
        if self._values > MOST_VALUES:
            raise _NoSettingsError(Finding(place, f"more than {MOST_VALUES:,} values, aliases written out"))

    def _place(self, event: Any, path: Path) -> Place:
        return Place(self._source, path, event.start_mark.line + 1, event.start_mark.column + 1)

    def _stop(self, event: Any, message: str) -> _NoSettingsError:
        return _NoSettingsError(Finding(self._place(event, ()), message))


# ---------------------------------------------------------------------- plain scalars

_KINDS: dict[str, type | tuple[type, ...]] = {
    "tag:yaml.org,2002:str": str,
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:bool": bool,
    "tag:yaml.org,2002:float": (float, int),
    "tag:yaml.org,2002:null": type(None),
}
_WORDS: dict[str, object] = {
    spelling: value
    for word, value in (("true", True), ("yes", True), ("on", True), ("false", False), ("no", False), ("off", False))
    for spelling in (word, word.capitalize(), word.upper())
} | dict.fromkeys(("", "~", "null", "Null", "NULL"))
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,30})", re.ASCII)
_OTHER_BASE = re.compile(r"[-+]?0(x[0-9a-fA-F]{1,30}|o?[0-7]{1,30}|b[01]{1,60})", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,30}|[0-9]{1,30}(\.[0-9]{0,30})?)([eE][-+]?[0-9]{1,3})?", re.ASCII)


def _resolved(text: str) -> object:
    """Give the value of unquoted text, as the YAML reader of Kubernetes does.

    That reader knows no sixties numbers: `1:0`, a MIG index, is text and not 60.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        octal = re.sub(r"^([-+]?)0(?=[0-7])", r"\g<1>0o", text)
        return int(octal, 0)
    return float(text) if _FLOAT.fullmatch(text) else text


class _Dumper(yaml.SafeDumper):
    """Quotes every text that would be read back as something else."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None if isinstance(_resolved(text), str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)


# ---------------------------------------------------------------------- what is wrong, in plain words


def _unreadable(error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return "there is no such file; check the path"
        case IsADirectoryError():
            return "this is a directory; give the path of the file in it"
        case PermissionError():
            return "no permission to read this file; make it readable for the user the daemon runs as"
        case _:
            return f"cannot be read: {error.strerror or error}"


def _syntax(error: yaml.YAMLError, text: str, source: str) -> Finding:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return _unprintable(error, text, source)
    lines = text.splitlines() or [""]
    line = min(mark.line, len(lines) - 1)
    place = Place(source, (), line + 1, mark.column + 1 if line == mark.line else len(lines[line]) + 1)
    return Finding(place, _advice(error, lines[line], mark.column))


def _advice(error: yaml.YAMLError, line: str, column: int) -> str:
    indentation = line[: len(line) - len(line.lstrip())]
    if "\t" in indentation or line[column : column + 1] == "\t":
        return "found a tab; indent with spaces"
    problem, context = str(getattr(error, "problem", "")), str(getattr(error, "context", ""))
    opened = getattr(error, "context_mark", None)
    begun = f"on line {opened.line + 1}" if opened else "above"
    for phrase, advice in _ADVICE.items():
        if phrase in f"{context}: {problem}":
            return advice.format(begun=begun)
    return "this is not YAML; check the line and the one above"


_ADVICE = {
    "quoted scalar: found unexpected": "text in quotes that began {begun} does not end",
    "quoted scalar": "a backslash that YAML cannot interpret; put the text in single quotes",
    "flow sequence": 'the list that "[" opens {begun} is not closed or lacks a comma',
    "flow mapping": 'the section that "{{" opens {begun} is not closed or lacks a comma',
    "mapping values are not allowed": (
        'found ":" where no value can begin; check the indentation, or put text that holds ": " in quotes'
    ),
    "could not find expected ':'": 'a key without ":" after it; write "key: value"',
    "block collection": 'the indentation does not fit the list begun {begun}; each entry has its "-" below the last',
    "block sequence": "an entry of a list stands where none can; check the indentation",
    "block mapping": "the indentation does not fit the section begun {begun}; its keys stand below each other",
    "cannot start any token": "found a character that begins no value; put the text in quotes",
}


def _unprintable(error: yaml.YAMLError, text: str, source: str) -> Finding:
    offset, character = getattr(error, "position", 0), getattr(error, "character", None)
    place = _at(text.encode()[:offset].decode("utf-8", "replace"), source)
    name = f"the character U+{character:04X}" if isinstance(character, int) and character >= 0 else "a character"
    return Finding(place, f"found {name}, which text cannot hold; remove it")


def _at(before: str, source: str) -> Place:
    """Return the place right after the text `before`."""
    return Place(source, (), before.count("\n") + 1, len(before) - before.rfind("\n"))
