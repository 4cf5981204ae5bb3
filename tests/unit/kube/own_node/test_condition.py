"""Tests of `gpushare_plugin.kube.own_node.condition`: the Node says whether new pods can get GPUs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.base.published import Published
from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.kube.own_node.condition import HEARTBEAT, ConditionWriter, condition
from gpushare_plugin.kube.whole_cluster.cleaning import clean_nodes
from gpushare_plugin.observe.readiness import NO_GPU, STARTING, Readiness
from gpushare_plugin.testing.cluster import ApiServer, Permission
from gpushare_plugin.testing.cluster.server import Refusal
from tests.unit.kube.cluster import NODE, NOW, QUICK, a_node
from tests.waiting import until

READY = Readiness("True", "GpusUsable", "2 of 2 GPUs can be allocated")
OF_THE_KUBELET = {"type": "Ready", "status": "True", "reason": "KubeletReady"}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with a node that has a condition of the kubelet, and no other right than the one needed."""
    async with ApiServer(frozenset({Permission("patch", "nodes/status")})) as running:
        a_node(running)
        running.store.patch(NODES, NODE, {"status": {"conditions": [OF_THE_KUBELET]}})
        yield running


class Watch:
    """A writer whose state and clock are in the hands of a test."""

    def __init__(self, client: Client, server: ApiServer) -> None:
        """Start with a node that is not ready yet."""
        self._server = server
        self._client = client
        self.state = STARTING
        self.now = float(NOW)
        self.looks = 0
        self.nodes = Published[Any](server.store.find(NODES, NODE)[0])

    def look(self) -> Readiness:
        """Return the state."""
        self.looks += 1
        return self.state

    async def looked(self, more: int = 3) -> None:
        """Wait for so many more looks."""
        enough = self.looks + more
        await until(lambda: self.looks >= enough)

    @contextlib.asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Keep the condition."""
        writer = ConditionWriter(self._client, NODE, lambda: self.now)
        task = asyncio.create_task(writer.keep(self.nodes, self.look, look_every=0.001))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def written(self) -> dict[str, str]:
        """Return our condition on the Node."""
        found = condition(self._server.store.find(NODES, NODE)[0])
        return dict(found or {})

    async def says(self, state: Readiness) -> None:
        """Wait until the Node says that."""
        await until(lambda: self.written().get("reason") == state.reason, self.written)


@pytest.fixture
async def watch(server: ApiServer, tmp_path: Path) -> AsyncIterator[Watch]:
    """Return a writer that is not running yet."""
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        yield Watch(client, server)


async def test_our_condition_stands_beside_the_conditions_of_others(server: ApiServer, watch: Watch) -> None:
    """Ours has all that a condition has, and the kubelet's stays as it is."""
    watch.state = READY
    async with watch.keeping():
        await watch.says(READY)
    time = "2025-10-09T08:53:20Z"
    assert server.store.find(NODES, NODE)[0]["status"]["conditions"] == [
        {
            "type": "GpuSharingReady",
            "status": "True",
            "reason": "GpusUsable",
            "message": "2 of 2 GPUs can be allocated",
            "lastHeartbeatTime": time,
            "lastTransitionTime": time,
        },
        OF_THE_KUBELET,
    ]


async def test_the_time_of_a_transition_is_that_of_the_status(watch: Watch) -> None:
    """Another reason alone is no transition, also over a restart of the daemon; another status is one."""
    async with watch.keeping():
        await watch.says(STARTING)
        watch.now += 60
        watch.state = READY
        await watch.says(READY)
    first = watch.written()
    assert first["lastTransitionTime"] == first["lastHeartbeatTime"] == "2025-10-09T08:54:20Z"
    watch.now += 60
    watch.nodes.publish(watch._server.store.find(NODES, NODE)[0])  # noqa: SLF001 - as a new daemon finds it
    watch.state = Readiness("True", "SomeGpusUnusable", "1 of 2 GPUs can be allocated")
    async with watch.keeping():
        await watch.says(watch.state)
    second = watch.written()
    assert second["lastTransitionTime"] == first["lastTransitionTime"]
    assert second["lastHeartbeatTime"] == "2025-10-09T08:55:20Z"


async def test_an_unchanged_condition_is_written_again_as_a_heartbeat_only(server: ApiServer, watch: Watch) -> None:
    """A condition that is not renewed shows that nobody renews it; until then there is no request."""
    watch.state = READY
    async with watch.keeping():
        await watch.says(READY)
        watch.now += HEARTBEAT - 1
        await watch.looked()
        assert len(server.asked) == 1
        watch.now += 1
        await until(lambda: watch.written()["lastHeartbeatTime"] == "2025-10-09T08:58:20Z")
    assert watch.written()["lastTransitionTime"] == "2025-10-09T08:53:20Z"


async def test_a_state_that_is_over_at_the_next_look_is_not_written(server: ApiServer, watch: Watch) -> None:
    """A kubelet that restarts takes a second to be registered with again."""
    states = [READY, READY, NO_GPU, READY, NO_GPU, READY, READY]
    watch.look = lambda: states.pop(0) if states else READY  # type: ignore[method-assign]
    async with watch.keeping():
        await until(lambda: not states)
        await watch.says(READY)
    assert [each.verb for each in server.asked] == ["patch"]


async def test_a_failed_write_of_the_condition_is_tried_again(server: ApiServer, watch: Watch) -> None:
    """Once the API server answers, the newest state is written."""
    server.refusals.append(Refusal(503, times=2))
    async with watch.keeping():
        await until(lambda: len(server.asked) == 2)
        watch.state = READY
        await watch.says(READY)


async def test_a_node_that_was_created_again_gets_a_condition_of_its_own(server: ApiServer, watch: Watch) -> None:
    """A Node that was deleted and created again has the condition once it is seen; before, the patch meets nobody."""
    watch.state = READY
    async with watch.keeping():
        await watch.says(READY)
        server.store.delete(NODES, NODE)
        a_node(server)
        assert watch.written() == {}
        watch.now += HEARTBEAT
        await until(lambda: [each.status for each in server.asked][-1] == 422)
        assert watch.written() == {}
        watch.nodes.publish(server.store.find(NODES, NODE)[0])
        await watch.says(READY)


async def test_the_cleanup_removes_the_condition(server: ApiServer, watch: Watch, tmp_path: Path) -> None:
    """Also from a Node on which nothing else is ours; conditions of others stay."""
    watch.state = READY
    async with watch.keeping():
        await watch.says(READY)
    server.permissions = None
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        assert [each async for each in clean_nodes(client)] == [(NODE, None)]
        assert [each async for each in clean_nodes(client)] == []
    assert server.store.find(NODES, NODE)[0]["status"]["conditions"] == [OF_THE_KUBELET]
