"""Tests of `gpushare_plugin.adapters.cluster.member`: what the cluster asks of a node, and what the node tells."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_plugin.adapters.cluster import records
from gpushare_plugin.adapters.cluster.client import NODES, Client
from gpushare_plugin.adapters.cluster.labels import node_labels
from gpushare_plugin.adapters.cluster.member import Marks, Member, apply_metadata, clean
from gpushare_plugin.adapters.cluster.settings import CONFIG
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.foundation.published import Published
from gpushare_plugin.model.health import Cordon
from gpushare_plugin.programs.node.node import decide
from gpushare_plugin.sharing.snapshot import Snapshot
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.server import Refusal
from tests import nodes
from tests.unit.adapters.cluster.cluster import NODE, a_node, annotate, label, member_of, name_in_configmap, written
from tests.waiting import until

PRODUCT = "nvidia.com/gpu.product"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with a node."""
    async with ApiServer() as running:
        a_node(running)
        yield running


def shared_by_memory(*memory_mib: int, unhealthy: Mapping[str, str] | None = None) -> Snapshot:
    """Return a node whose GPUs are shared by memory."""
    inventory = nodes.a_node(*memory_mib)
    loaded = Configs().load()
    assert loaded.config is not None
    return Snapshot(inventory, decide(loaded, inventory).resources, loaded.config, unhealthy or {})


def expected(snapshot: Snapshot) -> Marks:
    """Return what should be on the node."""
    return Marks(
        node_labels(snapshot),
        {records.GPUS: records.encode(records.record(snapshot))},
        {records.GPU_COUNT: str(len(snapshot.inventory.gpus))},
    )


@asynccontextmanager
async def telling(
    server: ApiServer, folder: Path, snapshots: Published[Snapshot], *, with_labels: bool = True
) -> AsyncIterator[Client]:
    """Run a member that tells."""
    async with member_of(server, folder, node_labels=with_labels) as (member, client):
        task = asyncio.create_task(member.tell(snapshots))
        try:
            yield client
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class TestTelling:
    """Labels, annotation and capacity."""

    async def test_the_node_says_what_it_is(self, server: ApiServer, tmp_path: Path) -> None:
        """Labels, annotation and capacity are written, and again when the node is another."""
        snapshots = Published(shared_by_memory(8192, 8192))
        async with telling(server, tmp_path, snapshots):
            await until(lambda: written(server) == expected(snapshots.value))
            snapshots.publish(shared_by_memory(8192))
            await until(lambda: written(server) == expected(snapshots.value))
        (node,) = server.store.find(NODES, NODE)
        assert node["metadata"]["labels"]["kubernetes.io/hostname"] == NODE

    async def test_what_is_true_no_more_is_removed(self, server: ApiServer, tmp_path: Path) -> None:
        """Labels that nobody writes any more go, also those of an earlier life that wrote other ones."""
        snapshots = Published(shared_by_memory(8192))
        async with telling(server, tmp_path, snapshots):
            await until(lambda: written(server).labels)
        async with telling(server, tmp_path, snapshots, with_labels=False):
            await until(lambda: not written(server).labels)
        assert written(server).annotations == expected(snapshots.value).annotations

    async def test_nothing_is_written_twice(self, server: ApiServer, tmp_path: Path) -> None:
        """A node that says what it should, also after a restart, is left alone."""
        snapshots = Published(shared_by_memory(8192))
        async with telling(server, tmp_path, snapshots):
            await until(lambda: written(server) == expected(snapshots.value))
        asked = len(server.asked)
        async with telling(server, tmp_path, snapshots):
            label(server, "team", "a")
            await until(lambda: [each.verb for each in server.asked[asked:]].count("watch") == 2)
            snapshots.publish(shared_by_memory(8192, 8192))
            await until(lambda: written(server) == expected(snapshots.value))
        patches = [each.resource for each in server.asked[asked:] if each.verb == "patch"]
        assert patches == ["nodes", "nodes/status"]

    async def test_a_config_full_of_mistakes_is_told_as_far_as_there_is_room(
        self, server: ApiServer, tmp_path: Path
    ) -> None:
        """Notices by the thousand make no annotation that the API server refuses."""
        many = tuple(f"settings refused: {'mistake ' * 30} {number}" for number in range(2000))
        snapshots = Published(replace(shared_by_memory(8192), notices=many))
        async with telling(server, tmp_path, snapshots):
            await until(lambda: written(server) == expected(snapshots.value))
        assert {each.status for each in server.asked} == {200}
        told = records.decode(written(server).annotations[records.GPUS]).notices
        assert told[-1].startswith("1,980 more notices are left out here")

    async def test_a_capacity_that_the_kubelet_resets_comes_back(self, server: ApiServer, tmp_path: Path) -> None:
        """A kubelet that begins anew sets extended resources to 0; the count is written again."""
        snapshots = Published(shared_by_memory(8192))
        async with telling(server, tmp_path, snapshots):
            await until(lambda: written(server).capacity)
            server.store.update(NODES, NODE, {("status", "capacity", records.GPU_COUNT): "0"}, "kubelet")
            assert not written(server).capacity
            await until(lambda: written(server).capacity == {records.GPU_COUNT: "1"})

    async def test_labels_of_others_are_left_to_them(self, server: ApiServer, tmp_path: Path) -> None:
        """A label that somebody else writes differently stays theirs, and becomes ours when they give it up."""
        snapshots = Published(shared_by_memory(8192))
        label(server, PRODUCT, "Something-else", "nfd-master")
        async with telling(server, tmp_path, snapshots):
            await until(lambda: written(server).annotations)
            assert PRODUCT not in written(server).labels
            assert len(written(server).labels) == len(node_labels(snapshots.value)) - 1
            label(server, PRODUCT, None, "nfd-master")
            await until(lambda: written(server) == expected(snapshots.value))

    async def test_a_node_made_anew_is_written_anew(self, server: ApiServer, tmp_path: Path) -> None:
        """A Node that was deleted is not made by us, and the next of its name is written in full."""
        snapshots = Published(shared_by_memory(8192))
        async with telling(server, tmp_path, snapshots):
            await until(lambda: written(server).annotations)
            server.store.delete(NODES, NODE)
            snapshots.publish(shared_by_memory(8192, 8192))
            a_node(server)
            await until(lambda: written(server) == expected(snapshots.value))

    @pytest.mark.parametrize("status", [403, 409, 429, 500])
    async def test_a_refusal_is_tried_again(self, server: ApiServer, tmp_path: Path, status: int) -> None:
        """Writes that are refused are tried again until they are not, with what is true by then."""
        snapshots = Published(shared_by_memory(8192))
        server.refusals.append(Refusal(status, "patch", times=3))
        async with telling(server, tmp_path, snapshots):
            await until(lambda: [each.status for each in server.asked].count(status) == 3)
            snapshots.publish(shared_by_memory(8192, 8192))
            await until(lambda: written(server) == expected(snapshots.value))

    async def test_cleaning_removes_everything(self, server: ApiServer, tmp_path: Path) -> None:
        """After a cleanup nothing of ours is on any node, and everything else still is; a second one has no work."""
        snapshots = Published(shared_by_memory(8192))
        server.store.update(NODES, "another", {("metadata", "labels", "team"): "b"})
        async with telling(server, tmp_path, snapshots):
            await until(lambda: written(server) == expected(snapshots.value))
        async with Client(tmp_path / "kubeconfig") as client:
            assert [each async for each in clean(client)] == [(NODE, None)]
            assert [each async for each in clean(client)] == []
        (node,) = server.store.find(NODES, NODE)
        assert node["metadata"]["labels"] == {"kubernetes.io/hostname": NODE}
        assert node["metadata"]["annotations"] == node["status"]["capacity"] == {}

    async def test_a_node_that_refuses_keeps_no_other_from_being_cleaned(
        self, server: ApiServer, tmp_path: Path
    ) -> None:
        """Every node is tried, and each that is not clean yet is named with the reason."""
        server.store.update(NODES, "another", {("metadata", "labels", "team"): "b"})
        async with Client(server.kubeconfig(tmp_path / "kubeconfig")) as client:
            nodes, _ = await client.list(NODES, None)
            for node in nodes:
                await apply_metadata(client, node, Marks(labels={"nvidia.com/gpu.count": "1"}))
            server.refusals.append(Refusal(500, "patch", times=1))
            first = {name: error is None async for name, error in clean(client)}
            assert sorted(first.values()) == [False, True]
            assert [error async for _, error in clean(client)] == [None]


class TestObeying:
    """GPUs taken out by hand, and labels for settings."""

    @pytest.fixture
    async def member(self, server: ApiServer, tmp_path: Path) -> AsyncIterator[Member]:
        """Run a member that follows."""
        async with member_of(server, tmp_path) as (running, _client):
            assert await running.answered()
            yield running

    async def test_gpus_are_taken_out_and_brought_back(self, server: ApiServer, member: Member) -> None:
        """ConfigMap and annotation take GPUs out by index or UUID; emptied, removed or deleted they bring them back."""
        inventory = nodes.a_node(8192, 8192, 8192)
        first, second, third = (gpu.uuid for gpu in inventory.gpus)
        assert member.cordon(inventory) == Cordon()
        name_in_configmap(server, "0,1")
        await until(lambda: set(member.cordon(inventory).gpus) == {first, second})
        annotate(server, records.UNHEALTHY_GPUS, f"{third}, 7")
        await until(lambda: set(member.cordon(inventory).gpus) == {first, second, third})
        assert member.cordon(inventory).gpus[first] == f"taken out by ConfigMap kube-system/unhealthy-gpu-{NODE}"
        assert member.cordon(inventory).gpus[third] == "taken out by annotation gpushare/unhealthy-gpus"
        name_in_configmap(server, None)
        await until(lambda: set(member.cordon(inventory).gpus) == {third})
        annotate(server, records.UNHEALTHY_GPUS, None)
        await until(lambda: not member.cordon(inventory).gpus)

    async def test_only_labels_for_settings_count(self, server: ApiServer, member: Member) -> None:
        """Reloading follows the labels that settings depend on, not the many others."""
        reloads: list[Mapping[str, str]] = []
        snapshots = Published(Snapshot())
        obeying = asyncio.create_task(
            member.obey({}, snapshots, lambda _cordon: None, lambda: reloads.append(member.labels))
        )
        label(server, "team", "a")
        label(server, CONFIG, "slices")
        await until(lambda: reloads)
        label(server, CONFIG, None)
        await until(lambda: len(reloads) == 2)
        obeying.cancel()
        assert reloads == [{CONFIG: "slices"}, {}]

    async def test_a_node_that_is_deleted_asks_for_what_it_did(self, server: ApiServer, member: Member) -> None:
        """Between a Node and the one its kubelet makes next, GPUs stay out, and settings what they were."""
        inventory = nodes.a_node(8192)
        annotate(server, records.UNHEALTHY_GPUS, "0")
        label(server, CONFIG, "slices")
        await until(lambda: member.labels and member.cordon(inventory).gpus)
        snapshots = Published(Snapshot(inventory))
        cordons: list[Cordon] = []
        reloads: list[None] = []
        obeying = asyncio.create_task(
            member.obey(member.labels, snapshots, cordons.append, lambda: reloads.append(None))
        )
        await until(lambda: len(cordons) == 1)
        server.store.delete(NODES, NODE)
        await until(lambda: len(cordons) == 2)
        assert cordons[0] == cordons[1] != Cordon()
        assert reloads == []
        obeying.cancel()
        a_node(server)
        await until(lambda: (member.labels, member.cordon(inventory)) == ({}, Cordon()))

    async def test_what_may_not_be_read_is_not_waited_for(self, tmp_path: Path) -> None:
        """A server that forbids has answered, and the start goes on."""
        async with ApiServer(()) as server, member_of(server, tmp_path) as (member, _client):
            assert await member.answered()
            assert (member.labels, member.cordon(nodes.a_node(8192))) == ({}, Cordon())

    async def test_the_start_waits_no_longer_than_it_says(self, server: ApiServer, tmp_path: Path) -> None:
        """A server that says nothing does not hold up the node."""
        server.silent = True
        async with member_of(server, tmp_path) as (member, _client):
            assert not await member.answered(within=0.05)
            assert (member.labels, member.cordon(nodes.a_node(8192))) == ({}, Cordon())
