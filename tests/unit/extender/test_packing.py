"""The policy `packing` in an extender: what it answers, learns and tells, and what becomes of pods without it."""

import json
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpushare_plugin.extender.answers import WASTES_MORE
from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.kube.scheduling.lessons import LESSON, read
from gpushare_plugin.kube.whole_cluster.extender_lease import extender_standing
from gpushare_plugin.kube.whole_cluster.overview import read as read_cluster
from gpushare_plugin.kube.whole_cluster.packed import PackedOverview
from gpushare_plugin.packing.seen import Lesson
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.ports import claim_port
from tests.chart.test_scheduler import configuration
from tests.cluster.scheduler import Entry, Scheduler
from tests.cluster.tasks import alongside
from tests.unit.extender.extenders import (
    LEASE,
    LEASES,
    MEMORY,
    PODS,
    Extending,
    a_pod,
    extender,
    gpu_of,
    node,
    pod,
)
from tests.unit.kube.cluster import QUICK
from tests.waiting import until

ROOM = {"cpu": "16", "memory": "64Gi"}


def roomy(name: str, *units: int) -> dict[str, Any]:
    """Return a Node with CPU and memory."""
    made = node(name, *units)
    made["status"]["allocatable"] |= ROOM
    return made


def held(name: str, where: str, units: int, *, cpu: str = "0") -> dict[str, Any]:
    """Return a pod that others bound to the first GPU of a node, as its daemon says."""
    made = pod(name, {MEMORY: str(units), "cpu": cpu} if units else {"cpu": cpu})
    made["spec"]["nodeName"] = where
    if units:
        shares = {"main": {MEMORY: {f"GPU-{where}-0": units}}}
        made["metadata"]["annotations"] = {"gpushare/allocation": json.dumps({"version": 1, "containers": shares})}
    return made


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with a node whose CPU is used up, a node with 8 of 16 units held, and an empty node."""
    async with ApiServer() as running:
        for name in ("busy", "half", "empty"):
            running.store.create(NODES, roomy(name, 16, 16))
        running.store.create(NODES, {"metadata": {"name": "plain"}, "status": {"allocatable": ROOM}})
        running.store.create(PODS, held("a", "busy", 0, cpu="16"))
        running.store.create(PODS, held("b", "half", 8))
        yield running


@pytest.fixture
async def packing(server: ApiServer, tmp_path: Path) -> AsyncIterator[Extending]:
    """Run an extender with the policy `packing`."""
    async with extender(server, tmp_path, policy="packing") as running:
        yield running


ALL = ("busy", "half", "empty", "plain")


async def test_pods_go_where_least_room_is_lost(server: ApiServer, packing: Extending) -> None:
    """A half goes to the other half of a GPU; a pod or a node that names another policy keeps that.

    What a pod that is bound takes counts at once.
    """
    asked = a_pod(server, "asked", {MEMORY: "8", "cpu": "1"})
    assert await packing.scores(asked, *ALL) == {"busy": 4, "half": 10, "empty": 4, "plain": 0}
    spread = pod("spread", 8, uid="spread", annotations={"gpushare/placement": "spread"})
    assert max((await packing.scores(spread, *ALL)).items(), key=lambda each: each[1])[0] != "half"
    assert await packing.bind(asked, "half") == ""
    assert gpu_of(server, "asked") == "GPU-half-0"
    scores = await packing.scores(pod("next", {MEMORY: "8", "cpu": "1"}, uid="next"), *ALL)
    assert scores["half"] < 10


async def test_pods_without_gpus_go_beside_gpus_that_are_taken(packing: Extending) -> None:
    """The second entry scores them: the node without GPUs first, then the node with less free GPU; others get 0."""

    async def scores(asked: dict[str, Any]) -> dict[str, int]:
        answer = await packing.post("/prioritize-others", {"Pod": asked, "NodeNames": ["half", "empty", "plain"]})
        return {each["Host"]: each["Score"] for each in answer}

    without = await scores(pod("without", {"cpu": "1"}, uid="without"))
    assert without["plain"] == 10
    assert without["half"] >= without["empty"]
    assert set((await scores(pod("with", 4, uid="with"))).values()) == {0}
    assert set((await packing.scores(pod("without", {"cpu": "1"}, uid="without"), *ALL)).values()) == {0}


async def test_kube_scheduler_can_be_left_only_the_best_nodes(server: ApiServer, tmp_path: Path) -> None:
    """Others are told to have room, and no eviction is tried there; a pod that is promised a node keeps that."""
    async with extender(server, tmp_path, policy="packing", exact=True) as exact:
        found = await exact.filter(pod("asked", {MEMORY: "8", "cpu": "1"}, uid="asked"), "half", "empty")
        assert found["NodeNames"] == ["half"]
        assert (found["FailedAndUnresolvableNodes"], found.get("FailedNodes", {})) == ({"empty": WASTES_MORE}, {})
        assert await exact.fits(pod("asked", {MEMORY: "8", "cpu": "1"}, uid="asked"), "empty") == ["empty"]
        assert await exact.fits(pod("large", 99, uid="large"), *ALL) == []


async def test_what_was_learned_is_in_the_lease(server: ApiServer, tmp_path: Path) -> None:
    """A new extender learns from the pods that there are; a lesson is due with the hundredth pod, refused or not.

    With the lesson of the Lease, `gpushare explain` says of each node what the extender goes by.
    """
    for number in range(60):
        a_pod(server, f"waits-{number}", 4)
    async with extender(server, tmp_path, policy="packing") as learning:
        for number in range(60):
            await learning.fits(pod(f"new-{number}", 8, uid=f"new-{number}"), "half")
            await learning.fits(pod(f"new-{number}", 8, uid=f"new-{number}"), "half")

        def lesson() -> Lesson | None:
            (lease,) = server.store.find(LEASES, LEASE)
            return read(lease["metadata"]["annotations"].get(LESSON, ""))

        await until(lambda: lesson() is not None)
        assert lesson() == Lesson({25: 60.0, 50: 40.0}, {frozenset(): 3_500.0})
        asked = a_pod(server, "asked", {MEMORY: "8", "cpu": "1"})
        scores = await learning.scores(asked, "busy", "half", "empty")
        async with Client(server.kubeconfig(tmp_path / "person"), QUICK) as client:
            standing = await extender_standing(client, "kube-system", datetime.now(UTC))
            overview = await read_cluster(client, empty=lambda: PackedOverview(standing))
        losses = overview.losses(msgspec.convert(asked, ApiPod))
        assert {node: each.score for node, each in losses.items()} == scores
        assert min(losses, key=lambda node: losses[node].loss) == "half"


async def test_metrics_tell_what_is_of_no_use(server: ApiServer, tmp_path: Path) -> None:
    """Of six GPUs half a GPU is allocated, and two are beside a CPU that is used up; no share was seen yet."""
    probes = claim_port()
    async with extender(server, tmp_path, policy="packing", probe_address=f"127.0.0.1:{probes}") as running:
        async with running.http.get(f"http://127.0.0.1:{probes}/metrics") as page:
            lines = (line.rpartition(" ") for line in (await page.text()).splitlines())
        assert {name: value for name, _, value in lines if name.startswith("gpushare_extender_gpus")} == {
            "gpushare_extender_gpus": "6.0",
            "gpushare_extender_gpus_allocated": "0.5",
            "gpushare_extender_gpus_stranded": "2.0",
            "gpushare_extender_gpus_too_small": "0.0",
        }


async def test_pods_without_gpus_are_placed_as_ever_without_an_extender(server: ApiServer, tmp_path: Path) -> None:
    """kube-scheduler, as the chart configures it, asks the second entry about them, and does without an answer."""
    told = configuration({"scheduler": {"enabled": True, "placement": "packing"}})["extenders"]
    assert [entry.get("ignorable") for entry in told] == [False, True]
    async with Client(server.kubeconfig(tmp_path / "scheduler")) as client:
        await client.configure()
        async with extender(server, tmp_path, policy="packing") as running:
            entries = [Entry.of(entry, f"http://127.0.0.1:{running.port}") for entry in told]
            scheduler = Scheduler(client, entries, random.Random(1))  # noqa: S311 - no secret
            async with alongside(scheduler.run()):
                for number in range(3):
                    assert await _placed(server, f"with-{number}") == "plain"
                await running.end()
                assert await _placed(server, "alone") in ALL
                share = a_pod(server, "share", 4)
                await until(lambda: any(failure.startswith("share") for failure in scheduler.failures))
                assert "nodeName" not in server.store.find(PODS, share["metadata"]["name"])[0]["spec"]


async def _placed(server: ApiServer, name: str) -> str:
    """Create a pod without GPUs, and return the node that it gets."""
    a_pod(server, name, {})

    def where() -> str | None:
        found: str | None = server.store.find(PODS, name)[0]["spec"].get("nodeName")
        return found

    await until(lambda: where() is not None)
    return where() or ""
