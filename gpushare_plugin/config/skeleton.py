"""The config that a text with damaged indentation was, told from its keys alone."""

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import yaml

from gpushare_plugin.config.schema.fields import keys, sections
from gpushare_plugin.foundation.errors import Path

_LINE = re.compile(
    r"[ \t]*(?P<dash>(?:-[ \t]+)*)(?P<key>[A-Za-z]\w*)[ \t]*:(?:[ \t]+(?P<value>[^#\s].*?))?(?:[ \t]+#.*)?[ \t]*",
    re.ASCII,
)
_OTHER_KEY = re.compile(r"[^#]*:(?:\s|$)")
"""A key in a form that `_LINE` does not read, such as in `{name: a}`; comments and plain values have none."""

_VALUE = re.compile(r"""["']?([\w./:-]{1,80})["']?""", re.ASCII)
_LONGEST_LINE = 200
_MOST_KEYS = 30
_MOST_LINES = 10 * _MOST_KEYS
"""Of a longer text the skeleton would help nobody."""

_NOT_GIVEN = "…"


class _Written(NamedTuple):
    """A key, whether a dash stands before it, and the value after it, None where there is none on its line."""

    key: str
    dash: bool
    value: str | None


def advice(text: str) -> str | None:
    """Return a sentence with the skeleton of `text`, None where it has none."""
    meant = skeleton(text)
    return meant and f"If the indentation was lost, this config was meant (its values were not checked): {meant}"


def skeleton(text: str) -> str | None:
    """Return the keys of `text` in the places that they have in a config, as a config on one line.

    None where they are not those of a config: the first is not `version`, or one is nowhere beside those around it.
    None, too, where a key would be left out: it is in a line that cannot be read, or it repeats and no dash before it
    begins another entry of a list. What is missing, or not a plain value, is `…`.
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
    """Return the keys in `text`; none where not all of them can be told."""
    lines = text.splitlines()
    if len(lines) > _MOST_LINES or any(len(line) > _LONGEST_LINE for line in lines):
        return []
    matches = [(line, _LINE.fullmatch(line)) for line in lines]
    if any(match is None and _OTHER_KEY.match(line) for line, match in matches):
        return []
    return [_Written(match["key"], bool(match["dash"]), match["value"]) for _, match in matches if match]


def _first_group(written: Sequence[_Written], before: Path) -> tuple[int, Path | None]:
    """Return how many of the first keys one section has, itself or as the name of a section around it; and which.

    Of several that have as many, it is the one of which most keys name the sections around, then the one nearest to
    the section `before`, then the first. One key alone that names none tells nothing.
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
    """Note the sections around `home` that keys name; False where one is named again, or is no section."""
    for each in written:
        if each.key in home:
            section = home[: home.index(each.key) + 1]
            if each.value is not None or section in named:
                return False
            named.add(section)
    return True


def _put(whole: dict[str, Any], home: Path, written: Sequence[_Written]) -> bool:
    """Put keys, but for those that name sections around, into the section at `home`, the last entry of a list.

    A dash begins another entry. Returns False where a key repeats in one section.
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
