"""`gpushare web`: the map in a real Chromium, and the CPU and the memory of its server while the cluster changes."""

import asyncio
import contextlib
import re
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urljoin

import aiohttp
from playwright.async_api import Page, async_playwright

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
_LOOK_EVERY = 0.05
_FIRST_PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
"""Milliseconds from the opening of a page to its first paint with content, once that has happened."""
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
async def _page(web: _Web) -> AsyncIterator[Page]:
    """Open a page that has a cookie, and shows no map yet."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1920, "height": 1080})
        page.set_default_timeout(_PATIENCE)
        token = web.address.partition("?")[2]
        await page.goto(urljoin(web.address, f"/nodes/nowhere?{token}"))
        yield page
        await browser.close()


async def measure(effort: Effort) -> list[Figure]:
    """Measure what a person waits for, and then what open pages cost."""
    figures: list[Figure] = []
    for nodes, limit in _SIZES.items():
        async with cluster(effort.times(nodes), _PODS_A_MINUTE / 60) as large, _web(large) as web, _page(web) as page:
            figures += await _of_map(large, web, page, f"web, {len(large.names):,} nodes", limit, effort)
    async with cluster(effort.times(300), _CHANGES_A_SECOND) as large, _web(large) as web:
        figures.append(await _memory(large, web, effort))
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


async def _memory(large: Cluster, web: _Web, effort: Effort) -> Figure:
    """Return how much the memory of the server grows over many changes with many open pages."""
    changes = effort.seconds(_CHANGES / _CHANGES_A_SECOND)
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar, connector=aiohttp.TCPConnector(limit=0)) as session:
        async with session.get(web.address) as answer:
            answer.raise_for_status()
        reading = [asyncio.create_task(_read(session, urljoin(web.address, "/updates"))) for _ in range(_OPEN_PAGES)]
        with large.busy():
            await asyncio.sleep(changes / 5)
            before = web.process.memory().own
            await asyncio.sleep(changes * 4 / 5)
        after = web.process.memory().own
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    name = (
        f"web, 300 nodes: memory that the last four fifths of {_CHANGES:,} changes add, with {_OPEN_PAGES} open pages"
    )
    return single(name, "MiB", after - before, Goal("worst", 10), note=f"{after:.0f} MiB of its own")


async def _read(session: aiohttp.ClientSession, address: str) -> None:
    """Read updates without end, as a browser does."""
    while True:
        async with session.get(address) as updates:
            async for _ in updates.content.iter_any():
                pass
