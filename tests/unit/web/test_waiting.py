"""Pods that wait: who sees them, in which order, and why they wait."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.claims.cluster import ClusterClaims
from gpushare_plugin.kube.whole_cluster.waiting import WaitingPod
from gpushare_plugin.ledger.node import GPU_MEMORY
from gpushare_plugin.ledger.request import ContainerRequest
from gpushare_plugin.ledger.standing import ExtenderStanding
from gpushare_plugin.observe.cluster.explained import lines
from gpushare_plugin.observe.cluster.explanation import Told, explain
from gpushare_plugin.observe.cluster.verdict import with_verdict
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.standing import ClusterStanding
from gpushare_plugin.web.viewer import EVERYTHING, Viewer
from gpushare_plugin.web.waiting import asked, explained, verdict, waiting_pods
from gpushare_plugin.web.waiting_page import WaitingPages
from tests.unit.kube.pods import pod as api_pod
from tests.unit.ledger.objects import container, memory, pod, request
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded
from tests.unit.web.visited import a_cluster, visited
from tests.unit.web.visited import asked as visit

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MISTAKEN = request(ContainerRequest("main", "app", (("aliyun.com/gpu-memory", 8),)))
NOTHING = ClusterClaims()
ALICE = Viewer("alice", frozenset({"red"}))


def waits(name: str, units: int = 8, *, minutes: int = 0, reasons: tuple[str, ...] = (), **fields: Any) -> WaitingPod:
    """Return a pod that waits for memory since some minutes."""
    made = pod(memory(units), None, name, created=NOW - timedelta(minutes=minutes), **fields)
    return WaitingPod(made, "default-scheduler", reasons)


@pytest.fixture
def cluster() -> Cluster:
    """Return a node with a GPU, of which a pod of another namespace has most."""
    made = Cluster()
    made.node("a", recorded(gpu("a", 0)))
    made.pod("secret", 10, "a", on=0, namespace="blue")
    return made


def test_the_oldest_comes_first_and_others_are_counted(cluster: Cluster) -> None:
    """Pods of namespaces that the viewer may not see are a number; only pods without GPUs do not count."""
    network = WaitingPod(pod(request(container("main")), None, "network"))
    found = [
        waits("young", minutes=1, namespace="red"),
        waits("old", minutes=9, namespace="red"),
        waits("secret", minutes=20, namespace="blue"),
        WaitingPod(pod(MISTAKEN, None, "mistaken", created=NOW, namespace="red")),
        network,
    ]
    shown = waiting_pods(cluster.account, found, ALICE)
    assert ([each.pod.name for each in shown.seen], shown.others) == (["old", "young", "mistaken"], 1)
    assert waiting_pods(cluster.account, found, EVERYTHING).others == 0


@pytest.mark.parametrize(
    ("waiting", "why"),
    [
        (waits("p", 8), "No GPU has 8 units of aliyun.com/gpu-mem free (1 node)"),
        (
            waits("p", 2, reasons=("The scheduler says: no CPU",)),
            "Fits on 1 node, by the GPUs; The scheduler says: no CPU",
        ),
        (waits("p", gates=("hold",), reasons=("Scheduling gate hold: wait",)), "Scheduling gate hold: wait"),
        (
            WaitingPod(pod(MISTAKEN, None, "p")),
            "No node offers aliyun.com/gpu-memory; did you mean aliyun.com/gpu-mem?",
        ),
        (waits("p", ending=True), "The pod is being deleted"),
        (
            WaitingPod(pod(request(container("main")), None, "p"), claims=("train",)),
            "The pod waits for its claims, or for another reason of its scheduler",
        ),
    ],
)
def test_a_sentence_says_why_a_pod_waits(cluster: Cluster, waiting: WaitingPod, why: str) -> None:
    """The cause on most nodes, or what keeps the scheduler from a pod that fits."""
    assert verdict(cluster.account, waiting, NOW) == why


def test_what_a_pod_asks_for_has_units_and_claims() -> None:
    """In one line."""
    assert asked(WaitingPod(waits("p").pod, claims=("train",))) == f"8 {GPU_MEMORY}, claim train"


def text(cluster: Cluster, found: WaitingPod, viewer: Viewer) -> str:
    """Return the explanation of a pod for a viewer."""
    return "\n".join(lines(asyncio.run(explained(cluster.account, found, viewer, NOW, ExtenderStanding()))))


def test_the_text_is_that_of_explain_without_names_that_a_viewer_may_not_see(cluster: Cluster) -> None:
    """Who may see all pods reads what `gpushare explain` prints; others read how many pods hold the GPU."""
    found = waits("p", 8, namespace="red")
    whole = with_verdict(explain(cluster.account, found.pod, Told({}, "default-scheduler")))
    assert text(cluster, found, EVERYTHING) == "\n".join(lines(whole))
    assert "held by blue/secret (10)" in text(cluster, found, EVERYTHING)
    for_alice = text(cluster, found, ALICE)
    assert "secret" not in for_alice
    assert "held by 1 of other namespaces" in for_alice
    assert "Would fit if these pods ended: 1 of other namespaces" in for_alice


async def test_a_page_has_fifty_pods_and_says_how_many_there_are(cluster: Cluster) -> None:
    """The rest is on further pages; a number that is no page is the nearest page."""
    picture = Picture()
    many = [waits(f"p{number:03}", minutes=number, namespace="red") for number in range(120)]
    picture.refresh(cluster.account, NOTHING, {each.pod.uid: each for each in many})
    pages = WaitingPages(picture)
    first, last = await pages.all("", ALICE), await pages.all("999999", ALICE)
    assert (first.count("/waiting/red/"), last.count("/waiting/red/")) == (50, 20)
    assert "120 pods wait for GPUs" in first
    assert "Page 3 of 3" in last
    assert await pages.one("red/p000", Viewer("bob", frozenset({"green"}))) is None
    assert "no GPU has 8 units" in (await pages.one("red/p000", ALICE) or "")


def test_a_pod_that_comes_or_goes_is_a_change_of_the_picture(cluster: Cluster) -> None:
    """Open pages are told, also where no node has changed."""
    picture = Picture()
    picture.refresh(cluster.account, NOTHING)
    before = picture.revision.value
    found = waits("p", namespace="green")
    picture.refresh(cluster.account, NOTHING, {found.pod.uid: found})
    picture.refresh(cluster.account, NOTHING, {found.pod.uid: found})
    assert picture.revision.value == before + 1
    assert "green" in picture.namespaces
    picture.refresh(cluster.account, NOTHING)
    assert picture.revision.value == before + 2


async def test_a_pod_is_explained_by_the_policy_of_the_extender(cluster: Cluster) -> None:
    """The page names the policy and who chose it; a change of the policy is a change of the picture."""
    picture, found = Picture(), waits("p", 2, namespace="red")
    picture.refresh(cluster.account, NOTHING, {found.pod.uid: found})
    before, pages = picture.revision.value, WaitingPages(picture)
    assert "Placement policy: binpack, assumed: the scheduler extender was not asked" in (
        await pages.one("red/p", ALICE) or ""
    )
    for _ in range(2):
        picture.stand(ClusterStanding(ExtenderStanding("spread", "the Lease", None)))
    assert picture.revision.value == before + 1
    assert "Placement policy: spread, chosen by the Lease" in (await pages.one("red/p", ALICE) or "")


async def test_users_of_a_cluster_read_of_their_own_namespaces_only(tmp_path: Path) -> None:
    """Neither what waits, nor why, nor what fits has the name of a pod that a user may not list."""
    async with ApiServer() as server:
        a_cluster(server)
        for namespace in ("red", "blue"):
            made = api_pod(f"{namespace}-waits", units="14")
            made["metadata"]["namespace"] = namespace
            server.store.create(f"/api/v1/namespaces/{namespace}/pods", made)
        async with visited(server, tmp_path) as address:
            for path, seen in (
                ("/waiting", "red-waits"),
                ("/waiting/red/red-waits", "red-pod"),
                ("/fits?request=14+GiB", "The pod fits on no node"),
            ):
                status, page = await visit(f"{address}{path}", "token-of-alice")
                assert (status, seen in page, "blue-" in page) == (200, True, False), path
            assert (await visit(f"{address}/waiting/blue/blue-waits", "token-of-alice"))[0] == 404
            assert "blue-pod" in (await visit(f"{address}/waiting/blue/blue-waits", "token-of-olga"))[1]
