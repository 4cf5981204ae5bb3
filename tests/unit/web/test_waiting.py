"""Pods that wait: who sees them, in which order, and why they wait."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.asked import AskedDevice, PodClaim
from gpushare_plugin.claims.cluster import ClusterClaims, OfferedDevices
from gpushare_plugin.claims.device import Device
from gpushare_plugin.claims.overview import NOT_MADE, DeviceClasses, claim_overview
from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.kube.whole_cluster.waiting import WaitingPod
from gpushare_plugin.ledger.node import GPU_MEMORY, Node, recorded_node
from gpushare_plugin.ledger.node_record import NodeRecord, ResourceRecord
from gpushare_plugin.ledger.request import ContainerRequest, PodRequest
from gpushare_plugin.ledger.standing import ExtenderStanding
from gpushare_plugin.observe.cluster.explained import lines
from gpushare_plugin.observe.cluster.explanation import Told, explain
from gpushare_plugin.observe.cluster.verdict import with_verdict
from gpushare_plugin.partitioner.outlook import JudgedOverview, Partitioners
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.standing import ClusterStanding
from gpushare_plugin.web.viewer import EVERYTHING, Viewer
from gpushare_plugin.web.waiting import Explainer, asked, waiting_pods
from gpushare_plugin.web.waiting_page import WaitingPages
from tests.unit.claims.node import GIB
from tests.unit.kube.pods import pod as api_pod
from tests.unit.ledger.objects import container, gpu_record, memory, pod, request, uuid
from tests.unit.observe.cluster.clusters import MEMORY, Cluster, gpu, recorded
from tests.unit.observe.cluster.test_by_claim import held, of, shared
from tests.unit.web.visited import a_cluster, visited
from tests.unit.web.visited import asked as visit

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MISTAKEN = request(ContainerRequest("main", "app", (("aliyun.com/gpu-memory", 8),)))
NOTHING = ClusterClaims()
ALL = DeviceClasses()
GATE = "Scheduling gate hold: no scheduler looks at the pod until it is removed"
NO_CPU, LESS = "The scheduler says: no CPU", "the pod fits when others end, or if it asks for 5 at most"
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
        (
            waits("p", 8),
            f"No GPU has 8 units of {GPU_MEMORY} free now; the most is 5, on GPU0 of a: {LESS}",
        ),
        (
            waits("p", 2, reasons=(NO_CPU,)),
            f"The pod fits on 1 of 1 nodes by their GPUs, and waits for another reason, which stands below: {NO_CPU}",
        ),
        (waits("p", gates=("hold",), reasons=(GATE,)), GATE),
        (
            WaitingPod(pod(MISTAKEN, None, "p")),
            "No node offers aliyun.com/gpu-memory; did you mean aliyun.com/gpu-mem?",
        ),
        (waits("p", ending=True), "The pod is being deleted"),
    ],
)
async def test_a_sentence_says_why_a_pod_waits(cluster: Cluster, waiting: WaitingPod, why: str) -> None:
    """The verdict of explain; where the GPUs are not the cause, then what the scheduler says."""
    found = await explainer(cluster).short(waiting, NOW)
    assert ": ".join(filter(None, found)) == why


GPUS = st.tuples(st.sampled_from([4, 8]), st.integers(0, 8), st.sampled_from([None, None, None, None, "XID 79"]))
"""The units of a GPU, how many of them a pod holds, and why nobody can have the GPU."""
REPLICAS = ResourceRecord(name="nvidia.com/gpu", kind="replicas", policy="distributed")
NO_WISHES: Mapping[str, str] = MappingProxyType({})
WISHES = st.sampled_from([NO_WISHES, {"nvidia.com/use-gpuuuid": "GPU-n9-0"}])


def asks(kind: ResourceRecord, units: int, gpus: int = 1, wishes: Mapping[str, str] = NO_WISHES) -> PodRequest:
    """Return a request for units of a resource."""
    if kind is MEMORY:
        return memory(units, gpus=str(gpus), annotations=dict(wishes))
    return request(ContainerRequest("main", "app", ((kind.name, units),)))


@given(st.lists(st.lists(GPUS, max_size=2), max_size=9), st.sampled_from([MEMORY, REPLICAS]), st.data())
@settings(max_examples=200)
def test_the_sentence_is_the_verdict_of_the_whole_explanation(
    nodes: list[list[tuple[int, int, str | None]]], kind: ResourceRecord, data: st.DataObject
) -> None:
    """What is left out for a table of many pods changes no word."""
    made = Cluster()
    for number, sizes in enumerate(nodes):
        name = f"n{9 - number}"
        of_kind = {"resource": kind.name, "unit_mib": 1024 if kind is MEMORY else 0}
        several = [gpu(name, i, size, healthy=not why, reason=why, **of_kind) for i, (size, _, why) in enumerate(sizes)]
        made.node(name, recorded(*several, kinds=(kind,)))
        for index, (size, taken, _) in enumerate(sizes):
            if taken:
                made.account.put_pod(pod(asks(kind, min(size, taken)), name, f"{name}-{index}", on=uuid(index, name)))
    asked_for = asks(kind, data.draw(st.integers(1, 18)), data.draw(st.integers(1, 2)), data.draw(WISHES))
    found = WaitingPod(pod(asked_for, None, "p", created=NOW))
    whole = with_verdict(explain(made.account, found.pod, Told({})))
    assert asyncio.run(explainer(made).short(found, NOW)).sentence == whole.verdict


async def test_a_pod_that_waits_for_slices_is_told_what_the_partitioner_decides() -> None:
    """What is being made, and what cannot be made; without a partitioner, that none runs."""
    judged = JudgedOverview()
    judged.put_node(partitioned_node())
    fits, large = (slice_pod(size) for size in ("10gb", "80gb"))
    for each in (fits, large):
        judged.put_pod(each)
    picture = Picture()
    picture.refresh(judged.account, NOTHING, judged.without_node)
    found = Explainer(picture, lambda: judged)
    picture.stand(ClusterStanding(leading=Partitioners(runs=True)))
    shown = [(await found.short(judged.without_node[each.metadata.uid], NOW)).sentence for each in (fits, large)]
    assert shown[0].startswith("To be decided: slice nvidia.com/gpu-10gb is being made on GPU 0 of a")
    assert shown[1].startswith("nvidia.com/gpu-80gb is larger than any partitioned GPU: ")
    picture.stand(ClusterStanding(leading=Partitioners(runs=False, problem="No partitioner runs: there is no Lease")))
    assert (await found.short(judged.without_node["10gb"], NOW)).sentence == "No partitioner runs: there is no Lease"
    judged.remove_node("a")
    assert "no GPU of the cluster is partitioned by MPS" in " ".join(
        judged.slices_for(judged.without_node["10gb"].pod, Partitioners(runs=True), NOW)
    )
    judged.remove_pod("10gb")
    assert [each.uid for each in judged.known.waiting] == ["80gb"]


def test_what_a_pod_asks_for_has_units_and_claims() -> None:
    """In one line."""
    assert (
        asked(WaitingPod(waits("p").pod, claims=(("gpu", "train"), ("more", None))))
        == f"8 {GPU_MEMORY}, claim train, claim more"
    )


def explainer(cluster: Cluster) -> Explainer:
    """Return what explains the pods of a cluster in which nothing is partitioned."""
    picture = Picture()
    picture.refresh(cluster.account, NOTHING)
    return Explainer(picture, JudgedOverview)


def text(cluster: Cluster, found: WaitingPod, viewer: Viewer) -> str:
    """Return the explanation of a pod for a viewer."""
    return "\n".join(lines(asyncio.run(explainer(cluster).explained(found, viewer, NOW))))


def partitioned_node() -> Node:
    """Return a node with a GPU of 40 GiB that MPS divides."""
    record = NodeRecord(gpus=(gpu_record(0, 0, uuid="GPU-0", memory_mib=40960, resource=None),), partitioning="mps")
    made: Node = replace(recorded_node("a", record), record=record, ready=True, allocatable={"pods": 10})
    return made


def slice_pod(size: str) -> ApiPod:
    """Return a pod that asks for a slice."""
    made = api_pod(size, units="1")
    made["metadata"] |= {"uid": size}
    made["spec"]["containers"][0]["resources"] = {"limits": {f"nvidia.com/gpu-{size}": "1"}}
    return msgspec.json.decode(json.dumps(made), type=ApiPod)


async def test_a_pod_by_claim_is_told_what_its_claims_wait_for() -> None:
    """From the claims that are followed; claims of namespaces that a viewer may not see have no name."""
    node, claimed = shared("10Gi", "4Gi")
    judged, picture = JudgedOverview(), Picture()
    judged.claims = of(node, *map(held, claimed))
    judged.claims.put_claim("1", (), PodClaim("red/train", (AskedDevice("gpu", "gpushare", {"memory": 30 * GIB}, 2),)))
    nothing = pod(request(container("main")), None, "p", namespace="red")
    found, waiting = Explainer(picture, lambda: judged), WaitingPod(nothing, claims=(("gpu", "train"),))
    picture.stand(ClusterStanding(classes=DeviceClasses(frozenset({"gpushare"}))))
    verdict = "Request gpu is for 2 GPUs, and 1 have room now"
    assert (await found.short(waiting, NOW)).sentence == verdict

    async def told(viewer: Viewer) -> str:
        return "\n".join(lines(await found.explained(waiting, viewer, NOW)))

    assert (await told(EVERYTHING)).startswith(f"{verdict}\n")
    wanted = "26624 MiB of 40960 MiB memory free, 30720 MiB wanted; held by"
    assert f"{wanted} default/claim-1, default/claim-2" in await told(EVERYTHING)
    assert f"{wanted} 2 of other namespaces" in await told(ALICE)
    assert "claim-1" not in await told(ALICE)
    picture.stand(ClusterStanding(classes=DeviceClasses(frozenset())))
    assert (await found.short(waiting, NOW)).sentence == "There is no DeviceClass gpushare"
    picture.stand(ClusterStanding(classes=DeviceClasses(None, ("deviceclasses: you may not list them",))))
    unknown = "What the claims of the pod wait for is not known: "
    assert (await found.short(waiting, NOW)).sentence == f"{unknown}deviceclasses: you may not list them"
    judged.claims = ClusterClaims("this needs a right")
    assert f"{unknown}Claims are not shown: this needs a right" in await told(ALICE)


def test_claims_that_are_not_there_say_so() -> None:
    """One that is to be made, one that nobody made, and one whose device is in no ResourceSlice any more."""
    node, claimed = shared("10Gi")
    (allocated,) = held(claimed[0])
    claims = of(node, [allocated])
    claims.put_claim("1", (allocated,), PodClaim("red/old", allocated=(allocated.place,)))
    names = [("a", None), ("b", "nobody"), ("c", "old")]
    known = [(each.label, each.unknown, each.gone) for each in claim_overview(claims, "red", names, ALL).claims]
    assert known == [("a", NOT_MADE, ()), ("red/nobody", "does not exist", ()), ("red/old", "", ())]
    claims.remove_slice("a")
    claims.put_slice(
        "other", OfferedDevices(allocated.driver, "elsewhere", 1, (Device("gpu-9", "GPU-9", shared=False),))
    )
    assert claim_overview(claims, "red", names[2:], ALL).claims[0].gone == (allocated.place,)
    claims.remove_claim("1")
    assert claims.claim("red/old") is None


async def test_a_page_has_fifty_pods_and_says_how_many_there_are(cluster: Cluster) -> None:
    """The rest is on further pages; a number that is no page is the nearest page."""
    picture = Picture()
    many = [waits(f"p{number:03}", minutes=number, namespace="red") for number in range(120)]
    picture.refresh(cluster.account, NOTHING, {each.pod.uid: each for each in many})
    pages = WaitingPages(picture, JudgedOverview)
    first, last = await pages.all("", ALICE), await pages.all("999999", ALICE)
    assert (first.count("/waiting/red/"), last.count("/waiting/red/")) == (50, 20)
    assert "120 pods wait for GPUs" in first
    assert "Page 3 of 3" in last
    assert "0 pods of namespace green wait for GPUs" in await pages.all("", ALICE, "green")
    assert "/waiting?namespace=red&amp;page=2" in await pages.all("", ALICE, "red")
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
    before, pages = picture.revision.value, WaitingPages(picture, JudgedOverview)
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
