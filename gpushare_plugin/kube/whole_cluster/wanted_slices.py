"""Writes the wanted slices of a node into an annotation of its Node, and removes the annotation."""

import asyncio

from gpushare_plugin.kube.client import NODES, Client, ClusterError, Object, decoded
from gpushare_plugin.kube.objects import ApiNode
from gpushare_plugin.slices.wanted import WANTED_SLICES, Wanted, encode

PARTITIONER = "gpushare-partitioner"
"""The field manager of the annotation."""


async def write_wanted(  # noqa: PLR0913, PLR0917 - the Node, its expected state, and the wanted slices
    client: Client, name: str, uid: str, version: str, wanted: Wanted, within: float
) -> str:
    """Write the wanted slices of a Node of this UID and version, in at most `within` seconds; return the new version.

    Raises ClusterError, with the status 409 if the Node has changed or if a new Node has the name.
    """
    path = f"{NODES}/{name}"
    metadata = {"uid": uid, "resourceVersion": version, "annotations": {WANTED_SLICES: encode(wanted)}}
    try:
        async with asyncio.timeout(within):
            answer = await client.request(
                "PATCH",
                path,
                {"fieldManager": PARTITIONER},
                {"metadata": metadata},
                "application/merge-patch+json",
            )
    except TimeoutError as error:
        raise ClusterError(f"PATCH {path}: no answer within the {within:.1f} s that this process leads") from error
    return decoded(answer, ApiNode, path).metadata.resource_version


async def remove_wanted(client: Client, node: Object) -> None:
    """Remove the wanted slices of a Node, whoever wrote the annotation; raises ClusterError."""
    metadata = {"uid": node["metadata"]["uid"], "annotations": {WANTED_SLICES: None}}
    path, query = f"{NODES}/{node['metadata']['name']}", {"fieldManager": PARTITIONER}
    await client.request("PATCH", path, query, {"metadata": metadata}, "application/merge-patch+json")
