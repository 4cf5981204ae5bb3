"""The objects of an API server: their versions, and the history that is watched.

Each version of an object is serialised once, however many lists and watches it is sent in.
"""

import asyncio
import json
import re
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from uuid import uuid4

from gpushare_plugin.base.published import Published
from gpushare_plugin.testing.cluster.store.errors import ConflictError, ExistsError, InvalidError, NotFoundError
from gpushare_plugin.testing.cluster.store.managed_fields import (
    Field,
    Managers,
    Object,
    fields_of,
    managed,
    section,
    value_of,
)
from gpushare_plugin.testing.cluster.store.place import Collection, Key, collection
from gpushare_plugin.testing.cluster.store.selectors import Selectable, Selector

ANNOTATIONS_LIMIT = 256 * 1024
"""Bytes that all annotations of an object have together, keys included (apimachinery: TotalAnnotationSizeLimitB)."""

_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to an object, when by the event loop's clock, and by which fields it was and is selected."""

    version: int
    at: float
    table: tuple[str, str]
    before: Selectable | None
    after: Selectable | None
    body: bytes

    def kind(self, namespace: str | None, selector: Selector) -> str | None:
        """Return which event this is to a watch of these objects, None where it is none."""
        was, is_now = (
            found is not None and namespace in {None, found.namespace} and selector.matches(found)
            for found in (self.before, self.after)
        )
        return {(False, True): "ADDED", (True, True): "MODIFIED", (True, False): "DELETED"}.get((was, is_now))


@dataclass(slots=True)
class Stored:
    """An object, by which fields it is selected, who manages which field, and its text."""

    found: Object
    selectable: Selectable | None = None
    managers: Managers = field(default_factory=dict)
    body: bytes = b""


class Store:
    """All objects; `version` is the newest resource version there is."""

    def __init__(self) -> None:
        """Start empty."""
        self.version = Published(1)
        self.oldest = 0
        self._tables: dict[tuple[str, str], dict[Key, Stored]] = defaultdict(dict)
        self._history: list[Change] = []

    def find(self, path: str, name: str | None = None) -> list[Object]:
        """Return the objects of the collection at `path`, or the one of this name."""
        terms = () if name is None else (("name", True, name),)
        return [json.loads(stored.body) for _, stored in self.selected(collection(path), Selector(terms))]

    def selected(self, where: Collection, selector: Selector) -> list[tuple[Key, Stored]]:
        """Return objects as they stand, in the order of their keys; they are not to be changed."""
        table, namespace = self._tables[where.table], where.namespace
        named = where.key(selector.name or "")
        return [
            (key, stored)
            for key in ([named] if named in table else sorted(table))
            if (namespace is None or key[0] == namespace)
            and (stored := table[key]).selectable
            and selector.matches(stored.selectable)
        ]

    def since(self, version: int, where: Collection, selector: Selector) -> Iterator[tuple[str, Change]]:
        """Yield what happened to these objects after `version`, each with the kind of event it is."""
        for change in self._history[bisect_right(self._history, version, key=lambda each: each.version) :]:
            if change.table == where.table and (kind := change.kind(where.namespace, selector)):
                yield kind, change

    def forget(self) -> None:
        """Forget the history, as etcd does after some minutes: earlier versions are too old to watch from."""
        self._history.clear()
        self.oldest = self.version.value + 1
        self.version.publish(self.oldest)

    def create(self, path: str, body: Object) -> Object:
        """Create an object as it is given, with a UID where it has none; raises ExistsError and InvalidError."""
        where = collection(path)
        key = where.key(body["metadata"]["name"])
        if key in self._tables[where.table]:
            raise ExistsError(f'{where.resource} "{key[1]}" already exists')
        made = Stored(_identified(where, body))
        _admit(where, made.found)
        self._tables[where.table][key] = made
        self._changed(where, key)
        return made.found

    def replace(self, path: str, body: Object) -> Object:
        """Replace an object; raises ConflictError where it has another UID or version than `body` names."""
        where = collection(path)
        stored = self._stored(where, body["metadata"]["name"])
        for name in ("uid", "resourceVersion"):
            if (expected := body["metadata"].get(name)) and expected != stored.found["metadata"][name]:
                raise ConflictError(
                    f'Operation cannot be fulfilled on {where.resource} "{body["metadata"]["name"]}": the object has '
                    "been modified; please apply your changes to the latest version and try again"
                )
        identity = {name: stored.found["metadata"][name] for name in ("uid", "creationTimestamp")}
        return self._put(where, stored, {**body, "metadata": {**body["metadata"], **identity}})

    def patch(self, path: str, name: str, merge: Object) -> Object:
        """Change an object as a JSON merge patch says; raises NotFoundError and InvalidError.

        Who manages which field is not followed; `update` does.
        """
        where = collection(path)
        stored = self._stored(where, name)
        return self._put(where, stored, merged(stored.found, merge))

    def change(self, path: str, name: str, decide: Callable[[Object], Object]) -> Object:
        """Patch an object by what `decide` returns for what it is now; what that raises leaves no trace."""
        return self.patch(path, name, decide(self._stored(collection(path), name).found))

    def update(self, path: str, name: str, fields: Mapping[Field, object], manager: str = "kubectl") -> None:
        """Set fields, or remove those that are None, as another client does that patches; creates the object."""
        where = collection(path)
        key = where.key(name)
        if key not in self._tables[where.table]:
            self._tables[where.table][key] = Stored(_identified(where, {"metadata": {"name": name}}))
        stored = self._tables[where.table][key]
        for path_of_field, value in fields.items():
            subresource = "status" if path_of_field[0] == "status" else ""
            for owned in stored.managers.values():
                owned.discard(path_of_field)
            if value is None:
                section(stored.found, path_of_field[:-1]).pop(path_of_field[-1], None)
            else:
                section(stored.found, path_of_field[:-1])[path_of_field[-1]] = value
                stored.managers.setdefault((manager, "Update", subresource), set()).add(path_of_field)
        self._changed(where, key)

    def delete(self, path: str, name: str) -> None:
        """Delete an object at once; raises NotFoundError."""
        where = collection(path)
        self._stored(where, name)
        self._changed(where, where.key(name), deleted=True)

    def apply(self, path: str, subresource: str, manager: str, body: Object, *, force: bool) -> Object:
        """Apply `body` for `manager`; raises KeyError where there is no object, ConflictError and InvalidError."""
        for label, value in (body["metadata"].get("labels") or {}).items():
            if not _LABEL_VALUE.fullmatch(value):
                raise InvalidError(f'metadata.labels: Invalid value: "{value}" of {label}')
        where = collection(path)
        key = where.key(body["metadata"]["name"])
        stored = self._applicable(where, key, subresource, body["metadata"].get("uid"))
        before = deepcopy((stored.found, stored.managers))
        found, managers = stored.found, stored.managers
        me = (manager, "Apply", subresource)
        wanted = dict(fields_of(body, subresource))
        others = [owned for other, owned in managers.items() if other != me]
        conflicts = [each for each, value in wanted.items() if value_of(found, each) != value]
        for each, owned in product(conflicts, others):
            if each in owned and not force:
                raise ConflictError(f"conflict with another manager: .{'.'.join(each)}")
            owned.discard(each)
        for each in managers.get(me, set()) - wanted.keys():
            if not any(each in owned for owned in others):
                section(found, each[:-1]).pop(each[-1], None)
        for each, value in wanted.items():
            section(found, each[:-1])[each[-1]] = value
        managers[me] = set(wanted)
        try:
            _admit(where, found)
        except InvalidError:
            stored.found, stored.managers = before
            raise
        if (found, managers) != before:
            self._changed(where, key)
        return deepcopy(found)

    def _stored(self, where: Collection, name: str) -> Stored:
        try:
            return self._tables[where.table][where.key(name)]
        except KeyError as error:
            raise NotFoundError(f'{where.resource} "{name}" not found') from error

    def _put(self, where: Collection, stored: Stored, found: Object) -> Object:
        _admit(where, found)
        stored.found = found
        self._changed(where, where.key(found["metadata"]["name"]))
        return stored.found

    def _applicable(self, where: Collection, key: Key, subresource: str, uid: str | None) -> Stored:
        """Return the object that an apply changes; it creates none."""
        stored = self._tables[where.table].get(key)
        if stored is not None:
            refuse_another_uid(where, stored.found, uid)
            return stored
        if subresource:
            raise NotFoundError(f'{where.resource} "{key[1]}" not found')
        if uid is not None:
            raise ConflictError(
                f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            )
        raise KeyError(key)

    def _changed(self, where: Collection, key: Key, *, deleted: bool = False) -> None:
        """Make a new version of an object, or its last one, and keep what happened for those who watch."""
        stored = self._tables[where.table][key]
        before, version = stored.selectable, self.version.value + 1
        metadata = stored.found["metadata"]
        metadata["resourceVersion"] = str(version)
        if stored.managers:
            metadata["managedFields"] = managed(stored.managers)
        stored.found = where.type_meta | stored.found | where.type_meta
        stored.body = json.dumps(stored.found).encode()
        stored.selectable = Selectable.of(stored.found)
        if deleted:
            del self._tables[where.table][key]
        after = None if deleted else stored.selectable
        self._history.append(Change(version, _now(), where.table, before, after, stored.body))
        self.version.publish(version)


def _now() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:  # objects can be made before the server runs
        return 0.0


def _identified(where: Collection, body: Object) -> Object:
    """Return a new object as the server completes it."""
    identity = {"uid": str(uuid4()), "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    namespace = {"namespace": where.namespace} if where.namespace else {}
    return {**body, "metadata": {**identity, **body["metadata"], **namespace}}


def refuse_another_uid(where: Collection, found: Object, uid: str | None) -> None:
    """Raise InvalidError where a patch names another UID: that would be a change, and no precondition."""
    if uid not in {None, found["metadata"]["uid"]}:
        raise _invalid(where, found, f'metadata.uid: Invalid value: "{uid}": field is immutable')


def _admit(where: Collection, found: Object) -> None:
    if where.resource == "events" and (found["involvedObject"].get("namespace") or "default") != where.namespace:
        # So it is validated: pkg/apis/core/validation/events.go of kubernetes
        raise _invalid(where, found, "involvedObject.namespace: Invalid value: does not match event.namespace")
    annotations = found["metadata"].get("annotations") or {}
    if sum(len(text.encode()) for item in annotations.items() for text in item) > ANNOTATIONS_LIMIT:
        raise _invalid(where, found, f"metadata.annotations: Too long: may not be more than {ANNOTATIONS_LIMIT} bytes")


def _invalid(where: Collection, found: Object, why: str) -> InvalidError:
    return InvalidError(f'{where.type_meta["kind"]} "{found["metadata"]["name"]}" is invalid: {why}')


def merged(found: Object, merge: Object) -> Object:
    """Apply a JSON merge patch (RFC 7386); what is not changed is shared."""
    result = {key: value for key, value in found.items() if key not in merge or merge[key] is not None}
    for key, value in merge.items():
        if isinstance(value, dict):
            before = result.get(key)
            result[key] = merged(before if isinstance(before, dict) else {}, value)
        elif value is not None:
            result[key] = value
    return result
