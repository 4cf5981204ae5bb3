"""Messages for validation errors: the found value, the allowed values, and the nearest correct value."""

from collections.abc import Mapping
from functools import cache

from pydantic_core import ErrorDetails

from gpushare_plugin.base.errors import Path
from gpushare_plugin.config.schema.fields import Kind, keys, kind_at, sections
from gpushare_plugin.config.schema.places import spelled
from gpushare_plugin.config.schema.sections import Section
from gpushare_plugin.config.schema.spelling import nearest, shown, wrong


def wrong_value(error: ErrorDetails) -> str:
    """Return a message for the wrong value at `error["loc"]`, a path of the config."""
    match error["type"]:
        case "value_error":
            return str(error["ctx"]["error"])
        case "missing":
            return f"missing; allowed: {_kind(error['loc']).allowed}"
    found, kind = error["input"], _kind(error["loc"])
    if isinstance(found, str) and (kind.bare in {bool, int, float} or found in _numbers(kind)):
        return wrong(found, f"{kind.allowed}, without quotes")
    return wrong(found, kind.allowed, nearest(found, map(str, kind.words)) if isinstance(found, str) else None)


def _numbers(kind: Kind) -> set[str]:
    """Return the spelling of the numbers among the allowed words, which are numbers only without quotes."""
    return {str(word) for word in kind.words if isinstance(word, int)}


def unknown_key(key: str, section: type[Section], value: object) -> str:
    """Return a message for an unknown key of a section, with the section that has the key, or the nearest key."""
    text = f"unknown key {shown(key)}"
    if key == "memoryGB":
        size = value if type(value) is int else 2
        text += f", of nebuly's plugin; use sharing.mps.sizes, such as slices: [{{size: {size}gb, count: 2}}]."
    elif homes := sections_with(key):
        text += f"; it belongs in {' or '.join(homes)}."
    elif meant := meant_key(key, section):
        text += f'; did you mean "{meant}"?'
    else:
        text += "."
    return f"{text} Allowed here: {', '.join(keys(section))}"


def meant_key(key: str, section: type[Section]) -> str | None:
    """Return the key of `section` nearest to the unknown `key`; None if another section has `key`."""
    return None if key in _sections_by_key() else nearest(key, keys(section))


def sections_with(key: str) -> list[str]:
    """Return the sections of a config with the key `key`."""
    return _sections_by_key().get(key, [])


@cache
def _sections_by_key() -> Mapping[str, list[str]]:
    """Return the sections by key: the schema is gone through once, not for each mistake."""
    homes: dict[str, list[str]] = {}
    for home, section in sections():
        for key in keys(section):
            homes.setdefault(key, []).append(spelled(home).replace("[0]", "[]") or "the top level")
    return homes


def _kind(path: Path) -> Kind:
    """Return the kind of the setting at `path`, or around `path` if a validator reports a place within a value."""
    return kind_at(path) or _kind(path[:-1])
