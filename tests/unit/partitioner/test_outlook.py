"""Tests of `gpushare_plugin.partitioner.outlook`: what `gpushare explain` says of slices."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.kube.lease import leases
from gpushare_plugin.kube.names import PARTITIONER_LEASE, PATIENCE
from gpushare_plugin.kube.whole_cluster.overview import read
from gpushare_plugin.partitioner.outlook import JudgedOverview, Partitioners, decisions, outlook, partitioners
from gpushare_plugin.slices.wanted import WANTED_SLICES, KeptSlice, Wanted, encode
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.server import Refusal
from tests.unit.kube.cluster import QUICK
from tests.unit.partitioner.partitioners import ROOM, create_node, create_pod, offer, partitioner, uuid
from tests.waiting import until

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
RUNS = Partitioners(runs=True)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with a node of one GPU of 40 GiB."""
    async with ApiServer() as running:
        create_node(running, "n0", 40)
        yield running


@pytest.fixture
async def client(server: ApiServer, tmp_path: Path) -> AsyncIterator[Client]:
    """Return a client of it."""
    async with Client(server.kubeconfig(tmp_path / "client"), QUICK) as opened:
        yield opened


async def said(client: Client, uid: str, leading: Partitioners = RUNS, seconds: float = 0) -> list[str]:
    """Return what is said of a pod some seconds from now."""
    overview = await read(client, empty=JudgedOverview)
    decided = decisions(overview.known, leading, NOW + timedelta(seconds=seconds))
    return list(outlook(overview.known, uid, leading, decided))


async def test_a_waiting_pod_is_told_what_is_made_for_it_and_where(server: ApiServer, client: Client) -> None:
    """Undecided yet; a slice kept for the pod; that its node offers the slice; that nobody took the slice in time."""
    uid = create_pod(server, "p", "10gb")["metadata"]["uid"]
    slice_ = "slice nvidia.com/gpu-10gb"
    assert await said(client, uid) == [f"To be decided: {slice_} is being made on GPU 0 of n0"]
    kept = {uid: (KeptSlice(uuid("n0", 0), "10gb", NOW, "team/p"),)}
    text = encode(Wanted({uuid("n0", 0): {"10gb": 1}}, kept))
    server.store.update(NODES, "n0", {("metadata", "annotations", WANTED_SLICES): text})
    (found,) = await said(client, uid)
    assert found == f"{slice_} is kept for the pod on GPU 0 of n0; the daemon of the node has not made it yet"
    offer(server, "n0", 40)
    (found,) = await said(client, uid)
    assert found == (
        f"{slice_} is kept for the pod on GPU 0 of n0; the node offers it, and kube-scheduler has to bind the pod there"
    )
    assert await said(client, uid, Partitioners(runs=True, patience=120), seconds=90) == [found]
    late = await said(client, uid, seconds=90)
    assert "is no longer kept for the pod: the pod did not take it within 60 seconds" in late[0]


async def test_a_pod_that_no_slice_can_be_made_for_is_told_why(server: ApiServer, client: Client) -> None:
    """The words are those of the Event: by cause, and GPU by GPU what is missing."""
    uid = create_pod(server, "p", "30gb")["metadata"]["uid"]
    text = encode(
        Wanted({uuid("n0", 0): {"20gb": 1}}, {"other": (KeptSlice(uuid("n0", 0), "20gb", NOW, "team/other"),)})
    )
    server.store.update(NODES, "n0", {("metadata", "annotations", WANTED_SLICES): text})
    (found,) = await said(client, uid)
    assert found.startswith(
        "no slice can be made for nvidia.com/gpu-30gb: 1 node: no GPU has room for nvidia.com/gpu-30gb"
    )
    assert found.endswith("; n0: GPU 0 has 20 of 40 GiB left, 10 missing")
    large = create_pod(server, "large", "50gb")["metadata"]["uid"]
    assert (await said(client, large))[0].startswith("nvidia.com/gpu-50gb is larger than any partitioned GPU")
    misspelt = create_pod(server, "misspelt", "10gib")["metadata"]["uid"]
    assert (await said(client, misspelt))[0].startswith("nvidia.com/gpu-10gib is no size of a slice: expected ")
    gated = create_pod(server, "gated", "10gb", schedulingGates=[{"name": "quota"}])["metadata"]["uid"]
    assert await said(client, gated) == ["No slice is made for a pod that has scheduling gates or is being deleted"]


async def test_a_node_that_offers_the_slice_needs_none_to_be_made(server: ApiServer, client: Client) -> None:
    """Nothing is made for a pod that kube-scheduler can bind to a node that is not partitioned."""
    allocatable = {**ROOM, "nvidia.com/gpu-10gb": "1"}
    server.store.create(NODES, {"metadata": {"name": "fixed"}, "spec": {}, "status": {"allocatable": allocatable}})
    uid = create_pod(server, "p", "10gb")["metadata"]["uid"]
    assert await said(client, uid) == ["fixed offers nvidia.com/gpu-10gb, and kube-scheduler has to bind the pod there"]


async def test_a_missing_partitioner_is_said_first(server: ApiServer, client: Client) -> None:
    """No Lease, a Lease that nobody holds or renews, and a Lease that may not be read."""
    uid = create_pod(server, "p", "10gb")["metadata"]["uid"]
    leading = await partitioners(client, "kube-system", NOW)
    first, then = await said(client, uid, leading)
    assert first.startswith("No partitioner runs: there is no Lease kube-system/gpushare-partitioner; ")
    assert then.startswith("A partitioner would decide: slice nvidia.com/gpu-10gb is being made")
    path = leases("kube-system")
    spec = {"holderIdentity": "", "leaseDurationSeconds": 15, "renewTime": "2026-11-22T12:00:00.000000Z"}
    server.store.create(path, {"metadata": {"name": PARTITIONER_LEASE, "namespace": "kube-system"}, "spec": spec})
    assert "nobody holds the Lease" in str((await partitioners(client, "kube-system", NOW)).problem)
    server.store.update(path, PARTITIONER_LEASE, {("spec", "holderIdentity"): "one"})
    assert (await partitioners(client, "kube-system", NOW + timedelta(seconds=20))).runs is True
    silent = await partitioners(client, "kube-system", NOW + timedelta(seconds=60))
    assert "one has not renewed for 60 seconds the Lease" in str(silent.problem)
    server.refusals += [Refusal(403, resource="leases", times=1)]
    unknown = await partitioners(client, "kube-system", NOW)
    assert (unknown.runs, "you may not get the Lease" in str(unknown.problem)) == (None, True)


@pytest.mark.parametrize("text", ["nan", "inf", "1e300", "-5", "0", "", "long"])
async def test_a_patience_that_no_partitioner_can_have_is_the_default(
    server: ApiServer, client: Client, text: str
) -> None:
    """Whoever may write the Lease does not keep `gpushare explain` from an answer."""
    metadata = {"name": PARTITIONER_LEASE, "namespace": "kube-system", "annotations": {PATIENCE: text}}
    server.store.create(leases("kube-system"), {"metadata": metadata, "spec": {"holderIdentity": "one"}})
    assert await partitioners(client, "kube-system", NOW) == Partitioners(runs=True)


async def test_the_lease_says_how_the_leader_decides(server: ApiServer, client: Client, tmp_path: Path) -> None:
    """Its policy and patience, so that `gpushare explain` finds what it finds."""
    async with partitioner(server, tmp_path / "one", policy="spread", patience=90.0):
        await until(lambda: server.store.find(leases("kube-system"), PARTITIONER_LEASE))
        leading = await partitioners(client, "kube-system", datetime.now(UTC))
        assert leading == Partitioners(runs=True, policy="spread", patience=90.0)
