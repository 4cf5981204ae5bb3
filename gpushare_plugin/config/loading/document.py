"""The config file as text: from YAML or JSON to values with places, and all mistakes of the text."""

from collections.abc import Iterator
from copy import copy
from pathlib import Path as FilePath
from typing import Any

import yaml
from yaml.composer import Composer

from gpushare_plugin.base.errors import MOST_PROBLEMS, ConfigError, Path
from gpushare_plugin.config.loading.content import LARGEST_FILE, read_content
from gpushare_plugin.config.loading.scalars import KINDS, resolved
from gpushare_plugin.config.loading.syntax import TextError, place_after, syntax_problem, without_indentation
from gpushare_plugin.config.schema.places import Finding, Origin, PlacedValue, SourcePlace
from gpushare_plugin.config.schema.spelling import printable, shown

SMALLEST = 'the smallest file has the one line "version: v1"'
"""The hint for an empty config file."""

MOST_VALUES = 10_000
"""Limit on the number of values, with aliases written out."""
MOST_LEVELS = 32
"""Limit on the levels of nesting, with aliases written out; a config needs six."""

_PLAIN = "plain"
"""The tag given to unquoted scalars."""


def read(file: FilePath, smallest: str = SMALLEST) -> tuple[PlacedValue | None, list[Finding]]:
    """Return the values in `file`, and the mistakes of the text; `smallest` is the hint for an empty file.

    The values are None for a text that is not a config file. Raises ConfigError if the file cannot be read.
    """
    text = read_text(file)
    return (None, [text]) if isinstance(text, Finding) else parse(text, Origin(str(file)), smallest)


def read_text(file: FilePath) -> str | Finding:
    """Return the text in `file`, or why the content is no text; raises ConfigError if the file cannot be read."""
    try:
        content = read_content(file)
    except OSError as error:
        raise ConfigError([f"{printable(str(file))}: {_unreadable(error)}"]) from error
    except ValueError as error:  # a NUL in the name
        raise ConfigError(
            [f"{shown(str(file))}: no file can have this name; give the path of the config file"]
        ) from error
    return decoded(content, str(file))


def decoded(content: bytes, source: str) -> str | Finding:
    """Return the content of `source` as text, or why the content is no text."""
    if len(content) > LARGEST_FILE:
        return Finding(SourcePlace(source), f"larger than {LARGEST_FILE:,} bytes; is this the config file?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = place_after(content[: error.start].decode("utf-8", "replace"), Origin(source))
        return Finding(place, f"found the byte 0x{content[error.start]:02x}; save the file as UTF-8 text")


def parse(text: str, origin: Origin, smallest: str = SMALLEST) -> tuple[PlacedValue | None, list[Finding]]:
    """Return the values in `text`, YAML or JSON, and the mistakes of the text; never raises.

    `origin` is the place of the text. For a text that cannot be understood, the values are None.
    """
    tree = _Tree(origin)
    try:
        root = tree.root(_Composer(_parser(text)).get_single_node(), smallest)
    except yaml.YAMLError as error:
        return None, [*tree.findings, syntax_problem(error, text, origin)]
    if root and (meant := without_indentation(root, text)):
        return root, [meant, *tree.findings]
    return root, tree.findings


def parse_documents(text: str, source: str) -> Iterator[tuple[PlacedValue | None, list[Finding]]]:
    """Yield the values and mistakes of each document in `text`, like `parse`, up to the first syntax error."""
    parser = _parser(text)
    try:
        while (composer := _Composer(parser)).check_node():
            tree = _Tree(Origin(source))
            yield tree.root(composer.get_node(), SMALLEST), tree.findings
    except yaml.YAMLError as error:
        yield None, [syntax_problem(error, text, Origin(source))]


def _parser(text: str) -> Any:
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)


class _Composer(Composer):
    """PyYAML's composer, with limits checked before a text can do harm.

    An unquoted scalar without a tag gets the tag `_PLAIN`, and `resolved` gives its value. A quoted scalar without a
    tag gets no tag.
    """

    def __init__(self, parser: Any) -> None:
        super().__init__()
        self.check_event, self.peek_event, self.get_event = parser.check_event, parser.peek_event, parser.get_event
        self._nodes = 0
        self._levels = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        self._nodes += 1
        if self._nodes > MOST_VALUES:
            raise _too_many(event.start_mark)
        if self._levels > MOST_LEVELS:
            raise TextError(f"nested more than {MOST_LEVELS} levels deep; a config needs six", event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(self.get_event())
        self.anchors.pop(event.anchor, None)  # an anchor may be given again
        self._levels += 1
        node = super().compose_node(parent, index)
        self._levels -= 1
        return node

    def _aliased(self, event: Any) -> yaml.Node:
        anchored = self.anchors.get(event.anchor)
        if anchored is None:
            raise TextError(f"the alias *{event.anchor} names no anchor above", event.start_mark)
        if anchored.end_mark is None:
            raise TextError(f"the alias *{event.anchor} refers to itself", event.start_mark)
        node = copy(anchored)
        node.start_mark = event.start_mark
        return node

    def resolve(self, kind: type[yaml.Node], _value: Any, implicit: Any) -> str | None:
        return _PLAIN if kind is yaml.ScalarNode and implicit[0] else None

    def descend_resolver(self, current: Any, index: Any) -> None:
        """Prepare nothing: the meaning of a scalar does not depend on its place."""

    def ascend_resolver(self) -> None:
        """Prepare nothing, like `descend_resolver`."""


class _Tree:
    """Gives composed nodes their paths and places, with aliases and merges written out."""

    def __init__(self, origin: Origin) -> None:
        self.findings: list[Finding] = []
        self._origin = origin
        self._values = 0
        self._found: set[tuple[int, int]] = set()

    def root(self, composed: yaml.Node | None, smallest: str) -> PlacedValue | None:
        """Return the whole document; None, with a finding, for an empty document or anything but a section."""
        root = None if composed is None else self._node(composed, ())
        if root is None or root.value is None:
            self.findings.append(Finding(self._origin.place(1, 1), f"the file is empty; {smallest}"))
            return None
        if root.section is None:
            allowed = f'found {shown(root.plain())}; allowed: "version: v1" and other keys, one a line'
            self.findings.append(Finding(root.place, allowed))
            return None
        return root

    def _node(self, composed: yaml.Node, path: Path, key: yaml.Node | None = None) -> PlacedValue:
        self._count(composed, len(path))
        place = self._place(composed, path)
        key_place = self._place(key, path) if key else place
        match composed:
            case yaml.ScalarNode():
                value = self._scalar(composed, path)
                # The mark of an empty value may be lines further down.
                return PlacedValue(key_place if value is None else place, key_place, value)
            case yaml.SequenceNode():
                self._check_tag(composed, path)
                items = [self._node(item, (*path, index)) for index, item in enumerate(composed.value)]
                return PlacedValue(key_place, key_place, items)
            case _:
                self._check_tag(composed, path)
                return PlacedValue(key_place, key_place, self._section(composed, path))

    def _count(self, composed: yaml.Node, levels: int) -> None:
        self._values += 1
        if self._values > MOST_VALUES:
            raise _too_many(composed.start_mark)
        if levels > MOST_LEVELS:
            raise TextError(f"aliases nest more than {MOST_LEVELS} levels deep", composed.start_mark)

    def _section(self, composed: yaml.Node, path: Path, merges: int = 0) -> dict[str, PlacedValue]:
        members: dict[str, PlacedValue] = {}
        merged: list[yaml.Node] = []
        for key, value in composed.value:
            if not isinstance(key, yaml.ScalarNode):
                found = shown(key.value if isinstance(key, yaml.SequenceNode) else {})
                self._find(key, (*path, "?"), f"found {found} as a key; allowed: plain text")
            # `on: 1` and `5: 1` have the keys "on" and "5": keys are text and are not resolved to values.
            elif key.value == "<<" and key.tag == _PLAIN:
                merged += self._mergeable(value, path)
            elif key.value in members:
                first = members[key.value].key_place.line
                message = f'"{key.value}" is given twice, first on line {first}; remove one'
                self._find(key, (*path, key.value), message)
            else:
                members[key.value] = self._node(value, (*path, key.value), key)
        for source in merged:
            self._count(source, merges)
            members = self._section(source, path, merges + 1) | members
        return members

    def _mergeable(self, value: yaml.Node, path: Path) -> list[yaml.Node]:
        sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if all(isinstance(source, yaml.MappingNode) for source in sources):
            return sources
        self._find(value, (*path, "<<"), '"<<" takes a section, or a list of sections, to merge')
        return []

    def _scalar(self, composed: yaml.Node, path: Path) -> object:
        if composed.tag in {None, _PLAIN}:
            return resolved(composed.value) if composed.tag else composed.value
        kind = KINDS.get(composed.tag)
        value = composed.value if kind is str else resolved(composed.value)
        if kind is None or not isinstance(value, kind):
            self._find(composed, path, f"found {shown(composed.value)} tagged {shown(composed.tag)}; remove the tag")
        return value

    def _check_tag(self, composed: yaml.Node, path: Path) -> None:
        if composed.tag not in {None, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}:
            self._find(composed, path, f"found the tag {shown(composed.tag)}; remove the tag")

    def _find(self, composed: yaml.Node, path: Path, message: str) -> None:
        place = self._place(composed, path)
        if (place.line, place.column) in self._found:  # an alias leads to the same text again
            return
        if len(self.findings) >= MOST_PROBLEMS:
            raise TextError(message, composed.start_mark)
        self._found.add((place.line, place.column))
        self.findings.append(Finding(place, message))

    def _place(self, composed: yaml.Node, path: Path) -> SourcePlace:
        return self._origin.place(composed.start_mark.line + 1, composed.start_mark.column + 1, path)


def _too_many(mark: yaml.Mark) -> TextError:
    return TextError(f"more than {MOST_VALUES:,} values after its aliases are expanded", mark)


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
