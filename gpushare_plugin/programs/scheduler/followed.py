"""Keeps the account equal to the cluster: every Node and every Pod, listed and watched."""

import asyncio
from contextlib import aclosing

from gpushare_plugin.adapters.cluster.accounts import account_node, account_pod
from gpushare_plugin.adapters.cluster.client import NODES, Client
from gpushare_plugin.adapters.cluster.collection import Collection, Gone, Listed, Put
from gpushare_plugin.adapters.cluster.objects import Node, Pod
from gpushare_plugin.model.account.cluster import ClusterAccount

PODS = "/api/v1/pods"


class Followed:
    """The cluster as it is followed into an account; complete once Nodes and Pods have been listed."""

    def __init__(self, client: Client, account: ClusterAccount) -> None:
        """Fill `account`."""
        self._client = client
        self._account = account
        self._listed = {"nodes": asyncio.Event(), "pods": asyncio.Event()}

    @property
    def missing(self) -> list[str]:
        """What has not been listed yet."""
        return [name for name, event in self._listed.items() if not event.is_set()]

    async def complete(self) -> None:
        """Wait until everything has been listed."""
        for event in self._listed.values():
            await event.wait()

    async def follow_nodes(self) -> None:
        """Follow every Node; runs until cancelled."""
        consequence = "pods are placed by what nodes offered before"
        nodes = Collection(self._client, NODES, Node, consequence=consequence)
        async with aclosing(nodes.changes()) as changes:
            async for change in changes:
                match change:
                    case Put(node):
                        self._account.put_node(account_node(node))
                    case Gone(name=name):
                        self._account.remove_node(name)
                    case Listed():
                        self._listed["nodes"].set()

    async def follow_pods(self) -> None:
        """Follow every Pod; runs until cancelled."""
        consequence = "pods are placed by what pods held before"
        pods = Collection(self._client, PODS, Pod, consequence=consequence)
        async with aclosing(pods.changes()) as changes:
            async for change in changes:
                match change:
                    case Put(pod):
                        self._account.put_pod(account_pod(pod))
                    case Gone(uid=uid):
                        self._account.remove_pod(uid)
                    case Listed():
                        self._listed["pods"].set()
