"""This node as a member of the cluster: what its Node and a ConfigMap ask for, and what it tells on its Node.

What should be on the Node is computed whole, compared with what is there, and applied whole when they differ.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from gpushare_plugin.adapters.cluster import records
from gpushare_plugin.adapters.cluster.client import NODES, Client, ClusterError, Object, configmaps
from gpushare_plugin.adapters.cluster.cordon import cordon
from gpushare_plugin.adapters.cluster.labels import DISCOVERY_MARK, node_labels
from gpushare_plugin.adapters.cluster.settings import READ
from gpushare_plugin.foundation.changes import Changes
from gpushare_plugin.foundation.published import Published, changes
from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.model.health import Cordon
from gpushare_plugin.sharing.snapshot import Snapshot

_log = structlog.get_logger()

FIRST_ANSWER = 10.0
"""Seconds the start waits for the API server: without an answer, GPUs are offered as on a node without labels."""

BETWEEN_WRITES = 1.0
"""Seconds between two writes, so that a GPU that comes and goes does not flood the API server."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What we have written on a Node, or want to."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)


class Member:
    """One node's part in the cluster."""

    def __init__(self, client: Client, node_name: str, *, node_labels: bool) -> None:
        """Take part as the node of this name; `node_labels` tells whether NVIDIA's labels are ours to write."""
        self._client = client
        self._name = node_name
        self._writes_labels = node_labels
        self._node: Published[Object | None] = Published(None)
        # A Node that is deleted is made anew by its kubelet: until then, what its last one asked for holds.
        self._last_node: Object | None = None
        self._configmap: Published[Object | None] = Published(None)
        self._answered = {"node": asyncio.Event(), "configmap": asyncio.Event()}
        self._changes = Changes()

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the node that settings depend on, none before the API server has answered."""
        labels = _metadata(self._last_node, "labels")
        return {key: labels[key] for key in sorted(READ & labels.keys())}

    async def answered(self, within: float = FIRST_ANSWER) -> bool:
        """Wait until it is known what the cluster asks of this node, or for so many seconds; tell whether it is.

        A server that forbids us to know has answered.
        """
        try:
            async with asyncio.timeout(within):
                for answer in self._answered.values():
                    await answer.wait()
        except TimeoutError:
            _log.warning("the API server has not answered, going on without what it would tell", seconds=within)
            return False
        return True

    # ------------------------------------------------------------------ what is asked of us

    async def follow_node(self) -> None:
        """Follow our Node, for ever."""
        missed = "settings by node label, GPUs taken out by annotation, labels and annotation of this node"
        answered = self._answered["node"].set
        async for node in self._client.follow(NODES, self._name, missed, forbidden=answered):
            if node is None:
                _log.warning("there is no such Node", node=self._name)
            self._last_node = node or self._last_node
            self._node.publish(node)
            answered()

    async def follow_configmap(self) -> None:
        """Follow the ConfigMap that takes GPUs out, for ever."""
        path, name = configmaps(records.CORDON_NAMESPACE), records.cordon_configmap(self._name)
        answered = self._answered["configmap"].set
        async for found in self._client.follow(path, name, "GPUs taken out by that ConfigMap", forbidden=answered):
            self._configmap.publish(found)
            answered()

    def cordon(self, inventory: Inventory) -> Cordon:
        """Return what people take out by hand of these GPUs."""
        annotation = _metadata(self._last_node, "annotations").get(records.UNHEALTHY_GPUS, "")
        configmap = self._configmap.value
        data = None if configmap is None else configmap.get("data") or {}
        return cordon(self._name, annotation, data, inventory.gpus)

    async def obey(
        self,
        labels: Mapping[str, str],
        snapshots: Published[Snapshot],
        take_out: Callable[[Cordon], None],
        reload: Callable[[], None],
    ) -> None:
        """Call `take_out` with what is taken out by hand, and `reload` after labels other than `labels`, for ever."""
        # The GPUs themselves can change, and with them which one an index means.
        async for _ in changes(self._node, self._configmap, snapshots):
            take_out(self.cordon(snapshots.value.inventory))
            if self.labels != labels:
                labels = self.labels
                _log.info("node labels changed", labels=labels)
                reload()

    # ------------------------------------------------------------------ what we tell

    async def tell(self, snapshots: Published[Snapshot]) -> None:
        """Keep labels, annotation and capacity on our Node what they should be, for ever."""
        backoff = self._client.timing.backoff()
        async for _ in changes(self._node, snapshots):
            while node := self._node.value:
                try:
                    wrote = await self._write(node, self._wanted(node, snapshots.value))
                except ClusterError as error:
                    missed = "labels and annotation of this node are not up to date"
                    await self._client.wait_out(error, backoff, f"Node {self._name}", missed)
                    continue
                backoff.reset()
                if wrote:
                    await asyncio.sleep(BETWEEN_WRITES)
                break

    def _wanted(self, node: Object, snapshot: Snapshot) -> Marks:
        labels = node_labels(snapshot) if self._writes_labels else {}
        return Marks(
            self._not_others(node, labels),
            {records.GPUS: records.encode(records.record(snapshot))},
            {records.GPU_COUNT: str(len(snapshot.inventory.gpus))},
        )

    def _not_others(self, node: Object, labels: Mapping[str, str]) -> dict[str, str]:
        """Leave out what somebody else says differently: two that write a label in turn help nobody."""
        present = _metadata(node, "labels")
        others = _owned(node, lambda entry: entry.get("manager") != records.FIELD_MANAGER).labels
        left = {key for key in others if key in labels and labels[key] != present.get(key)}
        if self._changes.is_new("others", left) and left:
            _log.warning("somebody else writes these labels, they are left to them", labels=sorted(left))
        twice = self._writes_labels and DISCOVERY_MARK in present
        if self._changes.is_new("discovery", twice) and twice:
            _log.warning(
                "NVIDIA's GPU feature discovery labels this node too; turn one off, ours by --node-labels=false"
            )
        return {key: value for key, value in labels.items() if key not in left}

    async def _write(self, node: Object, wanted: Marks) -> bool:
        """Apply what is not there as it should be; tell whether there was anything."""
        there = marks(node)
        metadata = (wanted.labels, wanted.annotations) != (there.labels, there.annotations)
        capacity = wanted.capacity != there.capacity
        if metadata:
            await apply_metadata(self._client, node, wanted)
        if capacity:
            await apply_capacity(self._client, node, wanted)
        return metadata or capacity


async def clean(client: Client, node_name: str | None = None) -> AsyncIterator[tuple[str, ClusterError | None]]:
    """Remove everything written on a node, or on every one; yield each that had any, and why it still has.

    Raises ClusterError when the nodes cannot be listed, or there is none of that name.
    """
    nodes, _ = await client.list(NODES, node_name)
    if node_name is not None and not nodes:
        raise ClusterError(f"there is no Node {node_name}; kubectl get nodes tells their names")
    for node in nodes:
        if marks(node) == Marks():
            continue
        try:
            await apply_metadata(client, node, Marks())
            await apply_capacity(client, node, Marks())
        except ClusterError as error:
            yield node["metadata"]["name"], error
        else:
            yield node["metadata"]["name"], None


async def apply_metadata(client: Client, node: Object, wanted: Marks) -> None:
    """Have exactly these labels and annotations of ours on a Node."""
    body = _body(node)
    body["metadata"] |= {"labels": wanted.labels, "annotations": wanted.annotations}
    await client.apply(f"{NODES}/{node['metadata']['name']}", records.FIELD_MANAGER, body)


async def apply_capacity(client: Client, node: Object, wanted: Marks) -> None:
    """Have exactly this capacity of ours in a Node's status; the kubelet makes it allocatable, and takes that away."""
    body = _body(node) | {"status": {"capacity": wanted.capacity}}
    await client.apply(f"{NODES}/{node['metadata']['name']}/status", records.FIELD_MANAGER, body)


def marks(node: Object) -> Marks:
    """Return what on a Node is ours, by the API server's own account of who manages which field."""
    return _owned(node, _is_ours)


def _is_ours(entry: Mapping[str, Any]) -> bool:
    # What somebody updates under our name is not taken back by applying less.
    return entry.get("manager") == records.FIELD_MANAGER and entry.get("operation") == "Apply"


def _owned(node: Object, whose: Callable[[Mapping[str, Any]], bool]) -> Marks:
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    capacity: dict[str, str] = {}
    for entry in filter(whose, node["metadata"].get("managedFields") or ()):
        fields = entry.get("fieldsV1") or {}
        labels |= _values(fields, node, "metadata", "labels")
        annotations |= _values(fields, node, "metadata", "annotations")
        capacity |= _values(fields, node, "status", "capacity")
    return Marks(labels, annotations, capacity)


def _values(fields: Mapping[str, Any], node: Object, *path: str) -> dict[str, str]:
    """Return the values of the managed fields below `path`; `f:` stands before each key, `.` for the mapping itself."""
    values: Any = node
    for key in path:
        fields = fields.get(f"f:{key}") or {}
        values = values.get(key) or {}
    names = (field.removeprefix("f:") for field in fields if field.startswith("f:"))
    return {name: values[name] for name in names if name in values}


def _metadata(node: Object | None, what: str) -> Mapping[str, str]:
    return (node or {}).get("metadata", {}).get(what) or {}


def _body(node: Object) -> dict[str, Any]:
    # With its UID, what is applied can never make a Node that has just been deleted again.
    identity = {"name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": identity}
