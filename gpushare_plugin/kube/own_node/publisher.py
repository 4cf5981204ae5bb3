"""Publishes labels, an annotation and capacity on the own Node, computed from the snapshot of the node.

All fields are computed, compared with the present fields, and applied as a whole after a difference.
"""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from gpushare_plugin.base.published import Published, changes
from gpushare_plugin.base.reported import Reported
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.kube import names
from gpushare_plugin.kube.client import NODES, Client, ClusterError, Object
from gpushare_plugin.kube.own_node.labels import TIMESTAMP, node_labels, own_labels
from gpushare_plugin.kube.own_node.owned_fields import (
    OwnedFields,
    apply_capacity,
    apply_metadata,
    labels_of_others,
    metadata,
    owned_fields,
)
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, encode, record

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
