"""The map in a browser: what is shown, and what a change does."""

from urllib.parse import urljoin

from playwright.async_api import Browser, Page, expect

from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.node_record import encode
from gpushare_plugin.testing.cluster import ApiServer
from tests.browser.views import shown_cluster
from tests.process.test_inspect import a_node, running
from tests.unit.observe.cluster.clusters import gpu, recorded
from tests.waiting import PATIENCE

SOON = PATIENCE * 1000
"""Milliseconds that a browser may take."""


async def test_the_map_follows_the_cluster(server: ApiServer, page: Page) -> None:
    """A pod fills the tile of its GPU, a new node appears and a deleted one disappears, without a click."""
    await expect(page.get_by_role("heading", level=1)).to_have_text("2 GPUs on 1 node")
    await expect(page.get_by_role("link", name="GPU 1: 0 of 15 GiB")).to_have_class("tile h0", timeout=SOON)
    running(server, "model", "gpu-1", 6, "GPU-gpu-1-1")
    await expect(page.get_by_role("link", name="GPU 1: 6 of 15 GiB")).to_have_class("tile h8", timeout=SOON)
    a_node(server, "gpu-2", encode(recorded(gpu("gpu-2", 0))))
    await expect(page.get_by_role("heading", level=1)).to_have_text("3 GPUs on 2 nodes", timeout=SOON)
    server.store.delete(NODES, "gpu-2")
    await expect(page.get_by_role("heading", level=1)).to_have_text("2 GPUs on 1 node", timeout=SOON)


async def test_the_map_is_a_table_without_scripts(server: ApiServer, page: Page) -> None:
    """The rows are nodes, the tiles are links with words, and Tab reaches each of them; large tiles have text."""
    running(server, "model", "gpu-1", 6, "GPU-gpu-1-1")
    await expect(page.get_by_role("link", name="GPU 1: 6 of 15 GiB")).to_be_attached(timeout=SOON)
    assert page.context.browser is not None
    without = await page.context.browser.new_context(
        java_script_enabled=False, storage_state=await page.context.storage_state()
    )
    plain = await without.new_page()
    await plain.goto(page.url)
    row = plain.get_by_role("row").filter(has=plain.get_by_role("rowheader", name="gpu-1"))
    await row.get_by_role("link", name="gpu-1").focus()
    for words in ("GPU 0: 0 of 15 GiB", "GPU 1: 6 of 15 GiB"):
        await plain.keyboard.press("Tab")
        await expect(row.get_by_role("link", name=words)).to_be_focused()
    await plain.goto(f"{page.url}?size=large")
    await expect(row.get_by_role("link")).to_have_text(["gpu-1", "GPU 0: 0 of 15 GiB", "GPU 1: 6 of 15 GiB"])
    await without.close()


async def test_a_filtered_map_follows_the_cluster_by_keyboard(server: ApiServer, page: Page) -> None:
    """The arrow keys reach a tile and stay there after a change; a GPU that does not meet the filter any more goes."""
    await page.goto(f"{page.url}?free=10GiB&size=small")
    await page.get_by_role("link", name="gpu-1").focus()
    await page.keyboard.press("Tab")
    await expect(page.locator(".tile:focus")).to_have_count(0)
    await page.get_by_role("link", name="gpu-1").focus()
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowRight")
    await expect(page.get_by_role("link", name="GPU 1: 0 of 15 GiB")).to_be_focused()
    running(server, "small", "gpu-1", 3, "GPU-gpu-1-1")
    await expect(page.get_by_role("link", name="GPU 1: 3 of 15 GiB")).to_be_focused(timeout=SOON)
    running(server, "more", "gpu-1", 3, "GPU-gpu-1-1")
    await expect(page.get_by_role("link", name="GPU 1")).to_have_count(0, timeout=SOON)
    running(server, "large", "gpu-1", 15, "GPU-gpu-1-0")
    await expect(page.get_by_role("heading", level=1)).to_have_text("0 GPUs on 0 nodes", timeout=SOON)
    await expect(page.get_by_text("No GPU of this cluster meets all filters.")).to_be_visible()


async def test_2400_gpus_are_on_one_screen(chromium: Browser) -> None:
    """Small tiles of 300 nodes need no scrolling at 1920 x 1080."""
    async with shown_cluster(300) as address:
        page = await chromium.new_page(viewport={"width": 1920, "height": 1080})
        await page.goto(address)
        await page.goto(urljoin(address, "/?size=small"))
        await expect(page.locator(".map .tile")).to_have_count(2400)
        assert await page.evaluate("document.documentElement.scrollHeight") <= 1080
        await page.close()


async def test_many_tabs_are_open_and_the_one_that_is_seen_follows(server: ApiServer, page: Page) -> None:
    """A tab that is not seen takes none of the six connections that Chromium has for a server."""
    assert page.context.browser is not None
    person = await page.context.browser.new_context(storage_state=await page.context.storage_state())
    await person.add_init_script("Object.defineProperty(document, 'hidden', {get: () => !window.isSeen})")
    tabs = [await person.new_page() for _ in range(8)]
    for tab in tabs:
        await tab.goto(page.url)
    await tabs[-1].evaluate("window.isSeen = true, document.dispatchEvent(new Event('visibilitychange'))")
    running(server, "model", "gpu-1", 6, "GPU-gpu-1-1")
    await expect(tabs[-1].get_by_role("link", name="GPU 1: 6 of 15 GiB")).to_be_attached(timeout=SOON)
    await expect(tabs[0].get_by_role("status")).to_contain_text("As of ")
    await person.close()
