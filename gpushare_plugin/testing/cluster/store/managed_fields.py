"""Who manages which field, as server-side apply keeps it: of labels, annotations, data and capacity alone."""

from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]
Field = tuple[str, ...]
Manager = tuple[str, str, str]
"""Name, operation (`Apply` or `Update`) and subresource."""
Managers = dict[Manager, set[Field]]

_METADATA = (("metadata", "labels"), ("metadata", "annotations"))
_MANAGED = {"": (*_METADATA, ("data",)), "status": (*_METADATA, ("status", "capacity"))}
"""By subresource; a status comes with labels and annotations (kubernetes: pkg/registry/core/pod, podStatusStrategy)."""


def section(found: Object, path: Field) -> Object:
    """Return the mapping at `path`, which is made where there is none."""
    for key in path:
        found = found.setdefault(key, {})
    return found


def value_of(found: Object, field: Field) -> str | None:
    """Return the value of a field."""
    value: str | None = section(found, field[:-1]).get(field[-1])
    return value


def fields_of(body: Object, subresource: str) -> Iterator[tuple[Field, str]]:
    """Yield the fields that can be managed."""
    for path in _MANAGED[subresource]:
        part: Any = body
        for key in path:
            part = part.get(key) or {}
        yield from (((*path, key), value) for key, value in part.items())


def managed(managers: Managers) -> list[Object]:
    """Return `metadata.managedFields`."""
    return [
        {"manager": name, "operation": operation, "subresource": subresource, "fieldsV1": _tree(owned)}
        for (name, operation, subresource), owned in managers.items()
        if owned
    ]


def _tree(fields: set[Field]) -> Object:
    """Spell fields as `fieldsV1` does."""
    tree: Object = {}
    for field in sorted(fields):
        section(tree, tuple(f"f:{key}" for key in field))
    return tree
