"""Tests of `whole_cluster.overview`: what is asked for, to show a cluster to people."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from gpushare_plugin.kube.client import NODES, Client, ClusterError, Timing
from gpushare_plugin.kube.whole_cluster.overview import Overview, follow, read
from gpushare_plugin.kube.whole_cluster.reading import ATTEMPTS, PAGE
from gpushare_plugin.ledger.annotations import LIMITS, MOST_CHARACTERS
from gpushare_plugin.ledger.node_record import encode
from gpushare_plugin.testing.cluster import ApiServer, Permission
from gpushare_plugin.testing.cluster.server import Refusal
from tests.process.test_inspect import a_node
from tests.unit.kube.cluster import QUICK
from tests.unit.kube.pods import PODS, pod
from tests.unit.observe.cluster.clusters import gpu, recorded
from tests.waiting import until


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with a node, and more pods than a page has."""
    async with ApiServer() as running:
        running.store.create(NODES, {"metadata": {"name": "gpu-1"}})
        for number in range(PAGE + 1):
            running.store.create(PODS, pod(f"pod-{number}", units="1"))
        yield running


async def test_followed_objects_are_read_once(server: ApiServer, tmp_path: Path) -> None:
    """One object of each kind tells whether the cluster can be read; what there is comes with the first list."""
    async with (
        Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client,
        aclosing(follow(client, (), 0, empty=Overview)) as overviews,
    ):
        overview = await anext(overviews)
        assert list(overview.account.nodes) == ["gpu-1"]
        lists = [asked.resource for asked in server.asked if asked.verb == "list"]
        assert (lists.count("nodes"), lists.count("pods")) == (1 + 1, 1 + 2)


async def test_an_object_that_cannot_be_followed_is_an_error_at_once(server: ApiServer, tmp_path: Path) -> None:
    """A Node that is not there, and a right that is missing, are an error and nothing to wait for."""
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        with pytest.raises(ClusterError, match="found no node gpu-2"):
            await anext(follow(client, ("gpu-1", "gpu-2"), 0, empty=Overview))
        server.permissions = {Permission("list", "nodes")}
        with pytest.raises(ClusterError, match="this needs the right to list pods in the whole cluster"):
            await anext(follow(client, ("gpu-1",), 0, empty=Overview))


async def test_a_missing_right_to_watch_is_an_error_that_names_the_right(server: ApiServer, tmp_path: Path) -> None:
    """Objects that can be listed are shown once, and then comes the error: waiting would not help."""
    server.permissions = {Permission("list", "nodes"), Permission("list", "pods"), Permission("watch", "nodes")}
    async with (
        Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client,
        aclosing(follow(client, (), 0, empty=Overview)) as overviews,
    ):
        assert list((await anext(overviews)).account.nodes) == ["gpu-1"]
        with pytest.raises(ClusterError, match="this needs the right to list and watch pods in the whole cluster"):
            async for _ in overviews:
                pass


async def test_a_failing_watch_of_claims_is_told_like_one_of_pods(tmp_path: Path) -> None:
    """While Nodes and Pods are answered and ResourceClaims are not, what is shown of claims is old."""
    timing = Timing(request=20.0, watch=60.0, quiet=0.3, first_wait=0.01, longest_wait=0.05)
    async with ApiServer() as server, Client(server.kubeconfig(tmp_path / "kubeconfig"), timing) as client:
        a_node(server, "gpu-1", encode(recorded(gpu("gpu-1", 0, 0, resource=None, mode=None, by_claim=True))))
        async with aclosing(follow(client, (), 0, empty=Overview)) as overviews:
            overview = await anext(overviews)
            await until(lambda: overview.silence is None)
            server.held.add("resourceclaims")
            await until(lambda: overview.followers[-1].silence is not None)
            assert overview.silence is not None
            server.held.clear()
            await until(lambda: overview.silence is None)


async def test_a_server_that_has_too_much_to_do_is_asked_again(server: ApiServer, tmp_path: Path) -> None:
    """As often as is reasonable while somebody waits; then its answer is the error."""
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        server.refusals.append(Refusal(429, times=ATTEMPTS - 1, headers={"Retry-After": "0"}))
        assert list((await read(client, empty=Overview)).account.nodes) == ["gpu-1"]
        server.refusals.append(Refusal(429, headers={"Retry-After": "0"}))
        with pytest.raises(ClusterError, match="429"):
            await read(client, empty=Overview)


async def test_a_pod_has_what_its_daemon_wrote_about_limits_and_nothing_else(tmp_path: Path) -> None:
    """Other annotations are not kept as text; a text longer than any of the daemon is cut, and stays too long."""
    async with ApiServer() as server, Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        server.store.create(NODES, {"metadata": {"name": "gpu-1"}})
        texts = {"limited": {LIMITS: "text", "other": "text"}, "long": {LIMITS: "x" * 2 * MOST_CHARACTERS}, "plain": {}}
        for name, annotations in texts.items():
            made = pod(name, "gpu-1")
            server.store.create(PODS, {**made, "metadata": {**made["metadata"], "annotations": annotations}})
        account = (await read(client, empty=Overview)).account.account_of("gpu-1")
    assert {each.name: dict(each.written) for each in account.pods} == {
        "limited": {LIMITS: "text"},
        "long": {LIMITS: "x" * (MOST_CHARACTERS + 1)},
        "plain": {},
    }
