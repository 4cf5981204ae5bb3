"""The difference between two configs, setting by setting."""

import json
from collections.abc import Iterator
from itertools import zip_longest

from gpushare_plugin.base.errors import Path
from gpushare_plugin.config.schema.places import spelled
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.config.schema.spelling import shown


def difference(old: Config, new: Config) -> list[str]:
    """Spell every setting that differs in `new`, for example `sharing.memory.resources[0].unit: GiB -> 2GiB`.

    Entries of lists are compared by index. Whole entries and sections are `added` or `removed`. The list is empty only
    for equal configs.
    """
    return list(_changes(_plain(old), _plain(new), ()))


def _plain(config: Config) -> object:
    return config.model_dump(mode="json", by_alias=True)


def _changes(old: object, new: object, path: Path) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            yield from _changes(old[key], new[key], (*path, key))
    elif isinstance(old, list) and isinstance(new, list) and _has_sections([*old, *new]):
        for index, (before, after) in enumerate(zip_longest(old, new)):
            yield from _changes(before, after, (*path, index))
    elif old != new:
        yield f"{spelled(path)}: {_change(old, new)}"


def _change(old: object, new: object) -> str:
    if isinstance(new, dict):
        return "added"
    if isinstance(old, dict):
        return "removed"
    return f"{_value(old)} -> {_value(new)}"


def _has_sections(entries: list[object]) -> bool:
    return any(isinstance(entry, dict) for entry in entries)


def _value(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    # Text that could be read as another value, or as several lines, is quoted.
    return value if value.isprintable() and value and " " not in value else shown(value)
