"""This node as a member of the cluster: what its Node and a ConfigMap request, and the way to publish on its Node."""

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

from gpushare_plugin.adapters.cluster import names
from gpushare_plugin.adapters.cluster.client import NODES, Client, Object, configmaps
from gpushare_plugin.adapters.cluster.collection import follow_object
from gpushare_plugin.adapters.cluster.events.backlog import Backlog
from gpushare_plugin.adapters.cluster.events.event import Reporter
from gpushare_plugin.adapters.cluster.events.sender import EventSender
from gpushare_plugin.adapters.cluster.identity import ObjectIdentity
from gpushare_plugin.adapters.cluster.own_node.condition import ConditionWriter, State
from gpushare_plugin.adapters.cluster.own_node.eviction import evict
from gpushare_plugin.adapters.cluster.own_node.owned_fields import metadata
from gpushare_plugin.adapters.cluster.own_node.pod_writer import PodWriter
from gpushare_plugin.adapters.cluster.own_node.pods import OwnPods
from gpushare_plugin.adapters.cluster.own_node.publisher import Publisher
from gpushare_plugin.adapters.cluster.own_node.requests.cordon import cordon
from gpushare_plugin.adapters.cluster.own_node.requests.wanted_slices import requested_slices
from gpushare_plugin.adapters.cluster.own_node.slice_status import Healthy, Observer, SliceStatus
from gpushare_plugin.config.directives import READ
from gpushare_plugin.foundation.published import Published, changes
from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.model.health import Cordon
from gpushare_plugin.model.partition.request import SliceRequest
from gpushare_plugin.model.slices.slice import SchedulableSlices
from gpushare_plugin.model.snapshot import Snapshot

_log = structlog.get_logger()

EVENT_COMPONENT = "gpushare"
"""Who reports the Events of a node."""
EVENT_REMEDY = "grant create and patch of events (in the chart: cluster.events)"

FIRST_ANSWER = 10.0
"""Seconds the start waits for the API server: without an answer, GPUs are offered as on a node without labels."""


class Member:
    """One node's part in the cluster."""

    def __init__(  # noqa: PLR0913 - what taking part means
        self,
        client: Client,
        node_name: str,
        *,
        node_labels: bool,
        cordon_configmap: bool = True,
        follow_pods: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take part as the node of this name; `node_labels` says whether NVIDIA's labels are ours to write.

        `cordon_configmap` says whether the ConfigMap that cordons GPUs is read, `follow_pods` whether to follow the
        node's pods. `clock` returns the time of day, in seconds since 1970.
        """
        self._client = client
        self._name = node_name
        self._publisher = Publisher(client, node_name, node_labels=node_labels, clock=clock)
        self._condition = ConditionWriter(client, node_name, clock)
        self._node: Published[Object | None] = Published(None)
        # A kubelet creates its Node again after it was deleted: until then, what the last one requested stays in force.
        self._last_node: Object | None = None
        self._configmap: Published[Object | None] = Published(None)
        self._answered = {"node": asyncio.Event(), "configmap": asyncio.Event()}
        self._reads_configmap = cordon_configmap
        self.pods = OwnPods(client, node_name) if follow_pods else None
        """The pods of this node, None where they are not followed."""
        if self.pods is not None:
            self._answered["pods"] = self.pods.answered

    @property
    def api_errors(self) -> Mapping[str, int]:
        """The requests to the API server that failed, by kind."""
        return self._client.errors

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the node that the config depends on, none before the API server has answered."""
        labels = metadata(self._last_node, "labels")
        return {key: labels[key] for key in sorted(READ & labels.keys())}

    async def answered(self, within: float = FIRST_ANSWER) -> bool:
        """Wait until it is known what the cluster requests of this node, or `within` seconds; return whether it is.

        A server that forbids us to know has answered.
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
        """Follow our Node; runs until cancelled."""
        consequence = "labels and cordon annotation of this Node are not followed, and nothing is published on it"
        answered = self._answered["node"].set
        async for node in follow_object(self._client, NODES, self._name, consequence, forbidden=answered):
            if node is None:
                _log.warning("node_not_found", node=self._name)
            self._last_node = node or self._last_node
            self._node.publish(node)
            answered()

    async def follow_configmap(self) -> None:
        """Follow the ConfigMap that cordons GPUs; runs until cancelled, or returns where it is not to be read."""
        path, name = configmaps(names.CORDON_NAMESPACE), names.cordon_configmap(self._name)
        consequence = "changes to the ConfigMap that cordons GPUs are not followed"
        answered = self._answered["configmap"].set
        if not self._reads_configmap:
            answered()
            return
        async for found in follow_object(self._client, path, name, consequence, forbidden=answered):
            self._configmap.publish(found)
            answered()

    def cordon(self, inventory: Inventory) -> Cordon:
        """Return which of these GPUs people have cordoned."""
        annotation = metadata(self._last_node, "annotations").get(names.UNHEALTHY_GPUS, "")
        configmap = self._configmap.value
        data = None if configmap is None else configmap.get("data") or {}
        return cordon(self._name, annotation, data, inventory.cards)

    async def follow_requests(
        self,
        labels: Mapping[str, str],
        snapshots: Published[Snapshot],
        set_cordon: Callable[[Cordon], None],
        reload: Callable[[], None],
    ) -> None:
        """Call `set_cordon` with the GPUs that are cordoned, and `reload` once the labels are others than `labels`.

        Runs until cancelled.
        """
        # The GPUs themselves can change, and with them which one an index means.
        async for _ in changes(self._node, self._configmap, snapshots):
            set_cordon(self.cordon(snapshots.value.inventory))
            if self.labels != labels:
                labels = self.labels
                _log.info("node_labels_changed", labels=labels)
                reload()

    def requested_slices(self, snapshot: Snapshot) -> SliceRequest:
        """Return which slices the annotations of the Node request of a node as it is."""
        annotations = metadata(self._last_node, "annotations")
        return requested_slices(annotations, snapshot.inventory, snapshot.partitioning or "mps")

    async def follow_slices(self, snapshots: Published[Snapshot], request: Callable[[SliceRequest], None]) -> None:
        """Call `request` with the slices that the annotations of the Node request; runs until cancelled."""
        async for _ in changes(self._node, snapshots):
            request(self.requested_slices(snapshots.value))

    async def publish_node(self, snapshots: Published[Snapshot]) -> None:
        """Keep labels, annotation and capacity on our Node as the newest snapshot says; runs until cancelled."""
        await self._publisher.publish(self._node, snapshots)

    async def publish_slices(
        self, slices: Published[SchedulableSlices | None], healthy: Healthy, observer: Observer
    ) -> None:
        """Keep slices in the status of our Node as soon as they are confirmed as `healthy`; runs until cancelled."""
        await SliceStatus(self._client, self._name, healthy, observer).keep(self._node, slices)

    async def keep_condition(self, state: Callable[[], State]) -> None:
        """Keep the condition `GpuSharingReady` of our Node as `state` says; runs until cancelled."""
        await self._condition.keep(self._node, state)

    async def send_events(self, backlog: Backlog) -> None:
        """Send the Events that come into the backlog; runs until cancelled."""
        await EventSender(self._client, Reporter(EVENT_COMPONENT, self._name), EVENT_REMEDY).send(backlog)

    async def evict(self, namespace: str, pod: str, uid: str) -> bool:
        """Evict a pod; return False where it is gone already. Raises EvictionError."""
        return await evict(self._client, ObjectIdentity(namespace, pod, uid))

    @property
    def container_ids(self) -> Mapping[tuple[str, str, str], str]:
        """The IDs of the containers of this node, by namespace, pod and container; none where pods are not followed."""
        return {} if self.pods is None else self.pods.container_ids

    async def publish_pods(self, annotations: Published[Mapping[str, Mapping[str, str]]]) -> None:
        """Keep our annotations on the pods of this node, by UID, as the newest value says; runs until cancelled."""
        if self.pods is not None:
            await PodWriter(self._client, self.pods).write(annotations)
