"""Pods that wait, in a browser: they come, say why they wait, and go."""

from playwright.async_api import Page, expect

from gpushare_plugin.testing.cluster import ApiServer
from tests.process.test_inspect import running
from tests.unit.kube.pods import PODS, pod
from tests.waiting import PATIENCE

SOON = PATIENCE * 1000
"""Milliseconds that a browser may take."""


async def test_a_waiting_pod_is_explained_and_goes(server: ApiServer, page: Page) -> None:
    """A pod appears without a click, its name leads to the whole explanation, and a deleted pod disappears."""
    await page.get_by_role("link", name="Waiting").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("0 pods wait for GPUs")
    running(server, "model", "gpu-1", 6, "GPU-gpu-1-1")
    server.store.create(PODS, {**pod("large", units="20"), "status": {"phase": "Pending"}})
    row = page.locator("#waiting tbody tr")
    await expect(row).to_contain_text("20 aliyun.com/gpu-mem", timeout=SOON)
    await expect(row).to_contain_text("No GPU of this cluster is larger than 15 units of aliyun.com/gpu-mem")
    await row.get_by_role("link", name="large").click()
    text = page.locator("#explanation")
    await expect(text).to_contain_text("Pod team/large waits for a node")
    await expect(text).to_contain_text("held by team/model (6)", timeout=SOON)
    await page.get_by_role("link", name="All pods that wait").click()
    server.store.delete(f"{PODS}", "large")
    await expect(page.get_by_role("heading", level=1)).to_have_text("0 pods wait for GPUs", timeout=SOON)
