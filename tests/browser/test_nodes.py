"""All nodes, in a browser: what is wrong comes first, also when it happens while the page is open."""

from playwright.async_api import Page, expect

from gpushare_plugin.ledger.node_record import encode
from gpushare_plugin.testing.cluster import ApiServer
from tests.process.test_inspect import a_node, running
from tests.unit.observe.cluster.clusters import gpu, recorded
from tests.waiting import PATIENCE

SOON = PATIENCE * 1000
"""Milliseconds that a browser may take."""


async def test_nodes_follow_the_cluster(server: ApiServer, page: Page) -> None:
    """A node with a fault appears above the others, a pod takes its units, and a name leads to the node."""
    await page.get_by_role("link", name="Nodes").click()
    rows = page.locator("#nodes tbody tr")
    await expect(rows).to_contain_text(["no problem"])
    sick = recorded(gpu("gpu-9", 0, healthy=False, reason="XID 79"), notices=("<b>old driver</b>",))
    a_node(server, "gpu-9", encode(sick))
    running(server, "model", "gpu-1", 6, "GPU-gpu-1-1")
    await expect(rows).to_contain_text(["gpu-9", "6 of 30 GiB"], timeout=SOON)
    await expect(rows.first).to_contain_text("GPU0 unhealthy")
    await expect(rows.first).to_contain_text("<b>old driver</b>")
    await expect(rows.last).to_contain_text("15 GiB")
    await page.get_by_role("link", name="gpu-9").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("gpu-9")
