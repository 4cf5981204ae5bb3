"""What does not fit the window: words of tiles, wide tables and long explanations, in light and with forced colours."""

from urllib.parse import urljoin

from playwright.async_api import Browser, Page, expect

from gpushare_plugin.base.structs import replace
from gpushare_plugin.ledger.node_record import encode
from gpushare_plugin.testing.cluster import ApiServer
from tests.browser.views import TELEPHONE, shown_cluster, too_wide
from tests.process.test_inspect import a_node
from tests.unit.observe.cluster.clusters import gpu, recorded

LONG = "ip-10-0-0-1." + "x" * 41 + ".com"
"""The name of a node with as many characters as people have seen."""


async def outside(page: Page, selector: str) -> list[str]:
    """Return the text of each element that is not inside the window from left to right."""
    script = """all => all.filter((each) => {
        const box = each.getBoundingClientRect(); return box.left < 0 || box.right > window.innerWidth;
    }).map((each) => each.innerText)"""
    found: list[str] = await page.locator(selector).evaluate_all(script)
    return found


async def test_words_of_tiles_are_inside_the_window(chromium: Browser) -> None:
    """Wherever the tile is, the words of the tile and the name of its node wrap; the page gets no wider.

    The arrow key down goes to the row below, not to the one beside; End goes to the last GPU of the row.
    """
    async with shown_cluster(60) as address:
        page = await chromium.new_page(viewport={"width": 1280, "height": 800})
        await page.goto(address)
        for width, size in ((1280, "small"), (1280, "medium"), (TELEPHONE, "small"), (TELEPHONE, "medium")):
            await page.set_viewport_size({"width": width, "height": 700})
            await page.goto(urljoin(address, f"/?size={size}&color=use"))
            tiles = page.locator("td .tile")
            ends = await tiles.evaluate_all("all => all.map((tile) => tile.getBoundingClientRect().right)")
            tile = tiles.nth(ends.index(max(ends)))
            await tile.hover()
            assert await too_wide(page) == [], (width, size)
            if size == "small":
                assert await outside(page, "tr:hover th a") == [], (width, size)
            words = await tile.evaluate("tile => parseFloat(getComputedStyle(tile, '::before').width)")
            assert 100 < words <= width, (width, size)
        await page.set_viewport_size({"width": 1280, "height": 700})
        await page.locator("tr a").first.focus()
        for key in ("ArrowDown", "End"):
            await page.keyboard.press(key)
        row = "(row) => [row.offsetLeft, row.offsetTop]"
        first = await page.locator("tr[id]:first-child").evaluate(row)
        below = await page.locator("tr:focus-within").evaluate(row)
        assert (first[0], first[1] < below[1]) == (below[0], True)
        await expect(page.locator("tr:focus-within a").last).to_be_focused()
        await page.close()


async def test_forced_colours_leave_the_levels_of_tiles(page: Page) -> None:
    """With forced colours, such as the high contrast of Windows, a tile still has its colours."""
    await page.emulate_media(forced_colors="active")
    await expect(page.locator("td .tile").first).to_have_css("forced-color-adjust", "none")


async def test_long_names_and_texts_do_not_leave_the_window(server: ApiServer, page: Page) -> None:
    """A node with a long name and model has a table that scrolls by itself, and captions that wrap, at every width."""
    card = gpu(LONG, 0, product="NVIDIA " + "A" * 120, healthy=False, reason="XID 79")
    a_node(server, LONG, encode(replace(recorded(card), config="c" * 200)))
    await expect(page.get_by_role("link", name=LONG)).to_be_visible()
    for width in (1280, TELEPHONE):
        await page.set_viewport_size({"width": width, "height": 700})
        for path in ("/nodes", f"/nodes/{LONG}"):
            await page.goto(urljoin(page.url, path))
            assert await too_wide(page) == [], (width, path)
            assert await outside(page, "caption") == [], (width, path)


async def test_why_a_pod_waits_is_seen_on_a_telephone(chromium: Browser) -> None:
    """The reason is below the pod, and the explanation of a pod wraps."""
    async with shown_cluster(6) as address:
        page = await chromium.new_page(viewport={"width": TELEPHONE, "height": 700})
        await page.goto(address)
        await page.goto(urljoin(address, "/waiting"))
        await expect(page.locator("#waiting td:last-child").first).to_be_visible()
        assert await outside(page, "#waiting td") == []
        await page.goto(urljoin(address, "/waiting/search/train-large"))
        pre = page.locator("#explanation")
        assert await pre.evaluate("pre => pre.scrollWidth <= pre.clientWidth")
        await page.close()
