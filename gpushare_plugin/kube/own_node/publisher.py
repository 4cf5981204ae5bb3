"""Publishes labels, an annotation and capacity on the own Node, computed from the snapshot of the node.

All fields are computed, compared with the present fields, and applied as a whole after a difference. Which fields of a
Node are ours is what the API server says of field managers (`owned_fields`).
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from gpushare_plugin.base.published import Published, changes
from gpushare_plugin.base.reported import Reported
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.kube import names
from gpushare_plugin.kube.client import NODES, Client, ClusterError, Object
from gpushare_plugin.kube.names import FIELD_MANAGER
from gpushare_plugin.kube.own_node.labels import TIMESTAMP, node_labels, own_labels
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, encode, record


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


_log = structlog.get_logger()

BETWEEN_WRITES = 1.0
"""Seconds between two writes, because a GPU that comes and goes must not flood the API server."""


class Publisher:
    """Keeps the fields of gpushare on one Node up to date."""

    def __init__(self, client: Client, node_name: str, *, node_labels: bool, clock: Callable[[], float]) -> None:
        """Publish on the Node `node_name`; `node_labels` says whether to write NVIDIA's labels.

        `clock` returns the time of day, in seconds since 1970.
        """
        self._client = client
        self._name = node_name
        self._writes_labels = node_labels
        self._clock = clock
        self._changes = Reported()

    async def publish(self, nodes: Published[Object | None], snapshots: Published[Snapshot]) -> None:
        """Keep the fields of the newest Node in line with the newest snapshot; runs until cancelled."""
        backoff = self._client.timing.backoff()
        async for _ in changes(nodes, snapshots):
            while node := nodes.value:
                try:
                    wrote = await self._write(node, self._desired(node, snapshots.value))
                except ClusterError as error:
                    consequence = "labels and annotation of this Node are not up to date"
                    await self._client.wait_out(error, backoff, f"{NODES}/{self._name}", consequence)
                    continue
                backoff.reset()
                if wrote:
                    await asyncio.sleep(BETWEEN_WRITES)
                break

    def _desired(self, node: Object, snapshot: Snapshot) -> OwnedFields:
        discovered = node_labels(snapshot) if self._writes_labels else {}
        labels = self._without_others(node, own_labels(snapshot) | discovered)
        return OwnedFields(
            self._stamped(node, labels) if discovered else labels,
            {GPUS_ANNOTATION: encode(record(snapshot))},
            {names.GPU_COUNT: str(len(snapshot.inventory.cards))},
        )

    def _without_others(self, node: Object, labels: Mapping[str, str]) -> dict[str, str]:
        """Return `labels` without labels set to another value by another manager: taking turns helps nobody."""
        present = metadata(node, "labels")
        left = {key for key in labels_of_others(node) if key in labels and labels[key] != present.get(key)}
        if self._changes.is_new("others", left) and left:
            _log.warning("labels_owned_by_others", labels=sorted(left), consequence="these labels are not published")
        twice = self._writes_labels and TIMESTAMP in labels_of_others(node)
        if self._changes.is_new("discovery", twice) and twice:
            _log.warning(
                "feature_discovery_found",
                reason="NVIDIA's GPU feature discovery labels this node too",
                remedy="turn one of the two off; ours with --node-labels=false",
            )
        return {key: value for key, value in labels.items() if key not in left}

    def _stamped(self, node: Object, labels: Mapping[str, str]) -> dict[str, str]:
        """Add the time of the first write of these labels, unless another manager writes the time label.

        The time of the first write stays, because a later time alone is no reason for another write.
        """
        if TIMESTAMP in labels_of_others(node):
            return dict(labels)
        there = owned_fields(node).labels
        same = there.keys() - labels.keys() == {TIMESTAMP} and labels.items() <= there.items()
        return {**labels, TIMESTAMP: there[TIMESTAMP] if same else str(int(self._clock()))}

    async def _write(self, node: Object, desired: OwnedFields) -> bool:
        """Apply the fields if they differ from the present fields; return whether they differed."""
        there = owned_fields(node)
        differs = (desired.labels, desired.annotations) != (there.labels, there.annotations)
        capacity_differs = desired.capacity != there.capacity
        if differs:
            await apply_metadata(self._client, node, desired)
        if capacity_differs:
            await apply_capacity(self._client, node, desired)
        return differs or capacity_differs
