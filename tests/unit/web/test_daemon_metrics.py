"""Which daemons are asked for what GPUs use, how often, and what one that lies can do."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web

from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.tasks import beside
from gpushare_plugin.claims.cluster import ClusterClaims
from gpushare_plugin.core.usage import Usage
from gpushare_plugin.kube.client import Client
from gpushare_plugin.kube.whole_cluster.daemons import DaemonPod, by_node
from gpushare_plugin.kube.whole_cluster.overview import read_all
from gpushare_plugin.testing.cluster import ApiServer, Permission
from gpushare_plugin.web.daemon_metrics import (
    AFTER_FAILURE,
    AT_A_TIME,
    EVERY,
    MOST_BYTES,
    Ask,
    UnansweredError,
    by_api_server,
    directly,
    follow_use,
    session_for_daemons,
)
from gpushare_plugin.web.following import FollowedPicture
from gpushare_plugin.web.interest import LASTING, Interest
from gpushare_plugin.web.use import UseReading
from tests.skipping import SkippingLoop
from tests.unit.kube.pods import pod
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded
from tests.unit.web.measured import GIB, gpu_lines, page
from tests.waiting import until

WEB = Path(__file__).parents[3] / "docs/web.md"
NAMESPACE = "gpus"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def followed(*nodes: str) -> FollowedPicture:
    """Return a picture of nodes with a GPU, each with a daemon; of no API server."""
    cluster, found = Cluster(), FollowedPicture()
    for name in nodes:
        cluster.node(name, recorded(gpu(name, 0)))
    found.picture.refresh(cluster.account, ClusterClaims())
    found.daemons = {name: DaemonPod(NAMESPACE, f"of-{name}", name, "127.0.0.1", 80, "") for name in nodes}
    return found


def reading(shown: FollowedPicture, node: str) -> UseReading:
    """Return what is known of the use of a node."""
    return shown.picture.nodes[node].reading


class Asked:
    """Counts who was asked when; those whose names begin with `silent` never answer, and those with `bad` fail."""

    def __init__(self) -> None:
        """Nobody was asked yet."""
        self.times: dict[str, list[float]] = {}
        self.now, self.most = 0, 0

    async def __call__(self, daemon: DaemonPod) -> bytes:
        """Answer for a daemon."""
        self.times.setdefault(daemon.node, []).append(asyncio.get_running_loop().time())
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if daemon.node.startswith("silent"):
                await asyncio.Event().wait()
            if daemon.node.startswith("bad"):
                raise UnansweredError("bad")
            return page(*gpu_lines(daemon.node, 0, GIB))
        finally:
            self.now -= 1


def test_only_what_an_open_page_shows_is_read() -> None:
    """No node without a page; then the nodes of the page at intervals; and what was read is forgotten afterwards."""

    async def watched() -> tuple[Asked, FollowedPicture]:
        asked, shown = Asked(), followed("a", "ab", "bad")
        async with beside(follow_use(shown, NAMESPACE, asked)) as using:
            await asyncio.sleep(100)
            assert not asked.times
            for _ in range(10):
                shown.interests.show(Interest("a", whole_name=True), asyncio.get_running_loop().time())
                await asyncio.sleep(15)
                shown.interests.show(Interest("bad"), asyncio.get_running_loop().time())
            await until(lambda: reading(shown, "a").usage is not None)
            assert reading(shown, "bad").problem == "bad"
            closed = asyncio.get_running_loop().time()
            await asyncio.sleep(LASTING + EVERY)
            assert max(map(max, asked.times.values())) <= closed + LASTING
            await asyncio.sleep(LASTING + EVERY)
            using.cancel()
        return asked, shown

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        asked, shown = runner.run(watched())
    assert set(asked.times) == {"a", "bad"}
    for node, least in (("a", EVERY), ("bad", AFTER_FAILURE)):
        times = asked.times[node]
        assert len(times) >= 2
        assert min(later - earlier for earlier, later in pairwise(times)) >= least
    assert reading(shown, "a").problem == "the metrics of the daemon were not read yet"


def test_daemons_that_do_not_answer_cost_their_own_nodes() -> None:
    """However many are silent: a bounded number is asked at a time, and all others are read."""

    async def watched() -> tuple[Asked, FollowedPicture]:
        silent = [f"silent-{number}" for number in range(100)]
        asked, shown = Asked(), followed("z", *silent)
        async with beside(follow_use(shown, NAMESPACE, asked)) as using:
            for _ in range(20):
                shown.interests.show(Interest(), asyncio.get_running_loop().time())
                await asyncio.sleep(10)
            using.cancel()
        return asked, shown

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        asked, shown = runner.run(watched())
    assert asked.most <= AT_A_TIME
    assert len(asked.times) == 101
    assert reading(shown, "z").usage is not None
    assert reading(shown, "silent-5").problem == "the daemon did not answer within 4 s"


def test_the_document_says_how_many_nodes_are_read_in_time() -> None:
    """AT_A_TIME nodes for each of the seconds between two readings of a node."""
    most = round(AT_A_TIME * EVERY)
    assert (
        f"{AT_A_TIME} a second: with more than {most} nodes, the use is older than {EVERY:.0f} seconds"
        in WEB.read_text()
    )


def test_without_a_namespace_nothing_is_read() -> None:
    """Whatever pages are open."""

    async def watched() -> Asked:
        asked, shown = Asked(), followed("a")
        shown.interests.show(Interest(), asyncio.get_running_loop().time())
        await follow_use(shown, "", asked)
        return asked

    assert not asyncio.run(watched()).times


async def answer(lie: str, paths: set[str], request: web.BaseRequest) -> web.StreamResponse:
    """Answer as a daemon that lies; one without a lie tells the truth."""
    paths.add(request.path)
    pod_of_others = "team/secret-pod"
    match lie:
        case "huge":
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(b"x" * 65536)
        case "redirect":
            return web.Response(status=302, headers={"Location": f"http://{request.host}/elsewhere"})
        case "failure":
            return web.Response(status=500, text=pod_of_others * 100_000)
        case "bomb":
            return web.Response(body=gzip.compress(b"0" * (20 << 20)), headers={"Content-Encoding": "gzip"})
        case "text":
            return web.Response(text=f"gpushare_gpu_memory_bytes{{{pod_of_others}")
        case "old":
            return web.Response(body=page("gpushare_usage_age_seconds 90"))
    return web.Response(body=page(*gpu_lines("good", 0, GIB)))


LIES = {
    "huge": f"the daemon's answer has more than {MOST_BYTES} bytes",
    "redirect": "the daemon answered with HTTP status 302",
    "failure": "the daemon answered with HTTP status 500",
    "bomb": "the daemon's answer is no page of metrics",
    "text": "the daemon's answer is no page of metrics",
    "old": "the daemon looked at its GPUs 90 s ago",
}
"""The lies, and what pages say of each that comes from the pod itself."""
THROUGH_THE_SERVER = LIES | {
    "redirect": "the daemon did not answer through the API server (HTTP status unknown)",
    "failure": "the daemon did not answer through the API server (HTTP status 500)",
    "bomb": LIES["huge"],
}
"""The same of answers that the API server passes on."""


@asynccontextmanager
async def lying(paths: set[str]) -> AsyncIterator[dict[str, int]]:
    """Serve each lie and the truth, and yield the ports; `paths` gets what is asked for."""
    async with AsyncExitStack() as stack:
        ports = {}
        for lie in (*LIES, "good"):
            runner = web.ServerRunner(web.Server(partial(answer, lie, paths)))
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            ports[lie] = runner.addresses[0][1]
        yield ports


async def found_by(shown: FollowedPicture, ask: Ask) -> dict[str, str]:
    """Return what is said of each node that lies, once all nodes were read; the one that does not has figures."""
    async with beside(follow_use(shown, NAMESPACE, ask)) as using:
        shown.interests.show(Interest(), asyncio.get_running_loop().time())
        await until(lambda: all("not read" not in each.reading.problem for each in shown.picture.nodes.values()))
        using.cancel()
    assert [each.memory_used for each in (reading(shown, "good").usage or Usage()).gpus] == [GIB]
    return {name: each.reading.problem for name, each in shown.picture.nodes.items() if name != "good"}


async def test_a_daemon_that_lies_has_no_figures() -> None:
    """Asked at the address of the pod: every lie ends within bounds, leads nowhere, and costs its own node alone."""
    paths = set[str]()
    async with lying(paths) as ports, session_for_daemons() as session:
        shown = followed(*ports)
        shown.daemons = {name: replace(each, port=ports[name]) for name, each in shown.daemons.items()}
        assert await found_by(shown, directly(session)) == LIES
    assert paths == {"/metrics"}


def a_daemon(server: ApiServer, node: str, port: int, namespace: str = NAMESPACE, **status: str) -> None:
    """Create the pod of a daemon as the chart makes it."""
    made = pod(f"of-{node}", node)
    made["metadata"] |= {"labels": {"app.kubernetes.io/component": "node-daemon"}, "namespace": namespace}
    made["spec"]["containers"] = [{"name": "gpushare", "ports": [{"name": "http", "containerPort": port}]}]
    made["status"] = {"phase": "Running", "podIP": "127.0.0.1", **status}
    server.store.create(f"/api/v1/namespaces/{namespace}/pods", made)


async def daemons(server: ApiServer, folder: Path) -> Mapping[str, DaemonPod]:
    """Return the daemons that a person finds in the cluster."""
    async with Client(server.kubeconfig(folder / "kubeconfig")) as client:
        return (await read_all(client)).daemons


async def test_the_same_through_the_api_server(tmp_path: Path) -> None:
    """With the right to get pods/proxy, and no other right than to read pods; what leads elsewhere is not followed."""
    paths, rights = set[str](), [Permission("list", "nodes"), Permission("list", "pods")]
    async with lying(paths) as ports, ApiServer([*rights, Permission("get", "pods/proxy", NAMESPACE)]) as server:
        for name, port in ports.items():
            a_daemon(server, name, port)
        shown = followed(*ports)
        shown.daemons = await daemons(server, tmp_path)
        async with Client(server.kubeconfig(tmp_path / "config"), redirected=False) as client:
            assert await found_by(shown, by_api_server(client)) == THROUGH_THE_SERVER
    assert paths == {"/metrics"}


async def test_a_right_that_is_missing_is_named(tmp_path: Path) -> None:
    """So that a person knows what to ask for."""
    async with ApiServer([]) as server, Client(server.kubeconfig(tmp_path / "config")) as client:
        with pytest.raises(UnansweredError, match="needs the right to get pods/proxy"):
            await by_api_server(client)(DaemonPod(NAMESPACE, "one", "a", "", 80, ""))


async def test_only_daemons_of_the_namespace_are_believed(tmp_path: Path) -> None:
    """Whatever labels pods have elsewhere; of several on a node, the newest that runs."""
    async with ApiServer() as server:
        a_daemon(server, "a", 1)
        a_daemon(server, "a", 2, "tenant")
        a_daemon(server, "b", 3, phase="Failed")
        a_daemon(server, "c", 4, podIP="")
        server.store.create(PODS, pod("other", "d"))
        found = await daemons(server, tmp_path)
    assert {each.namespace for each in found.values()} == {NAMESPACE, "tenant"}
    assert {node: each.port for node, each in by_node(found.values(), NAMESPACE).items()} == {"a": 1}
    old = DaemonPod(NAMESPACE, "old", "a", "", 1, "2026-01-01")
    new = replace(old, name="new", created="2026-01-02")
    assert by_node([new, old], NAMESPACE) == {"a": new}
