"""The file of `gpushare inspect -o html` in a browser, which runs nothing."""

from pathlib import Path

from playwright.async_api import Browser, expect

from gpushare_plugin.testing.cluster import ApiServer
from tests.browser.views import SCHEMES, TELEPHONE, broken_rules, too_wide
from tests.process.daemon import gpushare
from tests.process.test_inspect import running


async def test_the_keyboard_reaches_every_gpu(server: ApiServer, chromium: Browser, tmp_path: Path) -> None:
    """Tab goes from a node to its GPUs, Enter opens one; on a telephone axe finds nothing, and nothing is too wide."""
    running(server, "model", "gpu-1", 6, "GPU-gpu-1-1")
    file = tmp_path / "map.html"
    file.write_text((await gpushare("inspect", "-o", "html", "--kubeconfig", server.kubeconfig(tmp_path / "k"))).output)
    page = await chromium.new_page(viewport={"width": TELEPHONE, "height": 700})
    await page.goto(file.as_uri())
    for name in ("Skip the map", "gpu-1", "GPU 0: 0 of 15 GiB", "GPU 1: 6 of 15 GiB"):
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name=name)).to_be_focused()
    await page.keyboard.press("Enter")
    assert page.url.endswith("#gpu-1/1")
    assert await too_wide(page) == []
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        assert await broken_rules(page) == []
    await page.close()
