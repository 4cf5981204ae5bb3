"""Pods with claims that come and go on a node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpushare_plugin.testing.kubelet import Pod
from tests.node.claims.node import ClaimNode


@asynccontextmanager
async def pods_come_and_go(node: ClaimNode) -> AsyncIterator[list[Pod]]:
    """Let pods in and end them, one after the other, until the block ends; yields the pods that have started.

    A pod that is refused breaks the block.
    """
    started: list[Pod] = []
    stopped = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_stream(node, started, stopped))
        try:
            yield started
        finally:
            stopped.set()


async def _stream(node: ClaimNode, started: list[Pod], stopped: asyncio.Event) -> None:
    while not stopped.is_set():
        pod = node.pod(f"pod{len(started)}", {"memory": "40Gi"})
        node.scheduler.schedule(pod)
        await node.kubelet.admit(pod)
        started.append(pod)
        await node.kubelet.end(pod)
        node.scheduler.release(pod)
