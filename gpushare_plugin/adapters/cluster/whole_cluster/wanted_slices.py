"""Writes the slices that are wanted of a node on its Node, and removes them again."""

import asyncio

from gpushare_plugin.adapters.cluster.client import NODES, Client, ClusterError, Object, decoded
from gpushare_plugin.adapters.cluster.objects import ApiNode
from gpushare_plugin.model.slices.wanted import WANTED_SLICES, Wanted, encode

PARTITIONER = "gpushare-partitioner"
"""The field manager of the annotation."""


async def write_wanted(  # noqa: PLR0913, PLR0917 - what is written, and provided what
    client: Client, name: str, uid: str, version: str, wanted: Wanted, within: float
) -> str:
    """Write what is wanted of a Node that is still as it was read, in `within` seconds; return its version then.

    Raises ClusterError, with the status 409 where the Node has changed, or is another one of that name.
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
    """Remove what is wanted of a Node, whoever wrote that; raises ClusterError."""
    metadata = {"uid": node["metadata"]["uid"], "annotations": {WANTED_SLICES: None}}
    path, query = f"{NODES}/{node['metadata']['name']}", {"fieldManager": PARTITIONER}
    await client.request("PATCH", path, query, {"metadata": metadata}, "application/merge-patch+json")
