"""`gpushare web` as a person runs it, on a cluster of one node."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpushare_plugin.ledger.node_record import encode
from gpushare_plugin.testing.cluster import ApiServer
from tests.process.test_inspect import a_node
from tests.unit.observe.cluster.clusters import gpu, recorded
from tests.waiting import PATIENCE


@asynccontextmanager
async def pages(kubeconfig: Path, *options: str) -> AsyncIterator[str]:
    """Run `gpushare web`, and yield the address that it prints."""
    command = [sys.executable, "-m", "gpushare_plugin", "web", "--no-browser", "--kubeconfig", str(kubeconfig)]
    process = await asyncio.create_subprocess_exec(*command, *options, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = (await process.stdout.readline()).decode()
        yield next(word for word in line.split() if word.startswith("http://"))
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with a node of two GPUs, and the Lease of a scheduler extender."""
    lease = {"metadata": {"name": "gpushare-extender", "annotations": {"gpushare/placement": "spread"}}}
    async with ApiServer() as started:
        started.store.create("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", lease)
        a_node(started, "gpu-1", encode(recorded(gpu("gpu-1", 0), gpu("gpu-1", 1))))
        yield started


@pytest.fixture
async def address(server: ApiServer, tmp_path: Path) -> AsyncIterator[str]:
    """Run the pages, and return the address that is good once."""
    async with pages(server.kubeconfig(tmp_path / "config")) as found:
        yield found
