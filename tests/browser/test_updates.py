"""An open page when something fails: what the page shows, what the page says of that, and what a person was typing.

Costs 35 s, most of them waits for an API server or a server of pages that comes back.
"""

from collections.abc import AsyncIterator
from urllib.parse import urljoin

import pytest
from playwright.async_api import Browser, Page, Route, expect

from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.node_record import encode
from gpushare_plugin.testing.cluster import ApiServer
from tests.process.test_inspect import a_node, running
from tests.unit.observe.cluster.clusters import gpu, recorded
from tests.waiting import PATIENCE

SOON = PATIENCE * 1000
"""Milliseconds that a browser may take."""

RECORD = """
window.said = "";
addEventListener("DOMContentLoaded", () => {
  const freshness = document.getElementById("freshness");
  new MutationObserver(() => { window.said += freshness.textContent; }).observe(freshness, {childList: true});
});
"""
"""A script that keeps all that a page says of its freshness."""


@pytest.fixture
async def failing(address: str, chromium: Browser) -> AsyncIterator[Page]:
    """Return an open page, whose requests may fail."""
    found = await chromium.new_page()
    await found.goto(address)
    yield found
    await found.close()


async def test_a_page_says_that_the_api_server_is_gone_and_that_a_node_is(server: ApiServer, failing: Page) -> None:
    """Up to date is only said of what was just read; the page of a deleted node says so, and comes back."""
    await failing.goto(urljoin(failing.url, "/nodes/gpu-1"))
    status, heading = failing.get_by_role("status"), failing.get_by_role("heading", level=1)
    await expect(status).to_have_text("Up to date", timeout=SOON)
    await server.stop()
    await expect(status).to_contain_text("The API server does not answer: what you see may be old (as of", timeout=SOON)
    await expect(status).to_contain_text("UTC)")
    await expect(status).to_have_class("old")
    await expect(heading).to_have_text("gpu-1")
    await server.start()
    await expect(status).to_have_text("Up to date", timeout=SOON)
    server.store.delete(NODES, "gpu-1")
    await expect(heading).to_have_text("Not found", timeout=SOON)
    await expect(failing.get_by_role("link", name="All nodes")).to_be_visible()
    a_node(server, "gpu-1", encode(recorded(gpu("gpu-1", 0))))
    await expect(heading).to_have_text("gpu-1", timeout=SOON)


async def test_a_change_leaves_alone_what_a_person_is_typing(server: ApiServer, page: Page) -> None:
    """The filters and the focus stay while the heading, the map and the legend become new, also by a row alone.

    While text is selected, the page stays, and says so.
    """
    await page.goto(urljoin(page.url, "/?color=namespace&free=15GiB"))
    await expect(page.get_by_role("status")).to_have_text("Up to date", timeout=SOON)
    await page.get_by_label("Nodes with").fill("gpu-01")
    await page.evaluate("getSelection().selectAllChildren(document.querySelector('h1'))")
    running(server, "model", "gpu-1", 6, "GPU-gpu-1-1")
    await expect(page.get_by_role("status")).to_contain_text("waits until no text is selected", timeout=SOON)
    assert await page.evaluate("getSelection().toString()") == "2 GPUs on 1 node"
    await page.evaluate("getSelection().empty()")
    await expect(page.get_by_role("heading", level=1)).to_have_text("1 GPU on 1 node", timeout=SOON)
    await expect(page.get_by_role("list", name="Colours and borders")).to_contain_text("team")
    await expect(page.get_by_label("Nodes with")).to_have_value("gpu-01")
    await expect(page.get_by_label("Nodes with")).to_be_focused()


async def test_what_fails_once_is_tried_again(server: ApiServer, failing: Page) -> None:
    """A reload and a stream that the server refuses: the page says that, tries again, and shows the change then.

    A stream that is silent for 20 seconds has failed, too.
    """
    failures = {"nodes": 1, "updates": 1}

    async def refuse(route: Route) -> None:
        kind = "updates" if "/updates" in route.request.url else "nodes"
        if route.request.is_navigation_request() or not failures[kind]:
            await route.continue_()
        else:
            failures[kind] -= 1
            await route.fulfill(status=503, content_type="text/plain", body="busy, and try again")

    await failing.route("**/updates?*", refuse)
    await failing.route("**/nodes", refuse)
    status = failing.get_by_role("status")
    await failing.add_init_script(RECORD)
    await failing.clock.install()
    await failing.goto(urljoin(failing.url, "/nodes"))
    await expect(status).to_have_text("Up to date", timeout=SOON)
    failures["nodes"] += 1
    running(server, "model", "gpu-1", 6, "GPU-gpu-1-1")
    await expect(failing.locator("#nodes tbody tr")).to_contain_text(["6 of 30 GiB"], timeout=SOON)
    await expect(status).to_have_text("Up to date", timeout=SOON)
    told = await failing.evaluate("window.said")
    assert "No connection: what you see may be old" in told
    assert "The page cannot be loaded (busy, and try again): what you see may be old" in told
    assert failures == {"nodes": 0, "updates": 0}
    await failing.evaluate("window.said = ''")
    await failing.clock.fast_forward(25_000)
    await expect(status).to_have_text("Up to date", timeout=SOON)
    assert (await failing.evaluate("window.said")).startswith("No connection: what you see may be old (as of")
