"""Removes the fields written by gpushare on Nodes, and the Leases of gpushare."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from http import HTTPStatus

import msgspec

from gpushare_plugin.kube.client import NODES, Client, ClusterError, Object, named
from gpushare_plugin.kube.collection import pages
from gpushare_plugin.kube.lease import leases
from gpushare_plugin.kube.names import EXTENDER_LEASE, PARTITIONER_LEASE
from gpushare_plugin.kube.own_node.condition import condition, remove_condition
from gpushare_plugin.kube.own_node.publisher import (
    OwnedFields,
    apply_capacity,
    apply_metadata,
    metadata,
    owned_fields,
)
from gpushare_plugin.kube.whole_cluster.wanted_slices import remove_wanted
from gpushare_plugin.slices.wanted import WANTED_SLICES


async def clean_nodes(client: Client, node_name: str | None = None) -> AsyncIterator[tuple[str, ClusterError | None]]:
    """Remove all fields of gpushare from one Node or from all Nodes; yield each affected Node with its error or None.

    Raises ClusterError if the Nodes cannot be listed, or if no Node has the name.
    """
    found = False
    async with aclosing(pages(client, NODES, named(node_name))) as listing:
        async for page in listing:
            for item in page.items or ():
                found = True
                node: Object = msgspec.json.decode(item)
                try:
                    if await _clean(client, node):
                        yield node["metadata"]["name"], None
                except ClusterError as error:
                    yield node["metadata"]["name"], error
    if node_name is not None and not found:
        raise ClusterError(f"Node {node_name} not found; `kubectl get nodes` lists the names")


async def _clean(client: Client, node: Object) -> bool:
    """Remove all fields of gpushare from a Node; return whether the Node had any."""
    owned = owned_fields(node) != OwnedFields()
    has_condition = condition(node) is not None
    has_wanted = WANTED_SLICES in metadata(node, "annotations")
    if owned:
        await apply_metadata(client, node, OwnedFields())
        await apply_capacity(client, node, OwnedFields())
    if has_condition:
        await remove_condition(client, node)
    if has_wanted:
        await remove_wanted(client, node)
    return owned or has_condition or has_wanted


async def delete_leases(client: Client, namespace: str) -> AsyncIterator[tuple[str, ClusterError | None]]:
    """Delete the Leases of extenders and partitioners; yield each existing Lease with its error or None."""
    for name in (EXTENDER_LEASE, PARTITIONER_LEASE):
        try:
            await client.request("DELETE", f"{leases(namespace)}/{name}")
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                yield f"Lease {namespace}/{name}", error
        else:
            yield f"Lease {namespace}/{name}", None
