"""The isolations of an entry as the config names them: one, or several in the order of preference."""

from collections.abc import Iterable
from typing import Literal, TypeVar

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

    Raises ValueError for other values, for a name given twice, and for a name that no node would come to.
    """
    if isinstance(value, str) and len(meant := value.replace(",", " ").split()) > 1 and set(meant).issubset(names):
        allowed = isolation_allowed(names)
        raise ValueError(f'found "{value}"; did you mean the list [{", ".join(meant)}]? Allowed: {allowed}')
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)) or not given:
        raise ValueError(wrong(value, isolation_allowed(names)))
    found = tuple(_known(each, names) for each in given)
    for place, name in enumerate(found):
        if name in found[:place]:
            raise ValueError(f'found "{name}" twice; an isolation is listed once')
        if name in _ON_EVERY_NODE and place + 1 < len(found):
            after = found[place + 1]
            raise ValueError(
                f'found "{after}" after "{name}", which every node counts as having, so that "{after}" is never '
                f'chosen; put "{name}" at the end'
            )
    return found


def _known(value: object, names: tuple[_Name, ...]) -> _Name:
    for name in names:
        if value == name:
            return name
    if isinstance(value, str) and value in _BY_MPS:
        raise ValueError(f'found "{value}", which is not time slicing: use sharing.mps; allowed: {", ".join(names)}')
    raise ValueError(wrong(value, isolation_allowed(names), nearest(value, names) if isinstance(value, str) else None))


def plain_isolation(isolation: tuple[str, ...]) -> str | list[str]:
    """Return the names in the spelling of the file."""
    return isolation[0] if len(isolation) == 1 else list(isolation)


def includes_driver(isolation: Iterable[str]) -> bool:
    """Return whether the driver limits memory with one of these isolations."""
    return not _BY_DRIVER.isdisjoint(isolation)


def is_always_driver(isolation: Iterable[str]) -> bool:
    """Return whether the driver limits memory with each of these isolations."""
    return _BY_DRIVER.issuperset(isolation)


def limits_compute(isolation: Iterable[str]) -> bool:
    """Return whether one of these isolations limits compute."""
    return not _LIMITING_COMPUTE.isdisjoint(isolation)


def is_always_mps(isolation: Iterable[str]) -> bool:
    """Return whether each of these isolations needs MPS."""
    return _BY_MPS.issuperset(isolation)
