"""Every view of the pages, and their pictures in docs/; `make web-pictures` makes the pictures anew."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn
from urllib.parse import urljoin

import pytest
from playwright.async_api import Browser, Page, async_playwright

from gpushare_plugin.testing.cluster import ApiServer
from tests.browser.clusters import a_cluster
from tests.process.pages import pages

CHROMIUM = "chromium"
"""The program, of Debian's package of the same name."""
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
LARGEST = 150 * 1024
"""Bytes that a picture may have."""

TELEPHONE = 390
"""Pixels that a telephone is wide."""
_AXE = "axe_playwright_python"
"""The package that has the program of axe-core."""

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")


class View(NamedTuple):
    """A page, or a page as an address shows the page."""

    name: str
    """The name in the file name of the picture."""
    path: str
    """The path and the query of the address."""
    width: int = 1280
    """Pixels of the window."""
    height: int = 800
    """Pixels of the window."""


VIEWS = (
    View("map", "/"),
    View("map-small", "/?size=small&color=namespace", height=480),
    View("map-large", "/?size=large&node=gpu-000&color=way", height=600),
    View("map-pools", "/?group=pool&size=small", height=580),
    View("map-telephone", "/?color=namespace", TELEPHONE, 700),
    View("nodes", "/nodes", height=480),
    View("node", "/nodes/gpu-0003"),
    View("pods", "/pods", height=480),
    View("teams", "/teams", height=400),
    View("fits", "/fits?request=30+GiB", height=680),
    View("waiting", "/waiting", height=400),
    View("waiting-pod", "/waiting/search/train-large", height=500),
)
"""Every view, one for each page at least."""


@asynccontextmanager
async def shown_cluster(nodes: int) -> AsyncIterator[str]:
    """Run the pages of a cluster of so many nodes, and yield the address that is good once."""
    async with ApiServer() as server:
        a_cluster(server, nodes)
        with tempfile.TemporaryDirectory() as folder:
            async with pages(server.kubeconfig(Path(folder, "config"))) as address:
                yield address


@asynccontextmanager
async def running_chromium() -> AsyncIterator[Browser]:
    """Run Chromium."""
    async with async_playwright() as playwright:
        # Root has no sandbox; the pages are ours.
        browser = await playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=["--no-sandbox"])
        yield browser
        await browser.close()


def without(missing: str) -> NoReturn:
    """Skip a test for want of something that is not installed; in CI, the test fails."""
    assert "CI" not in os.environ, f"{missing} is not installed"
    pytest.skip(f"{missing} is not installed")


async def visit(page: Page, address: str, scheme: Scheme) -> AsyncIterator[View]:
    """Yield each view while a page shows the view, once the page follows the cluster."""
    await page.emulate_media(color_scheme=scheme)
    for view in VIEWS:
        await page.set_viewport_size({"width": view.width, "height": view.height})
        await page.goto(urljoin(address, view.path))
        if await page.locator("main").get_attribute("data-updates"):
            await page.get_by_text("Up to date").wait_for()
        yield view


async def broken_rules(page: Page) -> list[str]:
    """Return what axe-core finds in what a page shows."""
    if find_spec(_AXE) is None:
        without("the package axe-playwright-python")
    # By the debugger, which no policy of a page forbids.
    await page.evaluate((files(_AXE) / "axe.min.js").read_text())
    found = (await page.evaluate("axe.run()"))["violations"]
    return [f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}" for each in found]


async def too_wide(page: Page) -> list[str]:
    """Return the width of a page where that is more than the width of the window."""
    width, window = await page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    return [f"{width} pixels in a window of {window}"] if width > window else []


async def make_pictures() -> None:
    """Make the pictures of all views, in light and dark; raises ValueError for a picture that is too large."""
    async with shown_cluster(60) as address, running_chromium() as browser:
        page = await browser.new_page()
        await page.goto(address)
        for scheme in SCHEMES:
            async for view in visit(page, address, scheme):
                file = PICTURES / f"web-{view.name}-{scheme}.png"
                size = len(await page.screenshot(path=file))
                if size > LARGEST:
                    raise ValueError(f"{file.name} has {size} bytes, {LARGEST} expected at most: show less in the view")


if __name__ == "__main__":
    asyncio.run(make_pictures())
