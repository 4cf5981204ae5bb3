"""Fixtures: an API server, and an extender that has listed it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpushare_plugin.kube.client import NODES
from gpushare_plugin.testing.cluster import ApiServer
from tests.unit.extender.extenders import Extending, extender, node


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with three nodes of two GPUs of 16 units."""
    async with ApiServer() as running:
        for name in ("n0", "n1", "n2"):
            running.store.create(NODES, node(name, 16, 16))
        yield running


@pytest.fixture
async def asking(server: ApiServer, tmp_path: Path) -> AsyncIterator[Extending]:
    """Run an extender."""
    async with extender(server, tmp_path) as running:
        yield running
