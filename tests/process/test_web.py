"""`gpushare web` as a person at a terminal and as a cluster runs it, asked by a client that is no browser."""

import asyncio
import html
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, encode
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.people import Person
from gpushare_plugin.testing.ports import claim_port
from tests.process.daemon import comes_to_answer, gpushare, process
from tests.process.pages import address, server
from tests.process.test_inspect import running
from tests.unit.kube.pods import PODS, pod
from tests.unit.observe.cluster.clusters import gpu, recorded
from tests.unit.web.visited import asked

__all__ = ["address", "server"]


@pytest.fixture
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    """Return a client that keeps cookies."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


def at(address: str, path: str) -> str:
    """Return the address of a path, without the token."""
    return urlsplit(address)._replace(path=path, query="").geturl()


async def test_the_address_is_good_once_and_leaves_the_browser(address: str, browser: aiohttp.ClientSession) -> None:
    """The first browser gets a cookie that scripts cannot read, and an address without the token; a second nothing."""
    async with browser.get(address) as first:
        assert (first.status, str(first.url)) == (200, at(address, "/"))
        (redirect,) = first.history
        assert "HttpOnly" in redirect.headers["Set-Cookie"]
        assert "SameSite=Strict" in redirect.headers["Set-Cookie"]
        assert "2 GPUs on 1 node" in await first.text()
    async with aiohttp.ClientSession() as other, other.get(address) as second:
        assert second.status == 403
    async with browser.get(at(address, "/")) as again:
        assert again.status == 200


async def test_nothing_is_shown_without_the_token(address: str) -> None:
    """Neither pages nor updates nor the style sheet: a wrong token is no token."""
    async with aiohttp.ClientSession() as stranger:
        for path in ("/", "/updates", "/static/style.css", "/?token=", "/?token=wrong"):
            async with stranger.get(at(address, "/").rstrip("/") + path) as answer:
                assert answer.status == 403, path
                assert "gpu-1" not in await answer.text()


async def test_a_cookie_that_is_no_text_is_a_wrong_cookie(address: str) -> None:
    """Bytes that are not UTF-8 are refused as every wrong cookie, and so are such tokens."""
    port = urlsplit(address).port
    host, cookie = f"Host: 127.0.0.1:{port}\r\n".encode(), f"Cookie: gpushare-{port}=".encode()
    for request in (b"/ HTTP/1.1\r\n" + cookie + b"\xff\xfe\r\n", b"/?token=%ff HTTP/1.1\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET " + request + host + b"\r\n")
        assert await reader.readline() == b"HTTP/1.1 403 Forbidden\r\n"
        writer.close()
        await writer.wait_closed()


async def test_a_name_that_leads_here_is_refused(address: str, browser: aiohttp.ClientSession) -> None:
    """A page from elsewhere cannot read this one through a host name of its own."""
    async with browser.get(address):
        pass
    async with browser.get(at(address, "/"), headers={"Host": "rebound.example"}) as answer:
        assert answer.status == 421


async def test_every_answer_forbids_what_is_not_ours(address: str, browser: aiohttp.ClientSession) -> None:
    """Also refusals have the policy by which the browser loads and runs nothing from elsewhere."""
    for url in (at(address, "/"), address, at(address, "/nowhere"), at(address, "/static/updates.js")):
        async with browser.get(url) as answer:
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; ")
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_change_is_sent_to_an_open_page(
    server: ApiServer, address: str, browser: aiohttp.ClientSession
) -> None:
    """The row of the node that changed arrives, with what is held now."""
    async with browser.get(address):
        pass
    async with browser.get(at(address, "/updates")) as updates:
        assert "event: load" in await event(updates)
        running(server, "model", "gpu-1", 6, "GPU-gpu-1-1")
        nodes = json.loads((await event(updates)).partition("data: ")[2])
        assert {name: list(rows) for name, rows in nodes.items()} == {"gpu-1": ["gpu-1/"]}
        assert "GPU 1: 6 of 15 GiB" in nodes["gpu-1"]["gpu-1/"]


async def event(updates: aiohttp.ClientResponse) -> str:
    """Return the next event of a stream."""
    return (await updates.content.readuntil(b"\n\n")).decode()


async def test_a_request_is_told_where_it_fits(server: ApiServer, address: str, browser: aiohttp.ClientSession) -> None:
    """At an address to paste: the place that the ledger gives, how many fit, and what is wrong with a request."""
    running(server, "model", "gpu-1", 6, "GPU-gpu-1-1")
    async with browser.get(address):
        pass
    page = at(address, "/fits")
    async with browser.get(page, params={"request": "10 GiB, A100"}) as answer:
        text = await answer.text()
        assert '10 aliyun.com/gpu-mem on <a href="/nodes/gpu-1#gpu-0">GPU 0</a>' in text
        assert 'data-updates="/updates?whole=1&amp;since=' in text
        says = "spread, chosen by the default of the scheduler extender (Lease kube-system/gpushare-extender)"
        assert f"Placement policy: {says}" in text
    async with browser.get(page, params={"request": "1 GiB", "placement": "binpack"}) as answer:
        assert "Placement policy: binpack, chosen here" in await answer.text()
    async with browser.get(page, params={"request": "<script>, 24 GB"}) as answer:
        assert (answer.status, "<script>," in await answer.text()) == (200, False)
    async with browser.get(at(address, "/updates"), params={"whole": "1", "since": "-1"}) as updates:
        assert "event: load" in await event(updates)


async def test_a_manifest_is_taken_from_pages_of_this_server_alone(
    address: str, browser: aiohttp.ClientSession
) -> None:
    """A form of this page is answered; one from elsewhere, a large one, and one to another path are refused."""
    async with browser.get(address):
        pass
    page, own = at(address, "/fits"), {"Sec-Fetch-Site": "same-origin"}
    pod = "kind: Pod\nmetadata: {name: big}\nspec: {containers: [{resources: {limits: {aliyun.com/gpu-mem: 20}}}]}"
    async with browser.post(page, data={"manifest": pod}, headers=own) as answer:
        text = await answer.text()
        assert "The pod fits on no node" in text
        assert "no GPU has 20 units of aliyun.com/gpu-mem free" in text
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://elsewhere.example"}):
        async with browser.post(page, data={"manifest": pod}, headers=headers) as answer:
            assert answer.status == 403
    async with browser.post(page, data={"manifest": "a" * 70_000}, headers=own) as answer:
        assert "65,536 at most" in await answer.text()
    async with browser.post(page, data={"manifest": "a" * 300_000}, headers=own) as answer:
        assert answer.status == 413
    async with browser.post(at(address, "/"), data={"manifest": pod}, headers=own) as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    async with aiohttp.ClientSession() as stranger, stranger.post(page, data={"manifest": pod}, headers=own) as answer:
        assert answer.status == 403


async def test_the_pages_of_a_cluster_are_for_users_of_its_api_server(server: ApiServer, tmp_path: Path) -> None:
    """At an address of its own the program is a daemon with probes, which shows nothing without a token."""
    server.people.tokens["token-of-olga"] = Person("olga", None)
    port, probes = claim_port(), claim_port()
    kubeconfig = server.kubeconfig(tmp_path / "config")
    addresses = (f"--listen-address=127.0.0.1:{port}", f"--probe-address=127.0.0.1:{probes}")
    async with process("web", *addresses, "--kubeconfig", kubeconfig) as daemon:
        await comes_to_answer(probes, "/readyz", (200, "ok\n"))
        assert (await asked(f"http://127.0.0.1:{port}/"))[0] == 401
        status, page = await asked(f"http://127.0.0.1:{port}/", "token-of-olga")
        assert (status, "2 GPUs on 1 node" in page) == (200, True)
        assert (await asked(f"http://127.0.0.1:{port}/", "wrong"))[0] == 401
        _, metrics = await asked(f"http://127.0.0.1:{probes}/metrics")
        counted = {
            'reviews_total{result="allowed"} 1.0',
            'reviews_total{result="unknown"} 1.0',
            "visitors 1.0",
            "nodes 1.0",
        }
        assert {f"gpushare_web_{each}" for each in counted} <= set(metrics.splitlines())
        assert await daemon.stop() == 0
        assert [each["event"] for each in daemon.log] == ["starting", "stopping", "stopped"]


async def test_a_daemon_outlives_an_api_server_that_does_not_answer(server: ApiServer, tmp_path: Path) -> None:
    """It is not ready until it has listed the cluster, and says in its log why."""
    probes, kubeconfig = claim_port(), server.kubeconfig(tmp_path / "config")
    await server.stop()
    addresses = ("--listen-address=127.0.0.1:0", f"--probe-address=127.0.0.1:{probes}")
    async with process("web", *addresses, "--kubeconfig", kubeconfig) as daemon:
        await daemon.logged("task_failed", task="following")
        await comes_to_answer(probes, "/readyz", (503, "all nodes and pods have not been listed yet\n"))
        await server.start()
        await comes_to_answer(probes, "/readyz", (200, "ok\n"))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--listen-address=:0"], "would take tokens over plain HTTP: give --tls-certificate and --tls-key, or"),
        (["--listen-address=10.0.0.1:0", "--insecure-http=false"], "would take tokens over plain HTTP"),
        (["--listen-address=localhost:0", "--port=8000"], "leave out --port"),
        (["--listen-address=localhost:8000", "--probe-address=:8000"], "are the same port"),
        (["--listen-address=:0", "--tls-key=key.pem"], "HTTPS needs both --tls-certificate and --tls-key"),
        (["--listen-address=localhost:0", "--proxy-client-authority=ca.pem"], "HTTPS needs both --tls-certificate"),
        (["--listen-address=localhost:0", "--proxy-names=front"], "--proxy-names needs --proxy-client-authority"),
    ],
)
async def test_options_that_contradict_each_other_are_refused(
    server: ApiServer, tmp_path: Path, options: list[str], complaint: str
) -> None:
    """Before anything is served."""
    done = await gpushare("web", *options, "--kubeconfig", server.kubeconfig(tmp_path / "config"))
    assert done.status == 2
    assert complaint in " ".join(done.errors.split())


async def test_pods_that_wait_are_explained(
    server: ApiServer, address: str, browser: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Units, claims and what the scheduler says; a pod's page has the text of `gpushare explain`."""
    hold = {**pod("held", units="2")["spec"], "schedulingGates": [{"name": "example.com/hold"}]}
    claiming = {"containers": [{"name": "main"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "train"}]}
    async with browser.get(address):
        pass
    async with browser.get(at(address, "/updates"), params={"whole": "1", "since": "-1"}) as updates:
        assert "event: load" in await event(updates)
        server.store.create(PODS, {**pod("large", units="20"), "status": {"phase": "Pending"}})
        server.store.create(PODS, {**pod("held"), "spec": hold})
        server.store.create(PODS, {**pod("claiming"), "spec": claiming})
        running(server, "model", "gpu-1", 6, "GPU-gpu-1-1")
        page, shown = at(address, "/waiting"), ""
        while not all(f"/waiting/team/{name}" in shown for name in ("large", "held", "claiming")):
            await event(updates)
            async with browser.get(page) as answer:
                shown = await answer.text()
    assert "3 pods wait for GPUs" in shown
    assert "No GPU of this cluster is larger than 15 units of aliyun.com/gpu-mem" in shown
    assert shown.count("Scheduling gate example.com/hold") == 1
    assert "claim train" in shown
    assert "Claim team/train: does not exist" in shown
    assert "/waiting/team/model" not in shown
    for name in ("large", "held", "claiming"):
        explained = await gpushare("explain", f"team/{name}", "--kubeconfig", server.kubeconfig(tmp_path / "same"))
        async with browser.get(at(address, f"/waiting/team/{name}")) as answer:
            text = (await answer.text()).partition('<pre id="explanation" tabindex="0">')[2].partition("</pre>")[0]
        assert html.unescape(text).split("\n") == ["", *explained.output.split("\n")]
    async with browser.get(at(address, "/waiting/team/model")) as answer:
        assert answer.status == 404


async def test_the_page_of_a_node_has_its_config_and_the_faults_that_came_and_went(
    server: ApiServer, address: str, browser: aiohttp.ClientSession
) -> None:
    """As the daemon of the node writes them; a fault that is over has an end."""
    async with browser.get(address):
        pass
    shown = ""
    async with browser.get(at(address, "/updates")) as updates:
        for reason, until in (("XID 79", "<td>now</td>"), (None, " UTC</td></tr>")):
            gpus = gpu("gpu-1", 0, healthy=not reason, reason=reason), gpu("gpu-1", 1)
            written = encode(replace(recorded(*gpus), config="a100", gpushare="1.2.3"))
            server.store.patch(NODES, "gpu-1", {"metadata": {"annotations": {GPUS_ANNOTATION: written}}})
            while "<td>XID 79</td>" not in shown or until not in shown:
                await event(updates)
                async with browser.get(at(address, "/nodes/gpu-1")) as answer:
                    shown = await answer.text()
    assert "Config in effect: a100; daemon: 1.2.3; partitioned: no" in shown
    assert "<td>now</td>" not in shown
