"""A real Chromium: Debian's package `chromium`, driven by playwright."""

import shutil
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page

from tests.browser.views import CHROMIUM, running_chromium, without
from tests.process.pages import address, server

__all__ = ["address", "server"]


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
