"""Writes the slices that are wanted of a node on its Node."""

import asyncio

from gpushare_plugin.adapters.cluster.client import NODES, Client, ClusterError
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.partition.wanted import WANTED_SLICES, Wanted, encode

PARTITIONER = "gpushare-partitioner"
"""The field manager of the annotation."""


class NodeIdentity(Struct, frozen=True):
    """Which Node is meant: one that is made anew under the same name is another."""

    name: str
    uid: str


async def write_wanted(client: Client, node: NodeIdentity, wanted: Wanted, within: float) -> None:
    """Write what is wanted of a node, in `within` seconds; raises ClusterError.

    With the UID, this can never create a Node that has just been deleted.
    """
    path = f"{NODES}/{node.name}"
    metadata = {"name": node.name, "uid": node.uid, "annotations": {WANTED_SLICES: encode(wanted)}}
    try:
        async with asyncio.timeout(within):
            await client.apply(path, PARTITIONER, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    except TimeoutError as error:
        raise ClusterError(f"PATCH {path}: no answer within the {within:.1f} s that this process leads") from error
