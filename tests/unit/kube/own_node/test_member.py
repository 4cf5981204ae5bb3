"""Tests of `gpushare_plugin.kube.own_node.member`: what a node follows, and what it publishes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gpushare_plugin.base.published import Published
from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.directives import CONFIG
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.core.health import Cordon
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.kube import names
from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.kube.collection import PAGE
from gpushare_plugin.kube.own_node.labels import TIMESTAMP, node_labels
from gpushare_plugin.kube.own_node.member import Member
from gpushare_plugin.kube.own_node.publisher import OwnedFields, apply_metadata
from gpushare_plugin.kube.whole_cluster.cleaning import clean_nodes
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, decode, encode, record
from gpushare_plugin.node.configuration import decide
from gpushare_plugin.sharing.snapshot import planned_snapshot
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.server import Refusal
from tests import nodes
from tests.unit.kube.cluster import (
    NODE,
    NOW,
    a_node,
    annotate,
    label,
    member_of,
    name_in_configmap,
    written,
)
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
    return replace(planned_snapshot(loaded.config, inventory, decide(loaded, inventory)), unhealthy=unhealthy or {})


def expected(snapshot: Snapshot, now: int = NOW) -> OwnedFields:
    """Return what should be on the node."""
    return OwnedFields(
        node_labels(snapshot) | {TIMESTAMP: str(now)},
        {GPUS_ANNOTATION: encode(record(snapshot))},
        {names.GPU_COUNT: str(len(snapshot.inventory.cards))},
    )


@asynccontextmanager
async def publishing(
    server: ApiServer, folder: Path, snapshots: Published[Snapshot], *, with_labels: bool = True, now: int = NOW
) -> AsyncIterator[Client]:
    """Run a member that publishes."""
    async with member_of(server, folder, node_labels=with_labels, now=now) as (member, client):
        task = asyncio.create_task(member.publish_node(snapshots))
        try:
            yield client
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class TestPublishing:
    """Labels, annotation and capacity."""

    async def test_labels_annotation_and_capacity_of_the_node_are_written(
        self, server: ApiServer, tmp_path: Path
    ) -> None:
        """Labels, annotation and capacity are written, and again when the node is another."""
        snapshots = Published(shared_by_memory(8192, 8192))
        async with publishing(server, tmp_path, snapshots):
            await until(lambda: written(server) == expected(snapshots.value))
            snapshots.publish(shared_by_memory(8192))
            await until(lambda: written(server) == expected(snapshots.value))
        (node,) = server.store.find(NODES, NODE)
        assert node["metadata"]["labels"]["kubernetes.io/hostname"] == NODE

    async def test_labels_that_are_no_longer_true_are_removed(self, server: ApiServer, tmp_path: Path) -> None:
        """Labels that are no longer published are removed, also those from before a restart."""
        snapshots = Published(shared_by_memory(8192))
        async with publishing(server, tmp_path, snapshots):
            await until(lambda: written(server).labels)
        async with publishing(server, tmp_path, snapshots, with_labels=False):
            await until(lambda: not written(server).labels)
        assert written(server).annotations == expected(snapshots.value).annotations

    async def test_the_label_for_mps_follows_the_need(self, server: ApiServer, tmp_path: Path) -> None:
        """`gpushare/mps` is there while MPS is needed, also without NVIDIA's labels, and a cleanup removes it."""
        needs_mps = replace(shared_by_memory(8192), needs_mps=True)
        snapshots = Published(needs_mps)
        async with publishing(server, tmp_path, snapshots, with_labels=False):
            await until(lambda: written(server).labels == {names.NEEDS_MPS: "true"})
            snapshots.publish(shared_by_memory(8192))
            await until(lambda: not written(server).labels)
            snapshots.publish(needs_mps)
            await until(lambda: written(server).labels == {names.NEEDS_MPS: "true"})
        async with Client(tmp_path / "kubeconfig") as client:
            assert [each async for each in clean_nodes(client)] == [(NODE, None)]
        assert written(server).labels == {}

    async def test_a_node_that_is_up_to_date_is_not_written(self, server: ApiServer, tmp_path: Path) -> None:
        """A node that is up to date, also after a restart, is not written to."""
        snapshots = Published(shared_by_memory(8192))
        async with publishing(server, tmp_path, snapshots):
            await until(lambda: written(server) == expected(snapshots.value))
        asked = len(server.asked)
        async with publishing(server, tmp_path, snapshots):
            label(server, "team", "a")
            await until(lambda: [each.verb for each in server.asked[asked:]].count("watch") == 2)
            snapshots.publish(shared_by_memory(8192, 8192))
            await until(lambda: written(server) == expected(snapshots.value))
        patches = [each.resource for each in server.asked[asked:] if each.verb == "patch"]
        assert patches == ["nodes", "nodes/status"]

    async def test_the_timestamp_is_that_of_the_last_change(self, server: ApiServer, tmp_path: Path) -> None:
        """A later look, start or annotation writes no new timestamp; other labels do."""
        snapshots = Published(shared_by_memory(8192))
        async with publishing(server, tmp_path, snapshots):
            await until(lambda: written(server) == expected(snapshots.value))
        async with publishing(server, tmp_path, snapshots, now=NOW + 60):
            snapshots.publish(replace(snapshots.value, notices=("something else",)))
            await until(lambda: written(server) == expected(snapshots.value))
            snapshots.publish(shared_by_memory(8192, 8192))
            await until(lambda: written(server) == expected(snapshots.value, NOW + 60))

    async def test_the_timestamp_of_another_writer_is_left_to_it(self, server: ApiServer, tmp_path: Path) -> None:
        """Where NVIDIA's feature discovery writes one, it stays, and ours is not written."""
        snapshots = Published(shared_by_memory(8192))
        label(server, TIMESTAMP, "1724632719", "nfd-master")
        async with publishing(server, tmp_path, snapshots):
            await until(lambda: written(server).labels == node_labels(snapshots.value))
        (node,) = server.store.find(NODES, NODE)
        assert node["metadata"]["labels"][TIMESTAMP] == "1724632719"

    async def test_a_config_full_of_mistakes_is_reported_as_far_as_there_is_room(
        self, server: ApiServer, tmp_path: Path
    ) -> None:
        """Thousands of notices do not make the annotation larger than the API server accepts."""
        many = tuple(f"settings refused: {'mistake ' * 30} {number}" for number in range(2000))
        snapshots = Published(replace(shared_by_memory(8192), notices=many))
        async with publishing(server, tmp_path, snapshots):
            await until(lambda: written(server) == expected(snapshots.value))
        assert {each.status for each in server.asked} == {200}
        notices = decode(written(server).annotations[GPUS_ANNOTATION]).notices
        assert notices[-1].startswith("1,980 more warnings")

    async def test_a_capacity_that_the_kubelet_resets_comes_back(self, server: ApiServer, tmp_path: Path) -> None:
        """A kubelet that registers again sets extended resources to 0; the count is written again."""
        snapshots = Published(shared_by_memory(8192))
        async with publishing(server, tmp_path, snapshots):
            await until(lambda: written(server).capacity)
            server.store.update(NODES, NODE, {("status", "capacity", names.GPU_COUNT): "0"}, "kubelet")
            assert not written(server).capacity
            await until(lambda: written(server).capacity == {names.GPU_COUNT: "1"})

    async def test_labels_of_others_are_left_to_them(self, server: ApiServer, tmp_path: Path) -> None:
        """A label that another manager sets to another value is left alone, and written once they have removed it."""
        snapshots = Published(shared_by_memory(8192))
        label(server, PRODUCT, "Something-else", "nfd-master")
        async with publishing(server, tmp_path, snapshots):
            await until(lambda: written(server).annotations)
            assert PRODUCT not in written(server).labels
            assert written(server).labels.keys() == expected(snapshots.value).labels.keys() - {PRODUCT}
            label(server, PRODUCT, None, "nfd-master")
            await until(lambda: written(server) == expected(snapshots.value))

    async def test_a_node_created_again_is_written_again(self, server: ApiServer, tmp_path: Path) -> None:
        """A Node that was deleted is not created by us, and the next of its name is written in full."""
        snapshots = Published(shared_by_memory(8192))
        async with publishing(server, tmp_path, snapshots):
            await until(lambda: written(server).annotations)
            server.store.delete(NODES, NODE)
            snapshots.publish(shared_by_memory(8192, 8192))
            a_node(server)
            await until(lambda: written(server) == expected(snapshots.value))

    @pytest.mark.parametrize("status", [403, 409, 429, 500])
    async def test_a_failed_write_is_retried(self, server: ApiServer, tmp_path: Path, status: int) -> None:
        """Writes that fail are retried until they succeed, with the newest values."""
        snapshots = Published(shared_by_memory(8192))
        server.refusals.append(Refusal(status, "patch", times=3))
        async with publishing(server, tmp_path, snapshots):
            await until(lambda: [each.status for each in server.asked].count(status) == 3)
            snapshots.publish(shared_by_memory(8192, 8192))
            await until(lambda: written(server) == expected(snapshots.value))

    async def test_a_cleanup_removes_everything_of_ours_and_nothing_else(
        self, server: ApiServer, tmp_path: Path
    ) -> None:
        """After a cleanup nothing of ours is on any node, and everything else still is; a second one has no work."""
        snapshots = Published(shared_by_memory(8192))
        server.store.update(NODES, "another", {("metadata", "labels", "team"): "b"})
        async with publishing(server, tmp_path, snapshots):
            await until(lambda: written(server) == expected(snapshots.value))
        async with Client(tmp_path / "kubeconfig") as client:
            assert [each async for each in clean_nodes(client)] == [(NODE, None)]
            assert [each async for each in clean_nodes(client)] == []
        (node,) = server.store.find(NODES, NODE)
        assert node["metadata"]["labels"] == {"kubernetes.io/hostname": NODE}
        assert node["metadata"]["annotations"] == node["status"]["capacity"] == {}

    async def test_a_node_that_cannot_be_cleaned_does_not_stop_the_others(
        self, server: ApiServer, tmp_path: Path
    ) -> None:
        """Every node is tried, and each that is not clean yet is named with the reason."""
        server.store.update(NODES, "another", {("metadata", "labels", "team"): "b"})
        async with Client(server.kubeconfig(tmp_path / "kubeconfig")) as client:
            nodes, _ = await client.list(NODES, None)
            for node in nodes:
                await apply_metadata(client, node, OwnedFields(labels={"nvidia.com/gpu.count": "1"}))
            server.refusals.append(Refusal(500, "patch", times=1))
            first = {name: error is None async for name, error in clean_nodes(client)}
            assert sorted(first.values()) == [False, True]
            assert [error async for _, error in clean_nodes(client)] == [None]

    async def test_the_nodes_of_a_large_cluster_are_cleaned_page_by_page(
        self, server: ApiServer, tmp_path: Path
    ) -> None:
        """Hundreds of MiB of Nodes are never in memory at once: the pod that cleans has a limit."""
        last = f"z{PAGE:04}"
        for number in range(PAGE + 1):
            server.store.create(NODES, {"metadata": {"name": f"z{number:04}"}})
        async with Client(server.kubeconfig(tmp_path / "kubeconfig")) as client:
            (node,) = server.store.find(NODES, last)
            await apply_metadata(client, node, OwnedFields(labels={"nvidia.com/gpu.count": "1"}))
            server.asked.clear()
            assert [each async for each in clean_nodes(client)] == [(last, None)]
        assert [each.verb for each in server.asked].count("list") == 2


class TestFollowing:
    """Cordoned GPUs, and labels that choose the config."""

    @pytest.fixture
    async def member(self, server: ApiServer, tmp_path: Path) -> AsyncIterator[Member]:
        """Run a member that follows."""
        async with member_of(server, tmp_path) as (running, _client):
            assert await running.answered()
            yield running

    async def test_gpus_are_taken_out_and_brought_back(self, server: ApiServer, member: Member) -> None:
        """ConfigMap and annotation take GPUs out by index or UUID; emptied, removed or deleted they bring them back."""
        inventory = nodes.a_node(8192, 8192, 8192)
        first, second, third = (gpu.uuid for gpu in inventory.cards)
        assert member.cordon(inventory) == Cordon()
        name_in_configmap(server, "0,1")
        await until(lambda: set(member.cordon(inventory).gpus) == {first, second})
        annotate(server, names.UNHEALTHY_GPUS, f"{third}, 7")
        await until(lambda: set(member.cordon(inventory).gpus) == {first, second, third})
        assert member.cordon(inventory).gpus[first] == f"cordoned by ConfigMap kube-system/unhealthy-gpu-{NODE}"
        assert member.cordon(inventory).gpus[third] == "cordoned by annotation gpushare/unhealthy-gpus"
        name_in_configmap(server, None)
        await until(lambda: set(member.cordon(inventory).gpus) == {third})
        annotate(server, names.UNHEALTHY_GPUS, None)
        await until(lambda: not member.cordon(inventory).gpus)

    async def test_labels_that_the_config_does_not_depend_on_cause_no_reload(
        self, server: ApiServer, member: Member
    ) -> None:
        """Only the labels that the config depends on cause a reload, not the many others."""
        reloads: list[Mapping[str, str]] = []
        snapshots = Published(Snapshot())
        following = asyncio.create_task(
            member.follow_requests({}, snapshots, lambda _cordon: None, lambda: reloads.append(member.labels))
        )
        label(server, "team", "a")
        label(server, CONFIG, "slices")
        await until(lambda: reloads)
        label(server, CONFIG, None)
        await until(lambda: len(reloads) == 2)
        following.cancel()
        assert reloads == [{CONFIG: "slices"}, {}]

    async def test_requests_of_a_deleted_node_stay_in_force(self, server: ApiServer, member: Member) -> None:
        """Between a Node and the one its kubelet creates next, GPUs stay cordoned and the config stays the same."""
        inventory = nodes.a_node(8192)
        annotate(server, names.UNHEALTHY_GPUS, "0")
        label(server, CONFIG, "slices")
        await until(lambda: member.labels and member.cordon(inventory).gpus)
        snapshots = Published(Snapshot(inventory))
        cordons: list[Cordon] = []
        reloads: list[None] = []
        following = asyncio.create_task(
            member.follow_requests(member.labels, snapshots, cordons.append, lambda: reloads.append(None))
        )
        await until(lambda: len(cordons) == 1)
        server.store.delete(NODES, NODE)
        await until(lambda: len(cordons) == 2)
        assert cordons[0] == cordons[1] != Cordon()
        assert reloads == []
        following.cancel()
        a_node(server)
        await until(lambda: (member.labels, member.cordon(inventory)) == ({}, Cordon()))

    async def test_a_forbidden_object_is_not_waited_for(self, tmp_path: Path) -> None:
        """A server that forbids has answered, and the start goes on."""
        async with ApiServer(()) as server, member_of(server, tmp_path) as (member, _client):
            assert await member.answered()
            assert (member.labels, member.cordon(nodes.a_node(8192))) == ({}, Cordon())

    async def test_the_configmap_is_left_alone_on_request(self, server: ApiServer, tmp_path: Path) -> None:
        """Without the right to read ConfigMaps none is requested; the annotation cordons GPUs all the same."""
        inventory = nodes.a_node(8192)
        async with member_of(server, tmp_path, cordon_configmap=False) as (member, _client):
            assert await member.answered()
            annotate(server, names.UNHEALTHY_GPUS, "0")
            await until(lambda: member.cordon(inventory).gpus)
        assert {each.resource for each in server.asked} == {"nodes"}

    async def test_the_start_waits_for_the_server_no_longer_than_allowed(
        self, server: ApiServer, tmp_path: Path
    ) -> None:
        """A server that does not answer does not delay the start any longer."""
        server.silent = True
        async with member_of(server, tmp_path) as (member, _client):
            assert not await member.answered(within=0.05)
            assert (member.labels, member.cordon(nodes.a_node(8192))) == ({}, Cordon())
