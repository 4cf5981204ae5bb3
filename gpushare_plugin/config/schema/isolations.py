"""The isolations of an entry as the config names them: one, or several in the order of preference."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, TypeVar

from pydantic import ValidationError
from pydantic_core import InitErrorDetails

from gpushare_plugin.base.errors import MOST_PROBLEMS
from gpushare_plugin.config.schema.spelling import nearest, wrong
from gpushare_plugin.config.schema.values import JsonSchema

IsolationName = Literal["none", "mps", "hami-core", "driver", "driver+mps"]
"""The name of an isolation."""
TimeSlicedIsolationName = Literal["none", "hami-core", "driver"]
"""The name of an isolation of replicas that take turns."""
MpsIsolationName = Literal["mps", "driver", "driver+mps"]
"""The name of an isolation of entries under MPS, where `driver` means the same as `driver+mps`."""

_BY_DRIVER = frozenset({"driver", "driver+mps"})
_BY_MPS = frozenset({"mps", "driver+mps"})
_LIMITING_COMPUTE = _BY_MPS | {"hami-core"}
_ON_EVERY_NODE = frozenset({"none", "hami-core"})
"""What counts as present on every node; the daemon cannot see whether the library of HAMi-core is on the node."""

_SIMILAR = 0.65
"""From which similarity on a wrong name is taken for one of the names, which are short: `msp` is `mps`."""

_Name = TypeVar("_Name", bound=str)


def isolation_allowed(names: Iterable[str]) -> str:
    """Return the allowed values in words, for these names."""
    return f"{', '.join(names)}, or a list of them in order"


def isolation_schema(names: Iterable[str]) -> JsonSchema:
    """Return the allowed values in JSON Schema, for these names."""
    one: JsonSchema = {"enum": [*names]}
    return {"anyOf": [one, {"type": "array", "minItems": 1, "uniqueItems": True, "items": one}]}


def parse_isolation(value: object, names: tuple[_Name, ...]) -> tuple[_Name, ...]:
    """Read one of `names`, or a list of them.

    Raises ValueError for other values, and pydantic's ValidationError with an error for each wrong item of a list: also
    for a name given twice, and for a name that no node would come to.
    """
    if isinstance(value, str):
        return (_one(value, names),)
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(wrong(value, isolation_allowed(names)))
    if mistakes := [*islice(_wrong_items(value, names), MOST_PROBLEMS + 1)]:
        raise ValidationError.from_exception_data("isolation", mistakes)
    return tuple(name for item in value for name in names if item == name)


def _one(value: str, names: tuple[_Name, ...]) -> _Name:
    allowed = isolation_allowed(names)
    if len(meant := value.replace(",", " ").split()) > 1 and set(meant).issubset(names):
        raise ValueError(f'found "{value}"; did you mean the list [{", ".join(meant)}]? Allowed: {allowed}')
    if message := _wrong_name(value, names, allowed):
        raise ValueError(message)
    return next(name for name in names if value == name)


def _wrong_items(items: Sequence[object], names: tuple[str, ...]) -> Iterator[InitErrorDetails]:
    for place, item in enumerate(items):
        if message := _wrong_name(item, names, ", ".join(names)) or _wrong_place(place, items):
            error = {"error": ValueError(message)}
            yield InitErrorDetails(type="value_error", loc=(place,), input=item, ctx=error)


def _wrong_name(value: object, names: tuple[str, ...], allowed: str) -> str:
    """Return a message for a value that is none of `names`; empty for one of them."""
    if value in names:
        return ""
    if isinstance(value, str) and value in _BY_MPS:
        return f'found "{value}", which is not time slicing: use sharing.mps; allowed: {", ".join(names)}'
    meant = nearest(value, names, _SIMILAR) if isinstance(value, str) else None
    return wrong(value, allowed, meant)


def _wrong_place(place: int, items: Sequence[object]) -> str:
    """Return a message for an item of a list that no node would come to; empty for any other item."""
    name, before = items[place], items[:place]
    if name in before:
        return f'found "{name}" twice; an isolation is listed once'
    if place and isinstance(last := before[-1], str) and last in _ON_EVERY_NODE:
        return (
            f'found "{name}" after "{last}", which every node counts as having, so that "{name}" is never chosen; put '
            f'"{last}" at the end'
        )
    return ""


def plain_isolation(isolation: tuple[str, ...]) -> str | list[str]:
    """Return the names in the spelling of the file."""
    return isolation[0] if len(isolation) == 1 else list(isolation)


def includes_driver(isolation: Iterable[str]) -> bool:
    """Return whether the driver limits memory with one of these isolations."""
    return not _BY_DRIVER.isdisjoint(isolation)


def without_driver(isolation: Iterable[str]) -> tuple[str, ...]:
    """Return those of the isolations with which the driver does not limit memory, in the same order."""
    return tuple(name for name in isolation if name not in _BY_DRIVER)


def includes_mps(isolation: Iterable[str]) -> bool:
    """Return whether one of these isolations needs MPS."""
    return not _BY_MPS.isdisjoint(isolation)


def is_always_driver(isolation: Iterable[str]) -> bool:
    """Return whether the driver limits memory with each of these isolations."""
    return _BY_DRIVER.issuperset(isolation)


def limits_compute(isolation: Iterable[str]) -> bool:
    """Return whether one of these isolations limits compute."""
    return not _LIMITING_COMPUTE.isdisjoint(isolation)


def is_always_mps(isolation: Iterable[str]) -> bool:
    """Return whether each of these isolations needs MPS."""
    return _BY_MPS.issuperset(isolation)
