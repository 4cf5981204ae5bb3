"""A cluster for tests: an API server with one GPU node, and a member of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from gpushare_plugin.adapters.cluster.client import NODES, Client, Timing, configmaps
from gpushare_plugin.adapters.cluster.member import Member
from gpushare_plugin.adapters.cluster.owned_fields import OwnedFields, owned_fields
from gpushare_plugin.testing.cluster import ApiServer

NODE = "gpu-1"
CONFIGMAP = f"unhealthy-gpu-{NODE}"
CONFIGMAPS = configmaps("kube-system")
PATIENCE = 30.0
"""Seconds until a test gives up; nothing takes as long on any machine that tests can run on."""

QUICK = Timing(request=20.0, watch=60.0, first_wait=0.01, longest_wait=0.05)
"""Short waits between attempts, and timeouts that no test reaches."""


def label(server: ApiServer, key: str, value: str | None, manager: str = "kubectl") -> None:
    """Set a label of the node, or remove it."""
    server.store.update(NODES, NODE, {("metadata", "labels", key): value}, manager)


def name_in_configmap(server: ApiServer, gpus: str | None) -> None:
    """List GPUs in the ConfigMap that cordons them."""
    server.store.update(CONFIGMAPS, CONFIGMAP, {("data", "gpus"): gpus})


def annotate(server: ApiServer, key: str, value: str | None) -> None:
    """Set an annotation of the node, or remove it."""
    server.store.update(NODES, NODE, {("metadata", "annotations", key): value})


def a_node(server: ApiServer) -> None:
    """Create the node, as the kubelet does."""
    server.store.update(NODES, NODE, {("metadata", "labels", "kubernetes.io/hostname"): NODE}, "kubelet")


def written(server: ApiServer) -> OwnedFields:
    """Return what gpushare has on the node."""
    (node,) = server.store.find(NODES, NODE)
    return owned_fields(node)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition that requests, or changes of the server's objects, make true."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what happens inside the member is no event of the server's
            await asyncio.sleep(0.01)


@asynccontextmanager
async def member_of(
    server: ApiServer, folder: Path, *, node_labels: bool = True
) -> AsyncIterator[tuple[Member, Client]]:
    """Run a member that follows its node and the ConfigMap."""
    async with Client(server.kubeconfig(folder / "kubeconfig"), QUICK) as client:
        member = Member(client, NODE, node_labels=node_labels)
        following = [asyncio.create_task(member.follow_node()), asyncio.create_task(member.follow_configmap())]
        try:
            yield member, client
        finally:
            for task in following:
                task.cancel()
            await asyncio.wait(following)
