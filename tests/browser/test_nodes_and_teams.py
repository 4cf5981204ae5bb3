"""All nodes and all teams, in a browser: both follow the cluster while they are open."""

from playwright.async_api import Page, expect

from gpushare_plugin.ledger.node_record import encode
from gpushare_plugin.testing.cluster import ApiServer
from tests.browser.views import TELEPHONE, too_wide
from tests.process.test_inspect import a_node, running
from tests.unit.observe.cluster.clusters import gpu, recorded
from tests.waiting import PATIENCE

SOON = PATIENCE * 1000
"""Milliseconds that a browser may take."""


async def test_nodes_and_teams_follow_the_cluster(server: ApiServer, page: Page) -> None:
    """A node with a fault appears above the others; what a pod has is shown by namespace; a name leads to the node.

    A wide table stays where it was scrolled to, and the focus stays on its link.
    """
    await page.set_viewport_size({"width": TELEPHONE, "height": 700})
    await page.get_by_role("link", name="Nodes").click()
    rows = page.locator("#nodes tbody tr")
    await expect(rows).to_contain_text(["no problem"])
    table = page.locator("#nodes")
    await table.get_by_role("link", name="gpu-1").focus()
    await table.evaluate("table => table.scrollTo(40, 0)")
    sick = recorded(gpu("gpu-9", 0, healthy=False, reason="XID 79"), notices=("<b>old driver</b>",))
    a_node(server, "gpu-9", encode(sick))
    running(server, "model", "gpu-1", 6, "GPU-gpu-1-1")
    await expect(rows).to_contain_text(["gpu-9", "6 of 30 GiB"], timeout=SOON)
    await expect(rows.first).to_contain_text("GPU 0: unhealthy: XID 79")
    await expect(rows.first).to_contain_text("<b>old driver</b>")
    await expect(rows.last).to_contain_text("15 GiB")
    assert await table.evaluate("table => table.scrollLeft") == 40
    await expect(table.get_by_role("link", name="gpu-1")).to_be_focused()
    await page.get_by_role("link", name="Teams").click()
    teams = page.locator("#teams tbody tr")
    await expect(teams).to_contain_text(["team"])
    await expect(teams.locator("td").nth(0)).to_have_text("0.40")
    running(server, "more", "gpu-1", 3, "GPU-gpu-1-0")
    await expect(teams.locator("td").nth(0)).to_have_text("0.60", timeout=SOON)
    await expect(teams.locator("td").nth(4)).to_have_text("unknown")
    await expect(teams.locator("td").last).to_have_text("100 %")
    assert await too_wide(page) == []
    assert await teams.evaluate_all("rows => rows.every((row) => row.getBoundingClientRect().right <= innerWidth)")
    async with page.expect_download() as download:
        await page.get_by_role("link", name="As CSV").click()
    lines = (await (await download.value).path()).read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["Namespace", "team"]
    await teams.get_by_role("link", name="0.60").click()
    await expect(page.locator("#pods tbody tr")).to_contain_text(["model", "more"])
    await page.get_by_label("Pods with").fill("mor")
    await page.get_by_role("button", name="Show").click()
    await expect(page.locator("#pods tbody tr")).to_contain_text(["more"])
    await page.get_by_role("link", name="Nodes").click()
    await page.get_by_role("link", name="gpu-9").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("gpu-9")
