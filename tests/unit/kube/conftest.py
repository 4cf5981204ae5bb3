"""Fixtures for tests that ask an API server; a module whose server has objects or rights of its own overrides it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpushare_plugin.kube.client import Client
from gpushare_plugin.testing.cluster import ApiServer
from tests.unit.kube.cluster import QUICK


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server."""
    async with ApiServer() as running:
        yield running


@pytest.fixture
async def client(server: ApiServer, tmp_path: Path) -> AsyncIterator[Client]:
    """Run a client of it."""
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as running:
        yield running
