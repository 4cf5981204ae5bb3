"""Keeps the account of the extender equal to the cluster, with the GPUs that Aliyun's ConfigMaps cordon."""

import asyncio
from collections.abc import Sequence

import structlog

from gpushare_plugin.adapters.cluster.accounts import account_node, account_pod
from gpushare_plugin.adapters.cluster.client import Client
from gpushare_plugin.adapters.cluster.collection import Gone
from gpushare_plugin.adapters.cluster.objects import Node, Pod
from gpushare_plugin.adapters.cluster.whole_cluster.following import ClusterFollower, Objects
from gpushare_plugin.model.account.cluster import ClusterAccount
from gpushare_plugin.model.account.node import AccountNode
from gpushare_plugin.programs.scheduler.cordons import Cordons

_log = structlog.get_logger()


class AccountFollower:
    """Fills one account; it is complete once Nodes, Pods and ConfigMaps have been listed."""

    def __init__(self, client: Client, account: ClusterAccount, cordon_nodes: Sequence[str] = ()) -> None:
        """Fill `account`, which knows nothing yet; of `cordon_nodes` Aliyun's ConfigMaps that cordon GPUs are read."""
        self._account = account
        consequence = "pods are placed by what {} before"
        self._cluster = ClusterFollower(
            client,
            Objects(Node, self._put_node, self._remove_node, consequence.format("nodes offered")),
            Objects(Pod, self._put_pod, self._remove_pod, consequence.format("pods held")),
        )
        self._cordons = Cordons(client, cordon_nodes, self._cordon)
        # Why the records of nodes cannot be read, as it was logged.
        self._unreadable: dict[str, str] = {}
        # Those of Aliyun's plugin, where their ConfigMaps are read.
        self._plain: dict[str, Node] | None = {} if cordon_nodes else None

    @property
    def missing(self) -> list[str]:
        """What has not been listed yet."""
        return self._cluster.missing

    @property
    def age(self) -> float | None:
        """How old what is known may be, in seconds; None before everything was listed."""
        return self._cluster.age

    async def complete(self) -> None:
        """Wait until everything has been listed, and prepare for the first requests."""
        await self._cluster.listed()
        await self._cordons.complete()
        for name in self._account.nodes():
            # The account of a node is made when it is asked for; the first request asks for those of all nodes.
            self._account.node(name)
            await asyncio.sleep(0)

    async def follow(self) -> None:
        """Follow Nodes, Pods and ConfigMaps; runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cluster.follow())
            group.create_task(self._cordons.follow())

    def _put_node(self, node: Node) -> None:
        name = node.metadata.name
        found = account_node(node, self._cordons.of(name))
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

    def _log_unreadable(self, node: AccountNode) -> None:
        """Log that a record cannot be read, once until that changes: a Node changes every few seconds."""
        if node.unreadable is None:
            self._unreadable.pop(node.name, None)
        elif self._unreadable.get(node.name) != node.unreadable:
            self._unreadable[node.name] = node.unreadable
            _log.error("record_unreadable", node=node.name, reason=node.unreadable)

    def _cordon(self, name: str) -> None:
        if self._plain and (node := self._plain.get(name)) is not None:
            self._put_node(node)

    def _put_pod(self, pod: Pod) -> None:
        self._account.put_pod(account_pod(pod))

    def _remove_pod(self, gone: Gone) -> None:
        self._account.remove_pod(gone.uid)
