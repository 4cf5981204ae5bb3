"""What a validation error means in our own words: what was found, what is allowed, what is nearest."""

from collections.abc import Mapping
from functools import cache

from pydantic_core import ErrorDetails

from gpushare_plugin.config.places import spelled
from gpushare_plugin.config.schema.fields import Kind, keys, kind_at, sections
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.config.spelling import nearest, shown, wrong
from gpushare_plugin.foundation.errors import Path


def message(error: ErrorDetails) -> str:
    """Say what is wrong at `error["loc"]`, a path of the config."""
    path = error["loc"]
    match error["type"]:
        case "value_error":
            return str(error["ctx"]["error"])
        case "extra_forbidden":
            return _unknown_key(path)
        case "missing":
            return f"missing; allowed: {_kind(path).allowed}"
        case _:
            return _wrong_value(error["input"], _kind(path))


def meant_key(path: Path) -> str | None:
    """Return the right key nearest to the unknown one that ends `path`, None if that is right in another section."""
    return None if _homes(path) else nearest(str(path[-1]), _keys_beside(path))


def _unknown_key(path: Path) -> str:
    text = f"unknown key {shown(path[-1])}"
    if homes := _homes(path):
        text += f"; it belongs in {' or '.join(homes)}."
    elif meant := meant_key(path):
        text += f'; did you mean "{meant}"?'
    else:
        text += "."
    return f"{text} Allowed here: {', '.join(_keys_beside(path))}"


def _homes(path: Path) -> list[str]:
    """Return the sections that do have the key which ends `path`."""
    return _sections_by_key().get(str(path[-1]), [])


@cache
def _sections_by_key() -> Mapping[str, list[str]]:
    """Return the sections that have a key: the schema is gone through once, not for each mistake."""
    homes: dict[str, list[str]] = {}
    for home, section in sections():
        for key in keys(section):
            homes.setdefault(key, []).append(spelled(home).replace("[0]", "[]") or "the top level")
    return homes


def _keys_beside(path: Path) -> list[str]:
    return list(keys(_kind(path[:-1]).section or Config))


def _wrong_value(found: object, kind: Kind) -> str:
    if isinstance(found, str) and kind.bare in {bool, int, float}:
        return wrong(found, f"{kind.allowed}, without quotes")
    return wrong(found, kind.allowed, nearest(found, kind.words) if isinstance(found, str) else None)


def _kind(path: Path) -> Kind:
    """Return what stands at `path`, or around it where a validator reports from within a value."""
    return kind_at(path) or _kind(path[:-1])
