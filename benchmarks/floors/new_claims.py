"""A bare `grpc.aio` server that reads a claim and writes two files before it answers the kubelet with a constant.

`python -m benchmarks.floors.new_claims FOLDER URL`: the folder has `answer`, `record` and `specification`, and gets the
sockets `endpoint` and `registration`; at the URL is the claim. As the daemon does, the floor writes the record twice:
before the specification, and when all is done.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import msgspec

from benchmarks.floors.claims import METHOD, REGISTRATION, SERVICE, serve_at
from gpushare_plugin.kubelet.api import dra_v1_pb2 as api

Context = grpc.aio.ServicerContext[Any, Any]


class Floor:
    """Answers the kubelet's calls for new claims."""

    def __init__(self, folder: Path, url: str, session: aiohttp.ClientSession) -> None:
        """Answer what is in the folder, and write into it."""
        self._answer = api.NodePrepareResourcesResponse.FromString((folder / "answer").read_bytes())
        self._record, self._specification = ((folder / name).read_text() for name in ("record", "specification"))
        self._folder = folder
        self._url = url
        self._session = session

    async def prepare(
        self, _request: api.NodePrepareResourcesRequest, _context: Context
    ) -> api.NodePrepareResourcesResponse:
        """Read the claim, write the files, and answer."""
        async with self._session.get(self._url) as response:
            msgspec.json.decode(await response.read())
        for name, content in (("r", self._record), ("s", self._specification), ("r", self._record)):
            new = self._folder / f"{name}.new"
            new.write_text(content)
            new.rename(self._folder / name)
        return self._answer


async def serve(folder: Path, url: str) -> None:
    """Serve until killed."""
    async with aiohttp.ClientSession() as session:
        method = grpc.unary_unary_rpc_method_handler(
            Floor(folder, url, session).prepare,
            request_deserializer=api.NodePrepareResourcesRequest.FromString,
            response_serializer=api.NodePrepareResourcesResponse.SerializeToString,
        )
        await serve_at(folder / "endpoint", SERVICE, {METHOD: method})
        await serve_at(folder / "registration", REGISTRATION, {})
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
