"""`gpushare web` beside a real daemon whose metrics the pages read: at a terminal, and in a cluster."""

from collections.abc import Callable
from pathlib import Path

import aiohttp

from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.people import Person
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.ports import claim_port
from gpushare_plugin.web.standing import ProgramNamespaces
from tests.node.promises import in_api, path
from tests.process.daemon import running
from tests.process.pages import pages
from tests.process.test_web import at, event
from tests.unit.kube.cluster import NODE, a_node
from tests.unit.sharing.settings import GPU_MEM
from tests.unit.web.test_daemon_metrics import NAMESPACE, a_daemon
from tests.unit.web.visited import asked, visited
from tests.waiting import until

CONFIG = """\
version: v1
health: {rescanSeconds: 1}
sharing: {memory: {resources: [{name: aliyun.com/gpu-mem}]}}
"""
GPUS = """\
gpus:
- {memory: 16GiB, processes: [{pod: default/trainer, container: main, memory: 6GiB, utilization: 40}]}
"""


async def shown(session: aiohttp.ClientSession, address: str, seen: Callable[[str], bool]) -> str:
    """Return the page of a node once the page is as expected, by the updates that the page itself follows."""
    async with session.get(at(address, "/updates"), params={"whole": "1", "use": "node", "node": NODE}) as updates:
        while True:
            async with session.get(at(address, f"/nodes/{NODE}")) as answer:
                if seen(text := await answer.text()):
                    return text
            await event(updates)


async def test_pages_show_what_a_daemon_measures(kubelet: EmbeddedKubelet, short_path: Path) -> None:
    """Of the GPU and of each container, on the page of the node and among teams; others see totals alone."""
    port, trainer = claim_port(), Pod("trainer", [Container("main", {GPU_MEM: 8})])
    (config := short_path / "config.yaml").write_text(CONFIG)
    (gpus := short_path / "gpus.yaml").write_text(GPUS)
    async with ApiServer() as server:
        a_node(server)
        a_daemon(server, NODE, port)
        server.people.tokens |= {"token-of-olga": Person("olga", None), "token-of-alice": Person("alice")}
        kubeconfig = server.kubeconfig(short_path / "kubeconfig")
        options = ("--config-file", config, "--simulate", gpus, "--pod-resources-socket", kubelet.pod_resources_socket)
        cluster = ("--node-name", NODE, "--kubeconfig", kubeconfig, "--follow-pods", "true")
        metrics = ("--http-address", f"127.0.0.1:{port}", "--container-metrics", "true")
        async with running(kubelet, *options, *cluster, *metrics) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 16})
            server.store.create(path(trainer), in_api(trainer))
            await kubelet.admit(trainer)
            async with (
                pages(kubeconfig, f"--daemon-metrics={NAMESPACE}") as address,
                aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
            ):
                async with browser.get(address):
                    pass
                page = await shown(browser, address, lambda text: "main: 6.0 GiB" in text)
                assert "used: 38 % of memory, 40 % of compute" in page
                assert "<td>main: 40 %</td>" in page
                async with browser.get(at(address, "/"), params={"color": "use"}) as answer:
                    assert "default/trainer: memory main: 6.0 GiB, compute main: 40 %" in await answer.text()
            async with visited(server, short_path, namespaces=ProgramNamespaces(daemons=NAMESPACE)) as address:
                place = f"{address}/nodes/{NODE}"

                async def seen() -> bool:
                    return "main: 6.0 GiB" in (await asked(place, "token-of-olga"))[1]

                await until(seen)
                _, page = await asked(place, "token-of-alice")
                assert "used: 38 % of memory, 40 % of compute" in page
                assert "trainer" not in page
        assert {each.resource for each in server.asked if each.name == f"of-{NODE}:{port}"} == {"pods/proxy"}
