"""Tests of `gpushare_plugin.partitioner`: from pods that wait to the annotation of a Node."""

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.annotations import ALLOCATION
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, GpuRecord, NodeRecord, encode
from gpushare_plugin.slices.mig import MigProfile
from gpushare_plugin.slices.wanted import WANTED_SLICES
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.rbac import Permission
from gpushare_plugin.testing.cluster.server import Refusal
from gpushare_plugin.testing.cluster.store.objects import ANNOTATIONS_LIMIT
from tests.unit.partitioner.partitioners import (
    PODS,
    ROOM,
    create_node,
    create_other,
    create_pod,
    messages,
    offer,
    partitioner,
    record,
    slices,
    uuid,
    wanted,
)
from tests.waiting import until

NOT_PARTITIONED = encode(NodeRecord(gpus=()))

Log = list[MutableMapping[str, Any]]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with a node of two GPUs of 40 GiB."""
    async with ApiServer() as running:
        create_node(running, "n0", 40, 40)
        yield running


async def test_a_slice_is_wanted_for_a_pod_that_waits(server: ApiServer, tmp_path: Path) -> None:
    """The annotation names the GPU, the slice and the pod; the pod has an Event that says the same in words."""
    async with partitioner(server, tmp_path / "one"):
        pod = create_pod(server, "p", "10gb")
        await until(lambda: slices(server, "n0") == {uuid("n0", 0): {"10gb": 1}})
        (kept,) = wanted(server, "n0").pods[pod["metadata"]["uid"]]
        assert (kept.gpu, kept.slice, kept.pod) == (uuid("n0", 0), "10gb", "team/p")
        text = "SliceBeingMade: slice nvidia.com/gpu-10gb is being made on GPU 0 of n0"
        await until(lambda: messages(server, "p") == [text])


async def test_pods_that_come_together_are_decided_together(server: ApiServer, tmp_path: Path) -> None:
    """Each gets a slice, no GPU more than it has, and no Event is sent twice."""
    for number in range(8):
        create_pod(server, f"p{number}", "10gb")
    async with partitioner(server, tmp_path / "one"):
        await until(lambda: len(wanted(server, "n0").pods) == 8)
        assert slices(server, "n0") == {uuid("n0", 0): {"10gb": 4}, uuid("n0", 1): {"10gb": 4}}
        await until(lambda: all(len(messages(server, f"p{number}")) == 1 for number in range(8)))


async def test_a_size_that_no_partitioned_gpu_can_have_is_said_at_once(server: ApiServer, tmp_path: Path) -> None:
    """The Event names the largest GPU and what is missing, or the MIG profiles that there are.

    GPUs of other nodes do not count, however large. Nothing is wanted of any node.
    """
    large = GpuRecord(index=0, uuid="GPU-large-0", product="B", memory_mib=80 * 1024)
    create_other(server, "large", NodeRecord(gpus=(large,), resources=()))
    async with partitioner(server, tmp_path / "one"):
        create_pod(server, "size", "50gb")
        create_pod(server, "profile", "1g.5gb")
        await until(lambda: messages(server, "size") and messages(server, "profile"))
        (size,), (profile,) = messages(server, "size"), messages(server, "profile")
        assert size == (
            "SliceNotMade: nvidia.com/gpu-50gb is larger than any partitioned GPU: 50 GiB requested, the largest one, "
            "A, has 40, 10 missing; request 40gb or less"
        )
        assert profile == (
            "SliceNotMade: no GPU of the cluster is partitioned by MIG, so nvidia.com/mig-1g.5gb cannot be made; "
            "gpushare inspect shows the warnings of each node"
        )
        profiles = (MigProfile(name="3g.20gb", starts=(0, 4), size=4, compute=3, most=2),)
        card = GpuRecord(index=0, uuid="GPU-mig-0", product="A", memory_mib=40 * 1024, profiles=profiles)
        create_other(server, "mig", NodeRecord(gpus=(card,), resources=(), partitioning="mig"))
        there = "SliceNotMade: no partitioned GPU has the MIG profile 1g.5gb; there are 3g.20gb"
        await until(lambda: there in messages(server, "profile"))
        create_pod(server, "fits", "3g.20gb")
        await until(lambda: wanted(server, "mig").gpus)
        assert not any(wanted(server, name).gpus for name in ("n0", "large"))


async def test_a_size_that_is_misspelt_is_said_with_the_spelling(server: ApiServer, tmp_path: Path) -> None:
    """The Event says what is expected."""
    async with partitioner(server, tmp_path / "one"):
        create_pod(server, "p", "1.5gb")
        await until(lambda: messages(server, "p"))
        (message,) = messages(server, "p")
        assert message == (
            "SliceNotMade: nvidia.com/gpu-1.5gb is no size of a slice: expected nvidia.com/gpu-<N>gb with a whole "
            "number from 1 to 9999, such as nvidia.com/gpu-10gb"
        )
        create_pod(server, "q", "1g.5g")
        await until(lambda: messages(server, "q"))
        (message,) = messages(server, "q")
        assert message == (
            "SliceNotMade: nvidia.com/mig-1g.5g is no MIG profile: expected nvidia.com/mig-<G>g.<N>gb with whole "
            "numbers, such as nvidia.com/mig-1g.5gb"
        )


async def test_a_node_where_the_pod_cannot_run_is_not_divided(server: ApiServer, tmp_path: Path) -> None:
    """Nodes are judged as kube-scheduler judges them; the Event says what keeps the pod away."""
    server.store.update(NODES, "n0", {("spec", "taints"): [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]})
    async with partitioner(server, tmp_path / "one"):
        create_pod(server, "p", "10gb")
        await until(lambda: messages(server, "p"))
        assert "dedicated=x:NoSchedule" in messages(server, "p")[0]
        create_pod(server, "q", "10gb", tolerations=[{"key": "dedicated", "operator": "Exists"}])
        await until(lambda: slices(server, "n0") == {uuid("n0", 0): {"10gb": 1}})


async def test_no_slice_is_made_for_a_pod_that_finds_one_on_another_node(server: ApiServer, tmp_path: Path) -> None:
    """A node with slices of its config, or of anybody's plugin, offers one: the next pods get theirs, and it no Event.

    Once that slice is taken, the next pod of this size gets one made.
    """
    offered = {**ROOM, "nvidia.com/gpu-10gb": "1"}
    server.store.create(NODES, {"metadata": {"name": "fixed"}, "spec": {}, "status": {"allocatable": offered}})
    async with partitioner(server, tmp_path / "one"):
        first = create_pod(server, "first", "10gb")
        other = create_pod(server, "other", "20gb")
        await until(lambda: messages(server, "other"))
        assert wanted(server, "n0").pods.keys() == {other["metadata"]["uid"]}
        server.store.update(PODS, "first", {("spec", "nodeName"): "fixed"})
        create_pod(server, "second", "10gb")
        await until(lambda: messages(server, "second"))
        assert first["metadata"]["uid"] not in wanted(server, "n0").pods
        assert not messages(server, "first")


async def test_a_slice_that_nobody_takes_is_tried_on_another_node(server: ApiServer, tmp_path: Path) -> None:
    """After the patience is over, the pod is told, and the slice is made elsewhere."""
    create_node(server, "n1", 40)
    async with partitioner(server, tmp_path / "one", patience=1.0):
        pod = create_pod(server, "p", "40gb")
        uid = pod["metadata"]["uid"]
        await until(lambda: any(wanted(server, name).pods for name in ("n0", "n1")))
        first, second = ("n0", "n1") if wanted(server, "n0").pods else ("n1", "n0")
        offer(server, first, *((40, 40) if first == "n0" else (40,)))
        # Both Nodes are written at the same time, in any order; and the patience with the second ends, too.
        await until(lambda: {*wanted(server, second).pods, *wanted(server, second).failed} == {uid})
        await until(lambda: uid in wanted(server, first).failed)
        await until(lambda: any(text.startswith("SliceTakenBack: ") for text in messages(server, "p")))


async def test_pods_that_swap_their_slices_are_not_told(server: ApiServer, tmp_path: Path) -> None:
    """kube-scheduler binds a pod to the slice that is kept for another: that one gets the slice which is left."""
    async with partitioner(server, tmp_path / "one"):
        waits, goes = (create_pod(server, name, "40gb")["metadata"]["uid"] for name in ("waits", "goes"))
        await until(lambda: wanted(server, "n0").pods.keys() == {waits, goes})
        offer(server, "n0", 40, 40)
        (own,), (left,) = (wanted(server, "n0").pods[uid] for uid in (waits, goes))
        allocation = {"version": 1, "containers": {"main": {"nvidia.com/gpu-40gb": {own.gpu: 1}}}}
        told = {ALLOCATION: json.dumps(allocation)}
        server.store.update(PODS, "goes", {("metadata", "annotations"): told, ("spec", "nodeName"): "n0"})
        await until(lambda: [kept.gpu for kept in wanted(server, "n0").pods.get(waits, ())] == [left.gpu])
        create_pod(server, "large", "50gb")
        await until(lambda: messages(server, "large") and messages(server, "waits"))
        assert [each.partition(":")[0] for each in messages(server, "waits")] == ["SliceBeingMade"]


NO_ANNOTATION = "the node's annotation gpushare/wanted-slices is gone, or cannot be read"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (None, "the node is gone"),
        ({("metadata", "annotations", GPUS_ANNOTATION): NOT_PARTITIONED}, "the node is not partitioned any more"),
        ({("metadata", "annotations", WANTED_SLICES): None}, NO_ANNOTATION),
        ({("metadata", "annotations", WANTED_SLICES): "?"}, NO_ANNOTATION),
    ],
)
async def test_a_slice_that_went_with_its_node_is_reported(
    server: ApiServer, tmp_path: Path, change: dict[tuple[str, ...], object] | None, reason: str
) -> None:
    """The pod is told why it gets another slice, wherever that is."""
    async with partitioner(server, tmp_path / "one"):
        create_pod(server, "p", "10gb")
        await until(lambda: len(messages(server, "p")) == 1)
        create_node(server, "n1", 40)
        if change is None:
            server.store.delete(NODES, "n0")
        else:
            server.store.update(NODES, "n0", change)
        await until(lambda: any(text.startswith("SliceTakenBack: ") for text in messages(server, "p")))
        taken = f"nvidia.com/gpu-10gb on GPU 0 of n0 is no longer kept for the pod: {reason}"
        assert f"SliceTakenBack: {taken}; the pod is considered again" in messages(server, "p")


async def test_a_restart_loses_nothing_and_changes_nothing(server: ApiServer, tmp_path: Path) -> None:
    """What is kept for pods is on the Node: the next partitioner keeps it as it is, and tells nobody again."""
    async with partitioner(server, tmp_path / "one"):
        create_pod(server, "p", "10gb")
        await until(lambda: messages(server, "p"))
    before = server.store.find(NODES, "n0")[0]["metadata"]["annotations"][WANTED_SLICES]
    async with partitioner(server, tmp_path / "two"):
        create_pod(server, "q", "20gb")
        await until(lambda: messages(server, "q"))
        assert wanted(server, "n0").pods.keys() == {each["metadata"]["uid"] for each in server.store.find(PODS)}
        assert before != server.store.find(NODES, "n0")[0]["metadata"]["annotations"][WANTED_SLICES]
        assert len(messages(server, "p")) == 1


async def test_a_decision_that_cannot_be_written_is_taken_anew(server: ApiServer, tmp_path: Path) -> None:
    """A conflict, or a failure of the server, only delays."""
    server.refusals += [Refusal(409, verb="patch", resource="nodes", times=2)]
    async with partitioner(server, tmp_path / "one"):
        create_pod(server, "p", "10gb")
        await until(lambda: sum(each.status == 409 for each in server.asked) >= 1)
        create_pod(server, "q", "10gb")
        await until(lambda: slices(server, "n0") == {uuid("n0", 0): {"10gb": 2}})


async def test_a_write_whose_answer_got_lost_is_reported(server: ApiServer, tmp_path: Path) -> None:
    """The watch shows that the annotation was written; only then are the pod and the metrics told, and once."""
    server.refusals += [Refusal(0, verb="patch", resource="nodes", times=1, carried_out=True)]
    async with partitioner(server, tmp_path / "one"):
        create_pod(server, "p", "10gb")
        text = "SliceBeingMade: slice nvidia.com/gpu-10gb is being made on GPU 0 of n0"
        await until(lambda: messages(server, "p") == [text])
        create_pod(server, "q", "10gb")
        await until(lambda: messages(server, "q"))
        assert messages(server, "p") == [text]


async def test_several_lost_writes_report_the_write_that_was_carried_out(server: ApiServer, tmp_path: Path) -> None:
    """Something else was decided before the second, so the pods of both are told by the second only."""
    lost = [Refusal(0, verb="patch", resource="nodes", times=1, carried_out=each) for each in (False, True)]
    server.refusals += lost
    async with partitioner(server, tmp_path / "one"):
        create_pod(server, "p", "10gb")
        await until(lambda: not lost[0].times)
        create_pod(server, "q", "20gb")
        await until(lambda: messages(server, "p") and messages(server, "q"))
        assert not lost[1].times
        for name, size in (("p", "10gb"), ("q", "20gb")):
            assert messages(server, name) == [
                f"SliceBeingMade: slice nvidia.com/gpu-{size} is being made on GPU 0 of n0"
            ]


async def test_a_node_with_an_impossible_record_is_left_out(server: ApiServer, tmp_path: Path, log: Log) -> None:
    """The log names it with the reason, once; pods on other nodes get their slices, round after round."""
    gpus = record("strange", (40,), {uuid("strange", 0): {"1gb": 200_000}})
    server.store.create(NODES, {"metadata": {"name": "strange", "annotations": {GPUS_ANNOTATION: gpus}}})
    async with partitioner(server, tmp_path / "one"):
        create_pod(server, "p", "10gb")
        await until(lambda: slices(server, "n0") == {uuid("n0", 0): {"10gb": 1}})
        create_pod(server, "q", "10gb")
        await until(lambda: slices(server, "n0") == {uuid("n0", 0): {"10gb": 2}})
    (told,) = (each for each in log if each["event"] in {"node_left_out", "task_crashed"})
    assert (told["node"], told["log_level"]) == ("strange", "warning")
    assert "GPU 0 has 200000 slices, and 1024 at most are possible" in told["reason"]


async def test_a_node_whose_annotations_are_full_is_told_plainly(server: ApiServer, tmp_path: Path, log: Log) -> None:
    """The API server takes 256 KiB of annotations; the log says so with what to do, and other nodes are served."""
    (found,) = server.store.find(NODES, "n0")
    there = sum(len(text) for item in found["metadata"]["annotations"].items() for text in item)
    server.store.update(
        NODES, "n0", {("metadata", "annotations", "filler"): "x" * (ANNOTATIONS_LIMIT - there - len("filler") - 50)}
    )
    create_node(server, "n1", 80, taints=[{"key": "dedicated", "value": "q", "effect": "NoSchedule"}])
    async with partitioner(server, tmp_path / "one"):
        create_pod(server, "p", "10gb")
        create_pod(server, "q", "60gb", tolerations=[{"key": "dedicated", "operator": "Exists"}])
        await until(lambda: slices(server, "n1") == {uuid("n1", 0): {"60gb": 1}})
        await until(lambda: [each for each in log if each["event"] == "wanted_slices_not_written"])
    (told,) = (each for each in log if each["event"] == "wanted_slices_not_written")
    assert told["node"] == "n0"
    assert "422: " in told["reason"]
    assert "annotations of an object have 256 KiB together at most: remove those that nobody needs" in told["remedy"]


async def test_a_missing_right_is_told_to_the_pod_and_to_observers(server: ApiServer, tmp_path: Path) -> None:
    """The Event has the decision, the answer and the right; readiness and a metric show it until it is granted."""
    server.permissions = {
        *(Permission(verb, resource) for resource in ("nodes", "pods") for verb in ("list", "watch")),
        *(Permission(verb, "events") for verb in ("create", "patch")),
        *(Permission(verb, "leases", group="coordination.k8s.io") for verb in ("get", "create", "patch")),
    }
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with partitioner(server, tmp_path / "one", probe_address="127.0.0.1:0", started=port.set_result):
        create_pod(server, "p", "10gb")
        await until(lambda: messages(server, "p"))
        (message,) = messages(server, "p")
        assert message.startswith(
            "SliceNotMade: slice nvidia.com/gpu-10gb was decided on GPU 0 of n0 and cannot be written to the Node: "
            "PATCH /api/v1/nodes/n0: 403: "
        )
        remedy = "grant patch of nodes (the chart's ClusterRole of the partitioner does)"
        assert message.endswith(f"; {remedy}")
        ready, metrics = f"http://127.0.0.1:{await port}/readyz", f"http://127.0.0.1:{await port}/metrics"
        assert remedy in await _page(ready)
        assert "gpushare_partitioner_nodes_unwritten 1.0" in await _page(metrics)
        server.permissions = None
        create_pod(server, "q", "10gb")
        await until(lambda: any("SliceBeingMade" in text for text in messages(server, "p")))
        assert await _page(ready) == "ok\n"
        assert "gpushare_partitioner_nodes_unwritten 0.0" in await _page(metrics)


async def test_a_rejected_write_is_said_once_and_forgotten_with_the_decision(
    server: ApiServer, tmp_path: Path, log: Log
) -> None:
    """An admission policy may reject one Node: the pod is told the answer, and the partitioner stays ready."""
    server.refusals += [Refusal(422, verb="patch", resource="nodes")]
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with partitioner(server, tmp_path / "one", probe_address="127.0.0.1:0", started=port.set_result):
        create_pod(server, "p", "10gb")
        await until(lambda: messages(server, "p"))
        create_pod(server, "large", "50gb")
        await until(lambda: messages(server, "large"))
        assert await _page(f"http://127.0.0.1:{await port}/readyz") == "ok\n"
        (message,) = messages(server, "p")
        assert "cannot be written to the Node: PATCH /api/v1/nodes/n0: 422: " in message
        assert "; see the answer: an admission policy or webhook may reject it; " in message
        assert [each["event"] for each in log].count("wanted_slices_not_written") == 1
        server.store.delete(PODS, "p")
        metrics = f"http://127.0.0.1:{await port}/metrics"
        while "gpushare_partitioner_nodes_unwritten 0.0" not in await _page(metrics):
            pass


async def test_a_pod_gets_its_slice_on_another_node_where_one_cannot_be_written(
    server: ApiServer, tmp_path: Path
) -> None:
    """The server rejects the annotation of one Node: pods wait for that Node only where no other has room."""
    server.refusals += [Refusal(422, verb="patch", resource="nodes", name="n0")]
    create_node(server, "n1", 40, 40)  # n0 comes first where the server takes both
    async with partitioner(server, tmp_path / "one"):
        for name in ("p", "q"):
            create_pod(server, name, "30gb")
        await until(lambda: slices(server, "n1") == {uuid("n1", number): {"30gb": 1} for number in range(2)})
        await until(lambda: messages(server, "p") and messages(server, "q"))
        for name in ("p", "q"):
            assert [text.partition(":")[0] for text in messages(server, name)] == ["SliceBeingMade"]
        create_pod(server, "large", "40gb")
        await until(lambda: messages(server, "large"))
        assert "of n0 and cannot be written to the Node" in messages(server, "large")[0]
        assert not slices(server, "n0")


async def _page(address: str) -> str:
    async with aiohttp.request("GET", address) as answer:
        return await answer.text()


async def test_a_pod_that_is_bound_while_its_slice_is_written_is_told_all_the_same(
    server: ApiServer, tmp_path: Path, log: Log
) -> None:
    """kube-scheduler may find an idle slice for it sooner: the term goes on."""
    async with partitioner(server, tmp_path / "one"):
        create_pod(server, "first", "10gb")
        await until(lambda: wanted(server, "n0").pods)
        server.late["nodes"] = 0.5
        uid = create_pod(server, "p", "10gb")["metadata"]["uid"]
        await until(lambda: uid in wanted(server, "n0").pods)
        server.store.update(PODS, "p", {("spec", "nodeName"): "n0"})
        await until(lambda: messages(server, "p"))
        assert [each for each in log if each["event"] == "task_crashed"] == []


async def test_two_partitioners_decide_one_after_the_other(server: ApiServer, tmp_path: Path) -> None:
    """One leads; when it ends, the other goes on, and no slice is wanted twice."""
    async with partitioner(server, tmp_path / "two"):
        async with partitioner(server, tmp_path / "one"):
            create_pod(server, "p", "10gb")
            await until(lambda: slices(server, "n0") == {uuid("n0", 0): {"10gb": 1}})
        create_pod(server, "q", "10gb")
        await until(lambda: slices(server, "n0") == {uuid("n0", 0): {"10gb": 2}})


async def test_an_annotation_that_nobody_can_read_is_decided_anew(server: ApiServer, tmp_path: Path) -> None:
    """Whoever may write the Node cannot stop the partitioner."""
    server.store.update(NODES, "n0", {("metadata", "annotations", WANTED_SLICES): '{"version": 9}'})
    async with partitioner(server, tmp_path / "one"):
        create_pod(server, "p", "10gb")
        await until(
            lambda: '"version":1' in server.store.find(NODES, "n0")[0]["metadata"]["annotations"][WANTED_SLICES]
        )
        assert slices(server, "n0") == {uuid("n0", 0): {"10gb": 1}}


async def test_metrics_count_what_was_decided(server: ApiServer, tmp_path: Path) -> None:
    """A scrape shows slices made and kept, the pods that wait, and how long they waited until a node offered them."""
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with partitioner(server, tmp_path / "one", probe_address="127.0.0.1:0", started=port.set_result):
        create_pod(server, "p", "10gb")
        create_pod(server, "large", "50gb")
        await until(lambda: slices(server, "n0"))
        offer(server, "n0", 40, 40)
        text = ""
        while "gpushare_partitioner_pod_wait_duration_seconds_count 1.0" not in text:
            async with aiohttp.request("GET", f"http://127.0.0.1:{await port}/metrics") as answer:
                text = await answer.text()
        lines = text.splitlines()
        assert 'gpushare_partitioner_pod_wait_duration_seconds_bucket{le="1800.0"} 1.0' in lines
        assert 'gpushare_partitioner_slices_made_total{slice="10gb"} 1.0' in lines
        assert 'gpushare_partitioner_refusals_total{reason="never"} 1.0' in lines
        assert "gpushare_partitioner_waiting_pods 2.0" in lines
        assert "gpushare_partitioner_slices_kept 1.0" in lines
        (longest,) = (line for line in lines if line.startswith("gpushare_partitioner_longest_wait_seconds "))
        assert float(longest.split()[1]) > 0
        assert "gpushare_partitioner_nodes 1.0" in lines
