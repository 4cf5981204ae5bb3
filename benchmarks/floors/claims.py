"""A bare `grpc.aio` server that answers the kubelet's calls for a claim with constants.

`python -m benchmarks.floors.claims ENDPOINT REGISTRATION ANSWER`: both sockets, and the file with the answer.
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from benchmarks.floors.server import constant
from gpushare_plugin.kubelet.api import dra_v1_pb2 as api
from gpushare_plugin.kubelet.api import pluginregistration_pb2 as registration

SERVICE, METHOD = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "NodePrepareResources"
REGISTRATION = "pluginregistration.Registration"

Methods = Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]

_servers: list[grpc.aio.Server] = []
"""Keeps the servers: one that nobody knows any more stops."""


async def serve_at(socket: Path, service: str, methods: Methods) -> None:
    """Serve the methods of a service at a socket until the process ends."""
    server = grpc.aio.server()
    server.add_registered_method_handlers(service, dict(methods))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    _servers.append(server)


async def serve(endpoint: Path, registry: Path, answer: bytes) -> None:
    """Serve until killed."""
    prepared = api.NodePrepareResourcesResponse.FromString(answer)
    await serve_at(endpoint, SERVICE, {METHOD: constant(api.NodePrepareResourcesRequest, prepared)})
    info = constant(registration.InfoRequest, registration.PluginInfo(type="DRAPlugin"))
    await serve_at(registry, REGISTRATION, {"GetInfo": info})
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]).read_bytes()))
