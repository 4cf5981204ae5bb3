"""The fields of a Node owned by this daemon: read from the API server's field ownership, and applied."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpushare_plugin.kube.client import NODES, Client, Object
from gpushare_plugin.kube.names import FIELD_MANAGER


@dataclass(frozen=True, slots=True)
class OwnedFields:
    """The present or desired fields of one manager on a Node."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels, by key."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """The annotations, by key."""
    capacity: Mapping[str, str] = field(default_factory=dict)
    """The quantities in the capacity of the Node's status, by resource."""


def owned_fields(node: Object) -> OwnedFields:
    """Return the fields of a Node owned by gpushare."""
    return _fields(node, _is_ours)


def labels_of_others(node: Object) -> Mapping[str, str]:
    """Return the labels of a Node owned by any manager except gpushare."""
    return _fields(node, lambda entry: entry.get("manager") != FIELD_MANAGER).labels


def metadata(node: Object | None, what: str) -> Mapping[str, str]:
    """Return the `labels` or `annotations` of a Node, empty for no Node."""
    return (node or {}).get("metadata", {}).get(what) or {}


async def apply_metadata(client: Client, node: Object, fields: OwnedFields) -> None:
    """Apply exactly these labels and annotations to a Node, and remove any further ones owned by gpushare."""
    body = _body(node)
    body["metadata"] |= {"labels": fields.labels, "annotations": fields.annotations}
    await client.apply(f"{NODES}/{node['metadata']['name']}", FIELD_MANAGER, body)


async def apply_capacity(client: Client, node: Object, fields: OwnedFields) -> None:
    """Apply exactly this capacity to a Node's status; the kubelet then updates the allocatable resources."""
    body = _body(node) | {"status": {"capacity": fields.capacity}}
    await client.apply(f"{NODES}/{node['metadata']['name']}/status", FIELD_MANAGER, body)


def _is_ours(entry: Mapping[str, Any]) -> bool:
    # An apply never removes fields that were updated, not applied, under gpushare's name.
    return entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply"


def _fields(node: Object, whose: Callable[[Mapping[str, Any]], bool]) -> OwnedFields:
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    capacity: dict[str, str] = {}
    for entry in filter(whose, node["metadata"].get("managedFields") or ()):
        fields = entry.get("fieldsV1") or {}
        labels |= _values(fields, node, "metadata", "labels")
        annotations |= _values(fields, node, "metadata", "annotations")
        capacity |= _values(fields, node, "status", "capacity")
    return OwnedFields(labels, annotations, capacity)


def _values(fields: Mapping[str, Any], node: Object, *path: str) -> dict[str, str]:
    """Return the values of the managed fields below `path`; each key has the prefix `f:`, `.` is the mapping itself."""
    values: Any = node
    for key in path:
        fields = fields.get(f"f:{key}") or {}
        values = values.get(key) or {}
    names = (field.removeprefix("f:") for field in fields if field.startswith("f:"))
    return {name: values[name] for name in names if name in values}


def _body(node: Object) -> dict[str, Any]:
    # With the UID, an apply never creates a Node again that has just been deleted.
    identity = {"name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": identity}
