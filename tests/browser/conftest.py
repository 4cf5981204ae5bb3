"""A real Chromium: Debian's package `chromium`, driven by playwright."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page

from gpushare_plugin.ledger.node_record import encode
from gpushare_plugin.testing.cluster import ApiServer
from tests.browser.views import CHROMIUM, running_chromium, without
from tests.process.pages import pages
from tests.process.test_inspect import a_node
from tests.unit.observe.cluster.clusters import gpu, recorded


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with a node of two GPUs."""
    async with ApiServer() as started:
        a_node(started, "gpu-1", encode(recorded(gpu("gpu-1", 0), gpu("gpu-1", 1))))
        yield started


@pytest.fixture
async def address(server: ApiServer, tmp_path: Path) -> AsyncIterator[str]:
    """Run the pages, and return the address that is good once."""
    async with pages(server.kubeconfig(tmp_path / "config")) as found:
        yield found


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    """Run Chromium; skip the test where it is missing, but in CI."""
    if shutil.which(CHROMIUM) is None:
        without(f"Debian's package `{CHROMIUM}`")
    async with running_chromium() as browser:
        yield browser


@pytest.fixture
async def page(address: str, chromium: Browser) -> AsyncIterator[Page]:
    """Return an open page; an error of a script, or something that the policy blocks, fails the test."""
    found = await chromium.new_page()
    problems: list[str] = []
    found.on("pageerror", lambda error: problems.append(str(error)))
    found.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    await found.goto(address)
    yield found
    await found.close()
    assert problems == []
