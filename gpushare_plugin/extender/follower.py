"""Keeps the account of the extender equal to the cluster, with the GPUs cordoned by Aliyun's ConfigMaps.

An extender follows the cluster also while another extender leads, to have everything listed when taking over.
"""

import asyncio
from collections.abc import Iterable, Sequence

import structlog

from gpushare_plugin.extender.aliyun.cordons import Cordons
from gpushare_plugin.kube.client import Client
from gpushare_plugin.kube.collection import Gone
from gpushare_plugin.kube.nodes import node_of
from gpushare_plugin.kube.objects import ApiNode, ApiPod
from gpushare_plugin.kube.pods import pod_of
from gpushare_plugin.kube.scheduling.binding import pods_on
from gpushare_plugin.kube.scheduling.budgets import BudgetFollower
from gpushare_plugin.kube.whole_cluster.following import ClusterFollower, Objects
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.disruption import Disruptions
from gpushare_plugin.ledger.node import Node

_log = structlog.get_logger()

_AGAIN = 0.1
"""Seconds between two requests for the pods of a node, while the watch has not shown all of the pods."""


class AccountFollower:
    """Fills an account, complete once Nodes, Pods and ConfigMaps have been listed."""

    def __init__(
        self, client: Client, account: ClusterAccount, cordon_nodes: Sequence[str] = (), *, measured: bool = False
    ) -> None:
        """Fill the empty `account`, and read Aliyun's ConfigMaps with cordoned GPUs for `cordon_nodes`.

        With `measured`, pods have their CPU and memory.
        """
        self._client = client
        self._account = account
        self.disruptions = Disruptions()
        """The disruption budgets, and the costs of evictions."""
        consequence = "pods are placed by what {} before"
        self._cluster = ClusterFollower(
            client,
            Objects(ApiNode, self._put_node, self._remove_node, consequence.format("nodes offered")),
            Objects(
                ApiPod,
                lambda pod: account.put_pod(pod_of(pod, evictable=True, measured=measured)),
                lambda gone: account.remove_pod(gone.uid),
                consequence.format("pods held"),
            ),
        )
        self._cordons = Cordons(client, cordon_nodes, self._cordon)
        self._budgets = BudgetFollower(client, self.disruptions)
        # The logged reason, by node, of each record that cannot be read.
        self._unreadable: dict[str, str] = {}
        # The nodes of Aliyun's plugin by name; None where no ConfigMaps are read.
        self._plain: dict[str, ApiNode] | None = {} if cordon_nodes else None

    @property
    def missing(self) -> list[str]:
        """The kinds of objects not completely listed yet: nodes, pods, both or none."""
        return self._cluster.missing

    @property
    def age(self) -> float | None:
        """The most seconds that the account may be behind the cluster; None before everything was listed."""
        return self._cluster.age

    async def complete(self) -> None:
        """Wait until everything has been listed."""
        await self._cluster.listed()
        await self._cordons.complete()

    async def prepare(self) -> None:
        """Make the accounts of all nodes for the first requests of a term."""
        for name in list(self._account.nodes):
            # The account of a node is made on first use; the first request needs the accounts of all nodes.
            self._account.account_of(name)
            await asyncio.sleep(0)

    def handover(self) -> "Handover":
        """Return the Handover of a new term."""
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
        """Log that a record cannot be read, once for each reason: a Node changes every few seconds."""
        if node.unreadable is None:
            self._unreadable.pop(node.name, None)
        elif self._unreadable.get(node.name) != node.unreadable:
            self._unreadable[node.name] = node.unreadable
            _log.error("record_unreadable", node=node.name, reason=node.unreadable)

    def _cordon(self, name: str) -> None:
        if self._plain and (node := self._plain.get(name)) is not None:
            self._put_node(node)


class Handover:
    """Makes sure that the account has every Binding of earlier leaders; the watch of the account can be behind.

    This leader binds pods after all earlier leaders, and a watch shows changes in order. Once the watch shows a pod
    bound in this term, no earlier Binding is missing. Until then, each node is compared with the pods of the node in
    the API server.
    """

    def __init__(self, client: Client, account: ClusterAccount, cluster: ClusterFollower) -> None:
        """Begin a term with no node compared; `cluster` fills `account`."""
        self._client = client
        self._account = account
        self._cluster = cluster
        self._compared: set[str] = set()
        self._bound: set[str] = set()
        self._complete = False

    def bound(self, uid: str) -> None:
        """Note a pod bound in this term."""
        if not self._complete:
            self._bound.add(uid)

    async def complete_on(self, node: str) -> None:
        """Wait until the account has every pod bound to a node; raises ClusterError."""
        if not self._complete and self._cluster.pods_in_order and self._bound - self._unseen(self._bound):
            # The watch has shown a pod bound in this term, and therefore every earlier Binding.
            self._complete = True
            self._bound.clear()
            self._compared.clear()
        if self._complete or node in self._compared:
            return
        while self._unseen(await pods_on(self._client, node)):  # noqa: ASYNC110 - a list sets no event
            await asyncio.sleep(_AGAIN)
        self._compared.add(node)

    def _unseen(self, uids: Iterable[str]) -> set[str]:
        """Return the bound pods that the watch has not yet shown as bound."""
        found = {uid: self._account.pods.get(uid) for uid in uids}
        return {uid for uid, pod in found.items() if pod is None or pod.node is None}
