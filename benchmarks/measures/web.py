"""`gpushare web`: the map in a real Chromium, and the CPU and the memory of its server while the cluster changes."""

import asyncio
import contextlib
import re
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urljoin

from playwright.async_api import Browser, Page, async_playwright

from benchmarks.cluster.extender import Cluster, cluster
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary, single
from benchmarks.processes import MeasuredProcess, python
from gpushare_plugin.kube.client import NODES

CHROMIUM = "chromium"
_SIZES = {300: 1.0, 5000: 3.0}
"""Nodes, and the most seconds until the page is painted."""
_PODS_A_MINUTE = 100
_CHANGES = 10_000
_CHANGES_A_SECOND = 100.0
_OPEN_PAGES = 50
_SMALL = 30
"""Nodes of the cluster of the open pages: Chromium replaces the rows of most of them in each page once a second."""
_BOUNDS = ("--renderer-process-limit=4", "--js-flags=--max-old-space-size=512")
"""Options that bound the memory of Chromium, which shares the machine with what is measured."""
_LOOK_EVERY = 0.05
_FIRST_PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
"""Milliseconds from the opening of a page to its first paint with content, once that has happened."""
_REVISION = """() => Number(
    new URL(document.getElementById('main').dataset.updates, location.href).searchParams.get('since'))"""
"""What an open page has seen: the revision from which it asks for updates."""
_PATIENCE = 120_000
"""Milliseconds for what is waited for in the browser."""


@dataclass(frozen=True, slots=True)
class _Web:
    """The pages as a process, and an address that is good once."""

    process: MeasuredProcess
    address: str


@contextlib.asynccontextmanager
async def _web(of: Cluster) -> AsyncIterator[_Web]:
    """Run the pages until they show the cluster."""
    output = of.folder / "web"
    arguments = ("-m", "gpushare_plugin", "web", "--no-browser", "--kubeconfig", of.kubeconfig)
    async with python(*arguments, output=output) as process:
        yield _Web(process, await process.outlives(_printed(process)))


async def _printed(process: MeasuredProcess) -> str:
    while (found := re.search(r"http://\S+", process.output.read_text())) is None:  # noqa: ASYNC110 - files tell nobody
        await asyncio.sleep(_LOOK_EVERY)
    return found[0]


@contextlib.asynccontextmanager
async def _browser() -> AsyncIterator[Browser]:
    """Run Chromium."""
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", *_BOUNDS]
        browser = await playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=arguments)
        yield browser
        await browser.close()


@contextlib.asynccontextmanager
async def _page(web: _Web) -> AsyncIterator[Page]:
    """Open a page that has a cookie, and shows no map yet."""
    async with _browser() as browser:
        page = await browser.new_page(viewport={"width": 1920, "height": 1080})
        page.set_default_timeout(_PATIENCE)
        token = web.address.partition("?")[2]
        await page.goto(urljoin(web.address, f"/nodes/nowhere?{token}"))
        yield page


async def measure(effort: Effort) -> list[Figure]:
    """Measure what a person waits for, and then what open pages cost."""
    figures: list[Figure] = []
    for nodes, limit in _SIZES.items():
        async with cluster(effort.times(nodes), _PODS_A_MINUTE / 60) as large, _web(large) as web, _page(web) as page:
            figures += await _of_map(large, web, page, f"web, {len(large.names):,} nodes", limit, effort)
    async with cluster(effort.times(_SMALL), _CHANGES_A_SECOND) as small, _web(small) as web, _browser() as browser:
        figures.append(await _memory(small, web, browser, effort))
    return figures


async def _of_map(large: Cluster, web: _Web, page: Page, name: str, limit: float, effort: Effort) -> list[Figure]:  # noqa: PLR0913, PLR0917 - one measure
    painted, whole = list[float](), list[float]()
    for number in range(effort.times(5)):
        began = time.perf_counter()
        # Another part of the address each time, so that no row of the map has been made before.
        await page.goto(urljoin(web.address, f"/?size=small&color={('held', 'namespace', 'way')[number % 3]}"))
        whole.append(time.perf_counter() - began)
        painted.append(await (await page.wait_for_function(_FIRST_PAINT)).json_value() / 1000)
    shown = [await _until_shown(large, page, number) for number in range(effort.times(10))]
    seconds, before, began = effort.seconds(60), web.process.cpu_seconds(), time.perf_counter()
    with large.busy():
        await asyncio.sleep(seconds)
    cpu = 100 * (web.process.cpu_seconds() - before) / (time.perf_counter() - began)
    return [
        Figure(f"{name}: opened -> painted", "s", Summary.of(painted), goals=(Goal("median", limit),)),
        Figure(f"{name}: opened -> whole map", "s", Summary.of(whole)),
        Figure(f"{name}: change -> shown", "s", Summary.of(shown), goals=(Goal("worst", 2),)),
        single(f"{name}: CPU while {_PODS_A_MINUTE} pods a minute come and go", "%", cpu, Goal("worst", 5)),
    ]


async def _until_shown(large: Cluster, page: Page, number: int) -> float:
    """Cordon a node, or undo that, and return after how many seconds the map shows that."""
    name, cordoned = large.names[number // 2 % len(large.names)], number % 2 == 0
    await page.wait_for_function("() => document.getElementById('freshness').textContent === 'Up to date'")
    patch, began = {"spec": {"unschedulable": cordoned}}, time.perf_counter()
    await large.client.request("PATCH", f"{NODES}/{name}", body=patch, content_type="application/merge-patch+json")
    tile = f"document.querySelector('[data-node=\"{name}\"] .tile').classList.contains('cordoned')"
    await page.wait_for_function(f"() => {tile} === {str(cordoned).lower()}")
    return time.perf_counter() - began


async def _memory(small: Cluster, web: _Web, browser: Browser, effort: Effort) -> Figure:
    """Return how much the memory of the server grows over many changes with many open pages."""
    seconds = effort.seconds(_CHANGES / _CHANGES_A_SECOND)
    pages = await _open_pages(web, browser, effort.times(_OPEN_PAGES))
    with small.busy():
        await asyncio.sleep(seconds / 5)
        before = web.process.memory().own
        await asyncio.sleep(seconds * 4 / 5)
    after = web.process.memory().own
    shown = [await page.evaluate(_REVISION) for page in pages]
    name = f"web, {_SMALL} nodes: memory that the last four fifths of {_CHANGES:,} changes add"
    note = f"{after:.0f} MiB of its own; the pages are at most {max(shown) - min(shown)} revisions apart"
    return single(f"{name}, with {_OPEN_PAGES} open pages", "MiB", after - before, Goal("worst", 10), note=note)


async def _open_pages(web: _Web, browser: Browser, count: int) -> list[Page]:
    """Open so many maps, each of a person of its own: Chromium has six connections for all pages of one person."""
    first = await browser.new_context()
    pages = [await first.new_page()]
    await pages[0].goto(web.address)
    for _ in range(count - 1):
        context = await browser.new_context(storage_state=await first.storage_state())
        pages.append(await context.new_page())
        await pages[-1].goto(urljoin(web.address, "/"))
    for page in pages:
        page.set_default_timeout(_PATIENCE)
        await page.wait_for_function("() => document.getElementById('freshness').textContent === 'Up to date'")
    return pages
