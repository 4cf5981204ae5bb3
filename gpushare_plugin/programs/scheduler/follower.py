"""Keeps the account of the extender equal to the cluster, with the GPUs that Aliyun's ConfigMaps cordon.

It does so also while another extender leads: so whoever takes over has listed everything before.
"""

import asyncio
from collections.abc import Iterable, Sequence

import structlog

from gpushare_plugin.adapters.cluster.client import Client
from gpushare_plugin.adapters.cluster.collection import Gone
from gpushare_plugin.adapters.cluster.nodes import node_of
from gpushare_plugin.adapters.cluster.objects import ApiNode, ApiPod
from gpushare_plugin.adapters.cluster.pods import pod_of
from gpushare_plugin.adapters.cluster.scheduling.binding import pods_on
from gpushare_plugin.adapters.cluster.scheduling.budgets import BudgetFollower
from gpushare_plugin.adapters.cluster.whole_cluster.following import ClusterFollower, Objects
from gpushare_plugin.model.account.cluster import ClusterAccount
from gpushare_plugin.model.account.node import Node
from gpushare_plugin.model.account.search.disruption import Disruptions
from gpushare_plugin.programs.scheduler.aliyun.cordons import Cordons

_log = structlog.get_logger()

_AGAIN = 0.1
"""Seconds until the API server is asked again which pods are on a node."""


class AccountFollower:
    """Fills one account; it is complete once Nodes, Pods and ConfigMaps have been listed."""

    def __init__(self, client: Client, account: ClusterAccount, cordon_nodes: Sequence[str] = ()) -> None:
        """Fill `account`, which knows nothing yet; of `cordon_nodes` Aliyun's ConfigMaps that cordon GPUs are read."""
        self._client = client
        self._account = account
        self.disruptions = Disruptions()
        """What evictions of pods would disrupt."""
        consequence = "pods are placed by what {} before"
        self._cluster = ClusterFollower(
            client,
            Objects(ApiNode, self._put_node, self._remove_node, consequence.format("nodes offered")),
            Objects(
                ApiPod,
                lambda pod: account.put_pod(pod_of(pod, evictable=True)),
                lambda gone: account.remove_pod(gone.uid),
                consequence.format("pods held"),
            ),
        )
        self._cordons = Cordons(client, cordon_nodes, self._cordon)
        self._budgets = BudgetFollower(client, self.disruptions)
        # Why the records of nodes cannot be read, as it was logged.
        self._unreadable: dict[str, str] = {}
        # Those of Aliyun's plugin, where their ConfigMaps are read.
        self._plain: dict[str, ApiNode] | None = {} if cordon_nodes else None

    @property
    def missing(self) -> list[str]:
        """What has not been listed yet."""
        return self._cluster.missing

    @property
    def age(self) -> float | None:
        """How old what is known may be, in seconds; None before everything was listed."""
        return self._cluster.age

    async def complete(self) -> None:
        """Wait until everything has been listed."""
        await self._cluster.listed()
        await self._cordons.complete()

    async def prepare(self) -> None:
        """Prepare for the first requests of a term."""
        for name in list(self._account.nodes):
            # The account of a node is made when it is asked for; the first request asks for those of all nodes.
            self._account.node(name)
            await asyncio.sleep(0)

    def handover(self) -> "Handover":
        """Return what a new term begins with."""
        return Handover(self._client, self._account, self._cluster)

    async def follow(self) -> None:
        """Follow Nodes, Pods, ConfigMaps and PodDisruptionBudgets; runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cluster.follow())
            group.create_task(self._cordons.follow())
            group.create_task(self._budgets.follow())

    def _put_node(self, node: ApiNode) -> None:
        name = node.metadata.name
        found = node_of(node, self._cordons.of(name))
        self._log_unreadable(found)
        self._account.put_node(found)
        if self._plain is not None:
            self._plain.pop(name, None)
            if not found.recorded and found.offers:
                self._plain[name] = node

    def _remove_node(self, gone: Gone) -> None:
        self._account.remove_node(gone.name)
        self._unreadable.pop(gone.name, None)
        if self._plain is not None:
            self._plain.pop(gone.name, None)

    def _log_unreadable(self, node: Node) -> None:
        """Log that a record cannot be read, once until that changes: a Node changes every few seconds."""
        if node.unreadable is None:
            self._unreadable.pop(node.name, None)
        elif self._unreadable.get(node.name) != node.unreadable:
            self._unreadable[node.name] = node.unreadable
            _log.error("record_unreadable", node=node.name, reason=node.unreadable)

    def _cordon(self, name: str) -> None:
        if self._plain and (node := self._plain.get(name)) is not None:
            self._put_node(node)


class Handover:
    """Whether the account has every Binding of the leaders before this term; the watch that fills it can be behind.

    A pod that this leader has bound was bound after all of theirs, and a watch shows changes in their order: once it
    has shown that pod, nothing is missing. Until then, each node is compared with what the API server has there.
    """

    def __init__(self, client: Client, account: ClusterAccount, cluster: ClusterFollower) -> None:
        """Begin a term: of no node it is known that the account, which `cluster` fills, has everything."""
        self._client = client
        self._account = account
        self._cluster = cluster
        self._compared: set[str] = set()
        self._bound: set[str] = set()
        self._complete = False

    def bound(self, uid: str) -> None:
        """Take note of a pod that was bound in this term."""
        if not self._complete:
            self._bound.add(uid)

    async def complete_on(self, node: str) -> None:
        """Wait until the account has every pod that is bound to a node; raises ClusterError."""
        if not self._complete and self._cluster.pods_in_order and self._unseen(self._bound) < self._bound:
            self._complete = True
            self._bound.clear()
            self._compared.clear()
        if self._complete or node in self._compared:
            return
        while self._unseen(await pods_on(self._client, node)):  # noqa: ASYNC110 - what it has sets no event
            await asyncio.sleep(_AGAIN)
        self._compared.add(node)

    def _unseen(self, uids: Iterable[str]) -> set[str]:
        """Return those of the pods, each bound somewhere, that the watch has not shown as bound."""
        found = {uid: self._account.pods.get(uid) for uid in uids}
        return {uid for uid, pod in found.items() if pod is None or pod.node is None}
