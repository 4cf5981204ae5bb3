"""The intended config of a text with damaged indentation, worked out from the keys alone."""

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import yaml

from gpushare_plugin.base.errors import Path
from gpushare_plugin.config.schema.fields import keys, sections

_LINE = re.compile(
    r"[ \t]*(?P<dash>(?:-[ \t]+)*)(?P<key>[A-Za-z]\w*)[ \t]*:(?:[ \t]+(?P<value>[^#\s].*?))?(?:[ \t]+#.*)?[ \t]*",
    re.ASCII,
)
_OTHER_KEY = re.compile(r"[^#]*:(?:\s|$)")
"""A line with a key in a form unknown to `_LINE`, for example `{name: a}`; comments and plain values do not match."""

_VALUE = re.compile(r"""["']?([\w./:-]{1,80})["']?""", re.ASCII)
_LONGEST_LINE = 200
_MOST_KEYS = 30
_MOST_LINES = 10 * _MOST_KEYS
"""Together with `_LONGEST_LINE` and `_MOST_KEYS` the limits of a text: a longer skeleton would help nobody."""

_NOT_GIVEN = "…"


class _Written(NamedTuple):
    """A key in the text."""

    key: str
    """The key."""
    dash: bool
    """Whether a dash, of an entry of a list, is before the key."""
    value: str | None
    """The value after the key on the same line; None without a value."""


def advice(text: str) -> str | None:
    """Return a sentence with the skeleton of `text`; None for a text without a skeleton."""
    meant = skeleton(text)
    return meant and f"If the indentation was lost, this config was meant (its values were not checked): {meant}"


def skeleton(text: str) -> str | None:
    """Return the keys of `text` at their places in the schema, as a config on one line.

    Returns None if the keys are not the keys of a config: the first key is not `version`, or a key belongs to no
    section together with the keys beside it. Returns None, too, if a key would be lost: the line of the key cannot be
    read, or the key repeats and no dash before it begins another entry of a list. The value `…` means a missing value,
    or a value that is not plain.
    """
    written = _written(text)
    if not written or written[0].key != "version" or len(written) > _MOST_KEYS:
        return None
    whole: dict[str, Any] = {"version": _value(written[0].value)}
    rest: Sequence[_Written] = written[1:]
    home: Path = ()
    named: set[Path] = set()
    while rest:
        group, found = _first_group(rest, home)
        if found is None or not (_name(named, found, rest[:group]) and _put(whole, found, rest[:group])):
            return None
        home = found
        rest = rest[group:]
    return yaml.safe_dump(whole, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6).strip()


def _written(text: str) -> list[_Written]:
    """Return the keys in `text`; none if a key cannot be read, or the text is too long."""
    lines = text.splitlines()
    if len(lines) > _MOST_LINES or any(len(line) > _LONGEST_LINE for line in lines):
        return []
    matches = [(line, _LINE.fullmatch(line)) for line in lines]
    if any(match is None and _OTHER_KEY.match(line) for line, match in matches):
        return []
    return [_Written(match["key"], bool(match["dash"]), match["value"]) for _, match in matches if match]


def _first_group(written: Sequence[_Written], before: Path) -> tuple[int, Path | None]:
    """Return how many of the first keys belong to one section, and the path of the section.

    A key belongs to a section as a key in the section, or as the name of a section around. Between sections with equal
    numbers of keys, the number of keys that name sections around decides, then the nearness to the section `before`,
    then the order of the schema. A single key that names no section around decides nothing: the path is None.
    """
    homes = dict(sections())
    best: tuple[int, int, int] = (1, 0, len(before))
    found: Path | None = None
    for path, section in homes.items():
        around = {key for key in path if isinstance(key, str)}
        inside = {key for key in keys(section) if not homes.keys() & {(*path, key), (*path, key, 0)}}
        group = list(takewhile(around.union(inside).__contains__, (each.key for each in written)))
        rank = len(group), len(around.intersection(group)), _in_common(path, before)
        if not around.issuperset(group) and rank > best:
            best, found = rank, path
    return best[0], found


def _in_common(one: Path, other: Path) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _name(named: set[Path], home: Path, written: Sequence[_Written]) -> bool:
    """Note the sections around `home` named by keys; return False for a section named twice, or a key with a value."""
    for each in written:
        if each.key in home:
            section = home[: home.index(each.key) + 1]
            if each.value is not None or section in named:
                return False
            named.add(section)
    return True


def _put(whole: dict[str, Any], home: Path, written: Sequence[_Written]) -> bool:
    """Put the keys into the section at `home`, without the names of sections around.

    In a list, the section is the last entry, and a dash begins another entry. Returns False if a key repeats in one
    section.
    """
    section: Any = whole
    entries: list[dict[str, Any]] | None = None
    for key, after in zip(home, (*home[1:], None), strict=True):
        if isinstance(key, str):
            section = section.setdefault(key, [{}] if isinstance(after, int) else {})
            entries = None
        else:
            entries = section
            section = section[-1]
    for key, dash, value in written:
        if key in home:
            continue
        if dash and section and entries is not None:
            section = {}
            entries.append(section)
        if key in section:
            return False
        section[key] = _value(value)
    return True


def _value(written: str | None) -> str | int:
    match = _VALUE.fullmatch(written or "")
    if match is None:
        return _NOT_GIVEN
    if match[1] in {"true", "false"}:
        return match[1] == "true"
    return int(match[1]) if match[1].isdecimal() else match[1]
