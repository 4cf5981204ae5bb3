"""The fields of a Node that this daemon owns: read by the API server's field ownership, and applied."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpushare_plugin.adapters.cluster.client import NODES, Client, Object
from gpushare_plugin.adapters.cluster.names import FIELD_MANAGER


@dataclass(frozen=True, slots=True)
class OwnedFields:
    """Labels, annotations and capacity on a Node that are ours, or are to be."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)


def owned_fields(node: Object) -> OwnedFields:
    """Return what gpushare owns on a Node."""
    return _fields(node, _is_ours)


def labels_of_others(node: Object) -> Mapping[str, str]:
    """Return the labels of a Node that any other manager owns."""
    return _fields(node, lambda entry: entry.get("manager") != FIELD_MANAGER).labels


def metadata(node: Object | None, what: str) -> Mapping[str, str]:
    """Return the `labels` or `annotations` of a Node, nothing where there is no Node."""
    return (node or {}).get("metadata", {}).get(what) or {}


async def apply_metadata(client: Client, node: Object, fields: OwnedFields) -> None:
    """Apply exactly these labels and annotations to a Node; ours that are not among them are removed."""
    body = _body(node)
    body["metadata"] |= {"labels": fields.labels, "annotations": fields.annotations}
    await client.apply(f"{NODES}/{node['metadata']['name']}", FIELD_MANAGER, body)


async def apply_capacity(client: Client, node: Object, fields: OwnedFields) -> None:
    """Apply exactly this capacity to a Node's status; the kubelet makes it allocatable, or removes it there."""
    body = _body(node) | {"status": {"capacity": fields.capacity}}
    await client.apply(f"{NODES}/{node['metadata']['name']}/status", FIELD_MANAGER, body)


def _is_ours(entry: Mapping[str, Any]) -> bool:
    # What others update under our name is not removed by applying less.
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
    """Return the values of the managed fields below `path`; `f:` stands before each key, `.` for the mapping itself."""
    values: Any = node
    for key in path:
        fields = fields.get(f"f:{key}") or {}
        values = values.get(key) or {}
    names = (field.removeprefix("f:") for field in fields if field.startswith("f:"))
    return {name: values[name] for name in names if name in values}


def _body(node: Object) -> dict[str, Any]:
    # With its UID, an apply can never create a Node that has just been deleted.
    identity = {"name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": identity}
