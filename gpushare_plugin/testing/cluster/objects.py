"""The objects of an API server: versions, a history to watch, and who manages which field.

Fields are managed as server-side apply does it, of labels, annotations, data and capacity alone: mappings of text.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any
from uuid import uuid4

from gpushare_plugin.foundation.published import Published

Object = dict[str, Any]
Field = tuple[str, ...]
Key = tuple[str, str]
"""The collection an object is in, such as `/api/v1/nodes`, and its name."""
Manager = tuple[str, str, str]
"""Name, operation (`Apply` or `Update`) and subresource."""

ANNOTATIONS_LIMIT = 256 * 1024
"""Bytes that all annotations of an object have together, keys included (apimachinery: TotalAnnotationSizeLimitB)."""

_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")

_MANAGED = {"": (("metadata", "labels"), ("metadata", "annotations"), ("data",)), "status": (("status", "capacity"),)}


class ConflictError(Exception):
    """An apply that another manager, or another object of the name, stands against."""


class InvalidError(Exception):
    """An apply of what no API server takes."""


@dataclass(frozen=True, slots=True)
class Change:
    """An event of a watch."""

    version: int
    kind: str
    collection: str
    found: Object


class Store:
    """All objects; `version` is the newest resource version there is."""

    def __init__(self) -> None:
        """Start empty."""
        self.version = Published(1)
        self.oldest = 0
        self._objects: dict[Key, Object] = {}
        self._managers: dict[Key, dict[Manager, set[Field]]] = defaultdict(dict)
        self._history: list[Change] = []

    def find(self, collection: str, name: str | None) -> list[Object]:
        """Return the objects of a collection, or the one of this name."""
        return [
            deepcopy(found)
            for (where, named), found in self._objects.items()
            if where == collection and name in {None, named}
        ]

    def since(self, version: int, collection: str, name: str | None) -> list[Change]:
        """Return what happened in a collection after `version`, perhaps to the one of this name only."""
        return [
            change
            for change in self._history
            if change.version > version
            and change.collection == collection
            and name in {None, change.found["metadata"]["name"]}
        ]

    def forget(self) -> None:
        """Forget the history, as etcd does after some minutes: earlier versions are too old to watch from."""
        self._history.clear()
        self.oldest = self._next()

    def update(self, collection: str, name: str, fields: Mapping[Field, str | None], manager: str = "kubectl") -> None:
        """Set fields, or remove those that are None, as another client does that patches; creates the object."""
        key = (collection, name)
        kind = "MODIFIED" if key in self._objects else "ADDED"
        found = self._objects.setdefault(key, {"metadata": {"name": name, "uid": str(uuid4())}})
        for field, value in fields.items():
            subresource = "status" if field[0] == "status" else ""
            for owned in self._managers[key].values():
                owned.discard(field)
            if value is None:
                _section(found, field[:-1]).pop(field[-1], None)
            else:
                _section(found, field[:-1])[field[-1]] = value
                self._managers[key].setdefault((manager, "Update", subresource), set()).add(field)
        self._changed(key, kind)

    def delete(self, collection: str, name: str) -> None:
        """Delete an object."""
        key = (collection, name)
        self._changed(key, "DELETED")
        del self._objects[key], self._managers[key]

    def apply(self, collection: str, subresource: str, manager: str, body: Object, *, force: bool) -> Object:
        """Apply `body` for `manager`; raises KeyError where there is no object, ConflictError and InvalidError."""
        for label, value in (body["metadata"].get("labels") or {}).items():
            if not _LABEL_VALUE.fullmatch(value):
                raise InvalidError(f'metadata.labels: Invalid value: "{value}" of {label}')
        key = (collection, body["metadata"]["name"])
        self._refuse_another(key, body["metadata"].get("uid"))
        found, managers = self._objects[key], self._managers[key]
        before = deepcopy((found, managers))
        me = (manager, "Apply", subresource)
        wanted = dict(_fields(body, subresource))
        others = [owned for other, owned in managers.items() if other != me]
        conflicts = [field for field, value in wanted.items() if _value(found, field) != value]
        for field, owned in product(conflicts, others):
            if field in owned and not force:
                raise ConflictError(f"conflict with another manager: .{'.'.join(field)}")
            owned.discard(field)
        for field in managers.get(me, set()) - wanted.keys():
            if not any(field in owned for owned in others):
                _section(found, field[:-1]).pop(field[-1], None)
        for field, value in wanted.items():
            _section(found, field[:-1])[field[-1]] = value
        managers[me] = set(wanted)
        if _annotation_bytes(found) > ANNOTATIONS_LIMIT:
            self._objects[key], self._managers[key] = before
            raise InvalidError(
                f'{body.get("kind", "object")} "{key[1]}" is invalid: metadata.annotations: Too long: '
                f"may not be more than {ANNOTATIONS_LIMIT} bytes"
            )
        if (found, managers) != before:
            self._changed(key, "MODIFIED")
        return deepcopy(found)

    def _refuse_another(self, key: Key, uid: str | None) -> None:
        if uid is None and key not in self._objects:
            raise KeyError(key)
        if uid is not None and uid != self._objects.get(key, {}).get("metadata", {}).get("uid"):
            raise ConflictError(f"the provided object specified uid {uid}, and no such object was found")

    def _changed(self, key: Key, kind: str) -> None:
        found = self._objects[key]
        version = self._next()
        found["metadata"]["resourceVersion"] = str(version)
        found["metadata"]["managedFields"] = [
            {"manager": name, "operation": operation, "subresource": subresource, "fieldsV1": _tree(owned)}
            for (name, operation, subresource), owned in self._managers[key].items()
            if owned
        ]
        self._history.append(Change(version, kind, key[0], deepcopy(found)))
        self.version.publish(version)

    def _next(self) -> int:
        version = self.version.value + 1
        self.version.publish(version)
        return version


def _annotation_bytes(found: Object) -> int:
    annotations = found["metadata"].get("annotations") or {}
    return sum(len(text.encode()) for item in annotations.items() for text in item)


def _value(found: Object, field: Field) -> str | None:
    value: str | None = _section(found, field[:-1]).get(field[-1])
    return value


def _section(found: Object, path: Field) -> Object:
    for key in path:
        found = found.setdefault(key, {})
    return found


def _fields(body: Object, subresource: str) -> Iterator[tuple[Field, str]]:
    for path in _MANAGED[subresource]:
        section: Any = body
        for key in path:
            section = section.get(key) or {}
        yield from (((*path, key), value) for key, value in section.items())


def _tree(fields: set[Field]) -> Object:
    """Spell fields as `fieldsV1` does."""
    tree: Object = {}
    for field in sorted(fields):
        _section(tree, tuple(f"f:{key}" for key in field))
    return tree
