"""This node as a member of the cluster: requests from its Node and a ConfigMap, and publishing on its Node."""

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

from gpushare_plugin.base.published import Published, changes
from gpushare_plugin.config.directives import READ
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.health import Cordon
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.kube import names
from gpushare_plugin.kube.client import NODES, Client, Object, configmaps
from gpushare_plugin.kube.collection import follow_object
from gpushare_plugin.kube.events.event import Backlog, Reporter
from gpushare_plugin.kube.events.sender import EventSender
from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.kube.own_node.condition import ConditionWriter, State
from gpushare_plugin.kube.own_node.eviction import evict
from gpushare_plugin.kube.own_node.pod_writer import PodWriter
from gpushare_plugin.kube.own_node.pods import OwnPods
from gpushare_plugin.kube.own_node.publisher import Publisher, metadata
from gpushare_plugin.kube.own_node.requests.cordon import cordon
from gpushare_plugin.kube.own_node.requests.wanted_slices import requested_slices
from gpushare_plugin.kube.own_node.slice_status import Healthy, Observer, SliceStatus
from gpushare_plugin.slices.slice import SchedulableSlices
from gpushare_plugin.slices.wanted import SliceRequest

_log = structlog.get_logger()

EVENT_COMPONENT = "gpushare"
"""The reporter of a node's Events."""
EVENT_REMEDY = "grant create and patch of events (in the chart: cluster.events)"
"""The remedy for a missing right to send Events, for the log."""

FIRST_ANSWER = 10.0
"""Seconds that the start waits for the API server; without an answer, the node starts without labels and cordons."""


class Member:
    """One node's part in the cluster."""

    def __init__(  # noqa: PLR0913 - the settings of a member
        self,
        client: Client,
        node_name: str,
        *,
        node_labels: bool,
        cordon_configmap: bool = True,
        follow_pods: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take part as the node `node_name`; `node_labels` says whether to write NVIDIA's labels.

        `cordon_configmap` says whether to read the ConfigMap for cordoned GPUs, `follow_pods` whether to follow the
        pods of the node. `clock` returns the time of day, in seconds since 1970.
        """
        self.client = client
        """The access to the API server."""
        self.name = node_name
        """The name of the Node."""
        self._publisher = Publisher(client, node_name, node_labels=node_labels, clock=clock)
        self._condition = ConditionWriter(client, node_name, clock)
        self.node: Published[Object | None] = Published(None)
        """The newest Node, None where there is none, or none is known."""
        # A kubelet creates a deleted Node again; until then, the requests of the last Node stay in force.
        self._last_node: Object | None = None
        self._configmap: Published[Object | None] = Published(None)
        self._answered = {"node": asyncio.Event(), "configmap": asyncio.Event()}
        self._reads_configmap = cordon_configmap
        self.pods = OwnPods(client, node_name) if follow_pods else None
        """The pods of this node, None if pods are not followed."""
        if self.pods is not None:
            self._answered["pods"] = self.pods.answered

    @property
    def api_errors(self) -> Mapping[str, int]:
        """The number of failed requests to the API server, by kind."""
        return self.client.errors

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the node that affect the config, empty before the first answer of the API server."""
        labels = metadata(self._last_node, "labels")
        return {key: labels[key] for key in sorted(READ & labels.keys())}

    async def answered(self, within: float = FIRST_ANSWER) -> bool:
        """Wait up to `within` seconds for the requests of the cluster to this node; return whether all are answered.

        A refusal of the API server counts as an answer.
        """
        try:
            async with asyncio.timeout(within):
                for answer in self._answered.values():
                    await answer.wait()
        except TimeoutError:
            _log.warning(
                "api_server_timeout", seconds=within, consequence="starting as on a node without labels and cordons"
            )
            return False
        return True

    async def follow_node(self) -> None:
        """Follow the own Node; runs until cancelled."""
        consequence = "labels and cordon annotation of this Node are not followed, and nothing is published on it"
        answered = self._answered["node"].set
        async for node in follow_object(self.client, NODES, self.name, consequence, forbidden=answered):
            if node is None:
                _log.warning("node_not_found", node=self.name)
            self._last_node = node or self._last_node
            self.node.publish(node)
            answered()

    async def follow_configmap(self) -> None:
        """Follow the ConfigMap for cordoned GPUs until cancelled, or return at once if it is not to be read."""
        path, name = configmaps(names.CORDON_NAMESPACE), names.cordon_configmap(self.name)
        consequence = "changes to the ConfigMap that cordons GPUs are not followed"
        answered = self._answered["configmap"].set
        if not self._reads_configmap:
            answered()
            return
        async for found in follow_object(self.client, path, name, consequence, forbidden=answered):
            self._configmap.publish(found)
            answered()

    def cordon(self, inventory: Inventory) -> Cordon:
        """Return the GPUs of `inventory` that people have cordoned."""
        annotation = metadata(self._last_node, "annotations").get(names.UNHEALTHY_GPUS, "")
        configmap = self._configmap.value
        data = None if configmap is None else configmap.get("data") or {}
        return cordon(self.name, annotation, data, inventory.cards)

    async def follow_requests(
        self,
        labels: Mapping[str, str],
        snapshots: Published[Snapshot],
        set_cordon: Callable[[Cordon], None],
        reload: Callable[[], None],
    ) -> None:
        """Call `set_cordon` with the cordoned GPUs, and `reload` after each change of the labels.

        The first change is compared with `labels`. Runs until cancelled.
        """
        # Snapshots matter, too: after a change of the GPUs, an index in a cordon can mean another GPU.
        async for _ in changes(self.node, self._configmap, snapshots):
            set_cordon(self.cordon(snapshots.value.inventory))
            if self.labels != labels:
                labels = self.labels
                _log.info("node_labels_changed", labels=labels)
                reload()

    def requested_slices(self, snapshot: Snapshot) -> SliceRequest:
        """Return the slices requested by the annotations of the Node, for a node in the state of `snapshot`."""
        annotations = metadata(self._last_node, "annotations")
        return requested_slices(annotations, snapshot.inventory, snapshot.partitioning or "mps")

    async def follow_slices(self, snapshots: Published[Snapshot], request: Callable[[SliceRequest], None]) -> None:
        """Call `request` with the slices requested by the annotations of the Node; runs until cancelled."""
        async for _ in changes(self.node, snapshots):
            request(self.requested_slices(snapshots.value))

    async def publish_node(self, snapshots: Published[Snapshot]) -> None:
        """Keep labels, annotation and capacity of the own Node in line with `snapshots`; runs until cancelled."""
        await self._publisher.publish(self.node, snapshots)

    async def publish_slices(
        self, slices: Published[SchedulableSlices | None], healthy: Healthy, observer: Observer
    ) -> None:
        """Keep slices in the status of the own Node once `healthy` confirms the slices; runs until cancelled."""
        await SliceStatus(self.client, self.name, healthy, observer).keep(self.node, slices)

    async def keep_condition(self, state: Callable[[], State]) -> None:
        """Keep the condition `GpuSharingReady` of the own Node in line with `state`; runs until cancelled."""
        await self._condition.keep(self.node, state)

    async def send_events(self, backlog: Backlog) -> None:
        """Send the Events of the backlog; runs until cancelled."""
        await EventSender(self.client, Reporter(EVENT_COMPONENT, self.name), EVENT_REMEDY).send(backlog)

    async def evict(self, namespace: str, pod: str, uid: str) -> bool:
        """Evict a pod; return False if the pod is already gone. Raises EvictionError."""
        return await evict(self.client, ObjectIdentity(namespace, pod, uid))

    @property
    def container_ids(self) -> Mapping[tuple[str, str, str], str]:
        """The container IDs of this node, by namespace, pod and container; empty if pods are not followed."""
        return {} if self.pods is None else self.pods.container_ids

    async def publish_pods(self, annotations: Published[Mapping[str, Mapping[str, str]]]) -> None:
        """Keep gpushare's annotations on the pods of this node in line with `annotations`; runs until cancelled.

        `annotations` has the annotations of each pod by the pod's UID. If pods are not followed, return at once.
        """
        if self.pods is not None:
            await PodWriter(self.client, self.pods).write(annotations)
