"""Pods that come to a node at once, again and again: `python -m benchmarks.kubelet.pods ENDPOINT PODS`.

Each pod has a claim that the DRA plugin at ENDPOINT is to prepare. The next pods come when all have been answered.
"""

import asyncio
import sys
from pathlib import Path

import grpc

from benchmarks.kubelet.claims import request
from gpushare_plugin.kubelet.api.dra_v1_pb2_grpc import DRAPluginStub

BETWEEN = 0.02
"""Seconds between the last answer and the next pods."""


async def main(endpoint: Path, pods: int) -> None:
    """Ask until killed."""
    async with grpc.aio.insecure_channel(f"unix:{endpoint}") as channel:
        calls = DRAPluginStub(channel)
        requests = [request(number) for number in range(pods)]
        while True:
            await asyncio.gather(*(calls.NodePrepareResources(each) for each in requests))
            print("answered", flush=True)  # noqa: T201 - whoever waits for the first pods reads it
            await asyncio.sleep(BETWEEN)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
