"""Tests of `whole_cluster.following`: Nodes and Pods, passed on as whoever follows wants them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.kube.nodes import node_of
from gpushare_plugin.kube.objects import ApiNode, ApiPod, PodSpec
from gpushare_plugin.kube.pods import pod_of
from gpushare_plugin.kube.whole_cluster.following import ClusterFollower, Objects
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.testing.cluster import ApiServer
from tests.unit.kube.cluster import QUICK
from tests.unit.kube.pods import PODS, pod
from tests.waiting import PATIENCE


class WideSpec(PodSpec, frozen=True):
    """A field more than what is kept of every pod."""

    hostname: str = ""


class WidePod(ApiPod, frozen=True):
    """A pod with it."""

    spec: WideSpec = WideSpec()


class Seen:
    """An account that is filled, and the pods that it was filled with; `changed` is set after each change."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.account = ClusterAccount()
        self.hostnames: dict[str, str] = {}
        self.changed = asyncio.Event()

    def nodes(self) -> Objects[ApiNode]:
        """Return what puts Nodes into the account."""
        return Objects(
            ApiNode,
            lambda node: self.account.put_node(node_of(node)),
            lambda gone: self.account.remove_node(gone.name),
            "nothing",
        )

    def pods(self) -> Objects[WidePod]:
        """Return what puts Pods into the account, and notes more of them."""

        def put(found: WidePod) -> None:
            self.account.put_pod(pod_of(found))
            self.hostnames[found.metadata.uid] = found.spec.hostname

        return Objects(WidePod, put, lambda gone: self.account.remove_pod(gone.uid), "nothing")

    async def until_pod(self, uid: str, *, known: bool) -> None:
        """Wait until a pod is in the account, or is not."""
        async with asyncio.timeout(PATIENCE):
            while (uid in self.account.pods) != known:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with a node."""
    async with ApiServer() as running:
        running.store.create(NODES, {"metadata": {"name": "gpu-1"}})
        yield running


async def test_an_account_is_filled_from_any_type_of_a_pod(server: ApiServer, tmp_path: Path) -> None:
    """A follower decodes its own type of a pod; the account gets what is there, and each change after it."""
    seen = Seen()
    one = pod("one")
    one["spec"]["hostname"] = "alpha"
    first = server.store.create(PODS, one)["metadata"]["uid"]
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client, asyncio.TaskGroup() as group:
        follower = ClusterFollower(client, seen.nodes(), seen.pods(), changed=seen.changed.set)
        assert (follower.missing, follower.age) == (["nodes", "pods"], None)
        following = group.create_task(follower.follow())
        await follower.listed()
        assert (follower.missing, follower.age is not None) == ([], True)
        assert (list(seen.account.nodes), seen.hostnames) == (["gpu-1"], {first: "alpha"})

        second = server.store.create(PODS, pod("two"))["metadata"]["uid"]
        await seen.until_pod(second, known=True)
        server.store.delete(PODS, "one")
        await seen.until_pod(first, known=False)
        following.cancel()
