"""What fits, in a browser: a request that is typed, a manifest that is pasted, and a change of the cluster."""

from playwright.async_api import Page, expect

from gpushare_plugin.testing.cluster import ApiServer
from tests.process.test_inspect import running
from tests.waiting import PATIENCE

SOON = PATIENCE * 1000
"""Milliseconds that a browser may take."""

MANIFEST = """kind: Deployment
metadata: {name: train}
spec:
  template:
    spec:
      nodeSelector: {zone: a}
      containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 5}}}]
"""


async def test_a_request_follows_the_cluster(server: ApiServer, page: Page) -> None:
    """The answer is new when a pod takes the room; a manifest is answered on the same page, and can be sent again."""
    await page.get_by_role("link", name="What fits").click()
    await page.get_by_label("Request").fill("12 GiB, A100")
    await page.get_by_role("button", name="Show").first.click()
    await expect(page.locator("#count")).to_have_text("2 such pods fit now, one after another, on 1 node of 1.")
    await expect(page.locator("#where")).to_contain_text("The pod would go to gpu-1: 12 aliyun.com/gpu-mem on GPU 0")
    running(server, "model", "gpu-1", 6, "GPU-gpu-1-0")
    await expect(page.locator("#count")).to_have_text(
        "1 such pod fits now, one after another, on 1 node of 1.", timeout=SOON
    )
    await expect(page.locator("#pieces tbody tr")).to_contain_text("15 GiB on gpu-1 GPU 1")
    await expect(page.locator("#pieces tbody tr")).to_contain_text("9 GiB (38 %)")
    await page.get_by_text("Or paste a manifest").click()
    await page.get_by_label("A Pod, PodTemplate").fill(MANIFEST)
    await page.get_by_role("button", name="Show").last.click()
    await expect(page.locator("#understood")).to_contain_text("Deployment train")
    await expect(page.get_by_label("A Pod, PodTemplate")).to_have_value(MANIFEST)
    await page.get_by_role("button", name="Show").last.click()
    await expect(page.locator("#understood")).to_contain_text("Deployment train")
    await expect(page.locator("#where")).to_have_text("The pod fits on no node.")
    await expect(page.get_by_role("cell", name="node selector: zone=a required")).to_be_visible()
