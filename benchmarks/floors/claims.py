"""A bare `grpc.aio` server that answers the kubelet's calls for a claim with constants.

`python -m benchmarks.floors.claims ENDPOINT REGISTRATION ANSWER`: both sockets, and the file with the answer.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import grpc

from benchmarks.floors.server import constant
from gpushare_plugin.kubelet.api import dra_v1_pb2 as api
from gpushare_plugin.kubelet.api import pluginregistration_pb2 as registration


async def serve(endpoint: Path, registry: Path, answer: bytes) -> None:
    """Serve until killed."""
    prepared = api.NodePrepareResourcesResponse.FromString(answer)
    services: tuple[tuple[Path, str, dict[str, grpc.RpcMethodHandler[Any, Any]]], ...] = (
        (
            endpoint,
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
            {"NodePrepareResources": constant(api.NodePrepareResourcesRequest, prepared)},
        ),
        (
            registry,
            "pluginregistration.Registration",
            {"GetInfo": constant(registration.InfoRequest, registration.PluginInfo(type="DRAPlugin"))},
        ),
    )
    servers = [grpc.aio.server() for _ in services]
    for server, (socket, service, methods) in zip(servers, services, strict=True):
        server.add_registered_method_handlers(service, methods)
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]).read_bytes()))
