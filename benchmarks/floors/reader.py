"""Reads all Nodes and pods of a cluster over HTTP, decodes them, and does nothing more.

Arguments: the kubeconfig, and how many objects a page has.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec

from gpushare_plugin.kube.objects import ApiNode, ApiPod, Kept, ListMetadata

T = TypeVar("T")


class Page(Kept, Generic[T], frozen=True):
    """A page of a list, with the fields that gpushare keeps."""

    metadata: ListMetadata = ListMetadata()
    items: list[T] | None = None


async def read(config: Mapping[str, Any], limit: str) -> None:
    """Read both lists at the same time from the API server of a kubeconfig."""
    headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
    async with aiohttp.ClientSession(config["clusters"][0]["cluster"]["server"], headers=headers) as session:
        await asyncio.gather(
            _pages(session, "/api/v1/nodes", msgspec.json.Decoder(Page[ApiNode]), limit),
            _pages(session, "/api/v1/pods", msgspec.json.Decoder(Page[ApiPod]), limit),
        )


async def _pages(session: aiohttp.ClientSession, path: str, decoder: msgspec.json.Decoder[Page[T]], limit: str) -> None:
    token = ""
    while True:
        async with session.get(path, params={"limit": limit, "continue": token}) as response:
            page = decoder.decode(await response.read())
        if not (token := page.metadata.continue_):
            return


if __name__ == "__main__":
    asyncio.run(read(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]))
