"""Keeps the account equal to the cluster: every Node and every Pod, listed and watched."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from gpushare_plugin.adapters.cluster.accounts import account_node, account_pod
from gpushare_plugin.adapters.cluster.client import NODES, Client
from gpushare_plugin.adapters.cluster.collection import Collection, Gone, Listed, Put
from gpushare_plugin.adapters.cluster.objects import Node, Pod
from gpushare_plugin.model.account.cluster import ClusterAccount
from gpushare_plugin.programs.scheduler.cordons import Cordons

PODS = "/api/v1/pods"


class ClusterFollower:
    """Fills one account; it is complete once Nodes and Pods have been listed.

    Each collection can be followed once: it says what changed since it was listed first, so another attempt would not
    remove what went in between. After a defect, another account is filled from the beginning.
    """

    def __init__(self, client: Client, account: ClusterAccount, cordon_nodes: Sequence[str] = ()) -> None:
        """Fill `account`, which knows nothing yet; of `cordon_nodes` Aliyun's ConfigMaps that cordon GPUs are read."""
        self._account = account
        consequence = "pods are placed by what {} before"
        self._nodes = Collection(client, NODES, Node, consequence=consequence.format("nodes offered"))
        self._pods = Collection(client, PODS, Pod, consequence=consequence.format("pods held"))
        self._cordons = Cordons(client, cordon_nodes, self._cordon)
        # Those of Aliyun's plugin, where their ConfigMaps are read.
        self._plain: dict[str, Node] | None = {} if cordon_nodes else None
        self._listed = {"nodes": asyncio.Event(), "pods": asyncio.Event()}

    @property
    def missing(self) -> list[str]:
        """What has not been listed yet."""
        return [name for name, event in self._listed.items() if not event.is_set()]

    @property
    def age(self) -> float | None:
        """Seconds since the API server last sent anything of the one it was silent about longer; None before a list."""
        heard = [each.heard_at for each in (self._nodes, self._pods)]
        now = asyncio.get_running_loop().time()
        return None if None in heard else max(now - at for at in heard if at is not None)

    async def complete(self) -> None:
        """Wait until everything has been listed, and prepare for the first requests."""
        for event in self._listed.values():
            await event.wait()
        await self._cordons.complete()
        for name in self._account.nodes():
            # The account of a node is made when it is asked for; the first request asks for those of all nodes.
            self._account.node(name)
            await asyncio.sleep(0)

    async def follow_nodes(self) -> None:
        """Follow every Node; runs until cancelled."""
        async with aclosing(self._nodes.changes()) as changes:
            async for change in changes:
                match change:
                    case Put(node):
                        self._put_node(node)
                    case Gone(name=name):
                        self._account.remove_node(name)
                        if self._plain is not None:
                            self._plain.pop(name, None)
                    case Listed():
                        self._listed["nodes"].set()

    def _put_node(self, node: Node) -> None:
        name = node.metadata.name
        found = account_node(node, self._cordons.of(name))
        self._account.put_node(found)
        if self._plain is not None:
            self._plain.pop(name, None)
            if not found.recorded and found.offers:
                self._plain[name] = node

    async def follow_cordons(self) -> None:
        """Follow the ConfigMaps that cordon GPUs; runs until cancelled."""
        await self._cordons.follow()

    def _cordon(self, name: str) -> None:
        if self._plain and (node := self._plain.get(name)) is not None:
            self._put_node(node)

    async def follow_pods(self) -> None:
        """Follow every Pod; runs until cancelled."""
        async with aclosing(self._pods.changes()) as changes:
            async for change in changes:
                match change:
                    case Put(pod):
                        self._account.put_pod(account_pod(pod))
                    case Gone(uid=uid):
                        self._account.remove_pod(uid)
                    case Listed():
                        self._listed["pods"].set()
