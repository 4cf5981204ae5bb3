"""Pages of a cluster in which tenants and nodes have written everything that could harm a browser or a person."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from playwright.async_api import Browser, Page

from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.annotations import write_allocation
from gpushare_plugin.ledger.node import GPU_MEMORY
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, ResourceRecord, encode
from gpushare_plugin.ledger.pod import Share
from gpushare_plugin.testing.cluster import ApiServer
from tests.browser.views import TELEPHONE, VIEWS, too_wide
from tests.process.pages import pages
from tests.unit.kube.pods import pod
from tests.unit.observe.cluster.clusters import gpu, recorded

SCRIPT = "'\"><img src=x onerror=attack()><script>attack()</script>&lt;"
UNSEEN = "a\u202eb\u2066c\u200bd\x1b[31me\x00f\x9bg"
"""Characters that turn the direction of a text, are not seen, or control a terminal."""
ATTACK = f"{SCRIPT}{UNSEEN}"
LARGEST = 256 * 1024
"""Bytes of all annotations of an object (apimachinery, `ValidateAnnotationsSize`)."""
PODS = 10


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server whose names are attacks, and whose pods have annotations as large as can be."""
    async with ApiServer() as started:
        kinds = (ResourceRecord(name=GPU_MEMORY, kind=ATTACK, policy=ATTACK),)
        gpus = [gpu(ATTACK, index, product=ATTACK, healthy=False, reason=ATTACK) for index in range(4)]
        record = encode(recorded(*gpus, kinds=kinds, notices=(ATTACK,) * 5))
        metadata = {
            "name": ATTACK,
            "annotations": {GPUS_ANNOTATION: record},
            "labels": {"karpenter.sh/nodepool": ATTACK},
        }
        status = {"addresses": [{"type": "InternalIP", "address": ATTACK}]}
        started.store.create(NODES, {"metadata": metadata, "status": status})
        for number in range(PODS):
            a_pod(started, number)
        yield started


def a_pod(server: ApiServer, number: int) -> None:
    """Create a pod whose annotations are ours as far as possible: every second one waits, the others run."""
    node = ATTACK if number % 2 else ""
    made: dict[str, Any] = pod(f"{number}-{ATTACK}", node, "1")
    share = write_allocation((Share(ATTACK, GPU_MEMORY, f"GPU-{ATTACK}-{number % 4}", 1),))
    notes = {"gpushare/allocation": share, "nvidia.com/use-gputype": ATTACK, "gpushare/placement": ATTACK}
    notes["gpushare/limits"] = json.dumps({"version": 1, "containers": {ATTACK: ATTACK}})
    notes[ATTACK] = "<" * (LARGEST - len("".join([*notes, *notes.values(), ATTACK]).encode()))
    made["metadata"] |= {"namespace": f"{number % 5}-{ATTACK}", "annotations": notes}
    made["spec"]["schedulingGates"] = [{"name": ATTACK}] if number % 4 == 0 else []
    made["status"] |= {"phase": "Running" if node else "Pending", "message": ATTACK}
    server.store.create(f"/api/v1/namespaces/{number % 5}/pods", made)


async def test_nothing_that_others_write_runs_or_hides(server: ApiServer, chromium: Browser, tmp_path: Path) -> None:
    """On every linked page: no script or image of others, no character that turns or hides a text, no overflow."""
    ran = list[str]()
    async with pages(server.kubeconfig(tmp_path / "config")) as address:
        page = await chromium.new_page(viewport={"width": TELEPHONE, "height": 700})
        await page.expose_function("attack", lambda: ran.append(page.url))
        # Names that Kubernetes does not allow have no page of their own.
        page.on(
            "console", lambda said: ran.append(said.text) if said.type == "error" and "404" not in said.text else None
        )
        await page.goto(address)
        seen = [await looked_at(page, urljoin(address, path)) for path in await paths(page, address)]
        assert sum("<script>" in text for text in seen) >= 4
        await page.close()
    assert ran == []


async def paths(page: Page, address: str) -> list[str]:
    """Return the views of whole pages, with all pages that these link to."""
    found = dict.fromkeys(["/?group=pool", *(view.path for view in VIEWS if view.path.count("/") == 1)])
    for path in tuple(found):
        await page.goto(urljoin(address, path))
        links = await page.locator("main a:not([href^='#'])").evaluate_all("links => links.map((link) => link.href)")
        found |= dict.fromkeys(urlsplit(each).path for each in links if not each.endswith(".csv"))
    return list(found)


async def looked_at(page: Page, address: str) -> str:
    """Return the text of a page in which everything is as it should be."""
    await page.goto(address)
    text = await page.locator("body").inner_text()
    assert [each for each in UNSEEN if each in text and not each.isprintable()] == [], address
    assert await page.locator("img, main script, main style, [onerror]").count() == 0
    assert await too_wide(page) == [], address
    return text
