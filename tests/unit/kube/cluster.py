"""A cluster for tests: an API server with one GPU node, and a member of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gpushare_plugin.kube.client import NODES, Client, Timing, configmaps
from gpushare_plugin.kube.own_node.member import Member
from gpushare_plugin.kube.own_node.publisher import OwnedFields, owned_fields
from gpushare_plugin.testing.cluster import ApiServer

NODE = "gpu-1"
CONFIGMAP = f"unhealthy-gpu-{NODE}"
CONFIGMAPS = configmaps("kube-system")
NOW = 1_760_000_000
"""What the clock says."""
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


@asynccontextmanager
async def member_of(
    server: ApiServer, folder: Path, *, node_labels: bool = True, cordon_configmap: bool = True, now: float = NOW
) -> AsyncIterator[tuple[Member, Client]]:
    """Run a member that follows its node and the ConfigMap."""
    async with Client(server.kubeconfig(folder / "kubeconfig"), QUICK) as client:
        member = Member(client, NODE, node_labels=node_labels, cordon_configmap=cordon_configmap, clock=lambda: now)
        following = [asyncio.create_task(member.follow_node()), asyncio.create_task(member.follow_configmap())]
        try:
            yield member, client
        finally:
            for task in following:
                task.cancel()
            await asyncio.wait(following)
