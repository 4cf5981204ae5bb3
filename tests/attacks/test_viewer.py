"""What a viewer of the pages can send and see: names of others, in whatever page, stream or refusal."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp
import pytest

from gpushare_plugin.core.effect import Effect
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.annotations import write_allocation, write_limits
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, encode, record
from gpushare_plugin.ledger.pod import Share
from gpushare_plugin.testing.cluster import ApiServer
from tests.process.test_inspect import MEMORY, a_node
from tests.process.test_inspect_claims import SLICES, claim
from tests.unit.claims.node import NODE, ClaimNode
from tests.unit.kube.pods import pod
from tests.unit.observe.cluster.clusters import gpu, recorded
from tests.unit.sharing.settings import memory
from tests.unit.web.visited import TOKENS, visited

HIDDEN = "zebra"
"""In every name of a namespace, pod, claim or container that the viewer may not see."""
NAMESPACE = "zebra-team"
ALICE = {"Authorization": "Bearer token-of-alice"}
OLGA = {"Authorization": "Bearer token-of-olga"}
REQUESTS = (
    "/fits?request=14+GiB",
    "/fits?request=1+GiB",
    "/teams.csv",
    "/?color=namespace",
    "/?group=model",
    "/?node=x",
)
"""Addresses to which no link leads."""


def create(
    server: ApiServer, name: str, node: str = "", units: int = 3, namespace: str = NAMESPACE, **notes: str
) -> None:
    """Create a pod with annotations of ours."""
    made: dict[str, Any] = pod(name, node, str(units))
    made["metadata"] |= {"namespace": namespace, "uid": f"uid-{name}"}
    made["metadata"]["annotations"] = {f"gpushare/{key}": text for key, text in notes.items()}
    server.store.create(f"/api/v1/namespaces/{namespace}/pods", made)


def on(index: int, units: int = 3, container: str = "main") -> str:
    """Return the annotation of a pod with units of a GPU."""
    return write_allocation((Share(container, MEMORY, f"GPU-gpu-1-{index}", units),))


def promised(index: int) -> str:
    """Return the annotation of the extender with units of a GPU."""
    return json.dumps({**json.loads(on(index)), "node": "gpu-1", "time": "2026-01-01T00:00:00Z"})


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with everything that pages say of pods and claims, and nearly all of it hidden."""
    async with ApiServer() as running:
        running.people.tokens |= TOKENS
        ends = "changes its mode when its pods end: zebra-team/zebra-over"
        gpus = [gpu("gpu-1", index, reason=ends if index == 3 else None) for index in range(4)]
        a_node(running, "gpu-1", encode(recorded(*gpus)))
        create(running, "red-pod", "gpu-1", namespace="red", allocation=on(0))
        broken = {"zebra-main": {"GPU-gpu-1-0": Effect("not in effect", "zebra-reason")}}
        create(running, "zebra-broken", "gpu-1", allocation=on(0), limits=write_limits(broken))
        create(running, "zebra-promised", "gpu-1", promise=promised(1))
        create(running, "zebra-drifted", "gpu-1", promise=promised(1), allocation=on(2))
        create(running, "zebra-over", "gpu-1", 20, allocation=on(3, 20))
        create(running, "zebra-nowhere", "gpu-1", 2)
        create(running, "zebra-waiting", units=14)
        create(running, "zebra-impossible", units=1000)
        claims = ClaimNode(sharing=memory(unit="GiB", isolation="mps"))
        told = encode(record(Snapshot(claims.inventory, claims.plan.resources, by_claim=claims.plan.by_claim)))
        running.store.create(NODES, {"metadata": {"name": NODE, "annotations": {GPUS_ANNOTATION: told}}, "status": {}})
        running.store.create(SLICES, {**claims.resource_slice, "metadata": {"name": "a"}})
        held = claim(claims, "zebra-claim", "10Gi")
        held["metadata"]["namespace"] = NAMESPACE
        held["status"]["reservedFor"][0]["name"] = "zebra-trainer"
        running.store.create(f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims", held)
        yield running


@pytest.fixture
async def address(server: ApiServer, tmp_path: Path) -> AsyncIterator[str]:
    """Show the cluster, and return the address of the pages."""
    async with visited(server, tmp_path) as found:
        yield found


async def everything(address: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the text of every page that links lead to, and of its first update."""
    found: dict[str, str] = {}
    waiting = [urljoin(address, path) for path in ("/", *REQUESTS)]
    async with aiohttp.ClientSession(headers=headers) as session:
        while waiting:
            url = waiting.pop().partition("#")[0]
            if url in found or urlsplit(url).netloc != urlsplit(address).netloc:
                continue
            found[url] = text = await of(session, url)
            links = re.findall('(?:href|action|src|data-updates)="([^"]+)"', text)
            waiting += [urljoin(url, unescape(link)) for link in links]
    return found


async def of(session: aiohttp.ClientSession, url: str) -> str:
    """Return an answer, head and body; of a stream the first event, which has all rows that there are."""
    stream = re.sub("since=[^&]*", "since=0", url)
    async with session.get(stream, allow_redirects=False) as answer:
        if answer.content_type == "text/event-stream":
            return (await answer.content.readuntil(b"\n\n")).decode()
        return f"{answer.headers}\n{await answer.text()}"


async def test_names_that_a_viewer_may_not_see_are_in_nothing_that_is_sent(address: str) -> None:
    """Neither in pages nor in updates. Who may list all pods finds the names there, so the test would see them."""
    pages = await everything(address, ALICE)
    assert [url for url, text in pages.items() if HIDDEN in text.lower()] == []
    assert any("red-pod" in text for text in pages.values())
    seen = "\n".join((await everything(address, OLGA)).values())
    assert [name for name in ("broken", "drifted", "promised", "claim") if f"zebra-{name}" not in seen] == []


async def test_an_update_names_nothing_that_a_viewer_may_not_see(server: ApiServer, address: str) -> None:
    """A pod of others changes the row of its node, without a name."""
    async with (
        aiohttp.ClientSession(headers=ALICE) as session,
        session.get(f"{address}/updates?color=namespace") as stream,
    ):
        await stream.content.readuntil(b"\n\n")
        create(server, "zebra-new", "gpu-1", 1, allocation=on(2, 1))
        event = (await stream.content.readuntil(b"\n\n")).decode()
    assert "event: rows" in event
    assert "GPU 2: 4 of 15 GiB" in event
    assert HIDDEN not in event


async def test_what_a_viewer_asks_for_names_nothing_hidden(address: str) -> None:
    """A request that others keep from fitting has causes without names."""
    manifest = {
        "manifest": "apiVersion: v1\nkind: Pod\nmetadata: {name: mine}\nspec: {containers: [{name: a, image: a, "
        "resources: {limits: {aliyun.com/gpu-mem: 15}}}]}"
    }
    async with aiohttp.ClientSession(headers=ALICE) as session:
        async with session.post(f"{address}/fits", data=manifest) as answer:
            text = await answer.text()
        assert (answer.status, HIDDEN in text) == (200, False)
        for path in ("/nodes/zebra-node", "/nodes/gpu-1?pod=zebra-broken", "/pods/zebra-team/zebra-broken"):
            async with session.get(address + path) as answer:
                assert "zebra-main" not in await answer.text()


async def test_a_pod_that_a_viewer_may_not_see_is_answered_like_none(address: str) -> None:
    """Whether there is such a pod, nobody learns by asking for it."""
    answers = set()
    async with aiohttp.ClientSession(headers=ALICE) as session:
        for name in ("zebra-waiting", "zebra-broken", "there-is-none"):
            async with session.get(f"{address}/waiting/{NAMESPACE}/{name}") as answer:
                answers.add((answer.status, (await answer.text()).replace(name, "NAME")))
    assert {status for status, _ in answers} == {404}
    assert len(answers) == 1
