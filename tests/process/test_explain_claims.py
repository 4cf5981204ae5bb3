"""`gpushare explain` of pods with ResourceClaims, as people run it: with a kubeconfig, against an API server."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.kube.client import NODES
from gpushare_plugin.testing.cluster import ApiServer, Permission
from tests.process.daemon import gpushare
from tests.unit.claims.node import DRIVER, NODE, ClaimNode
from tests.unit.kube.pods import PODS
from tests.unit.sharing.settings import memory

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/team/resourceclaims"


def claim(name: str, size: str) -> dict[str, Any]:
    """Return a claim for memory."""
    exactly = {"deviceClassName": "shares", "capacity": {"requests": {"memory": size}}}
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with a node of four GPUs by claim, a claim that has most of the first, and pods with claims."""
    node = ClaimNode(sharing=memory(unit="GiB"))
    async with ApiServer() as started:
        started.store.create(NODES, {"metadata": {"name": NODE}, "status": {}})
        started.store.create(f"{API}/resourceslices", {**node.resource_slice, "metadata": {"name": "a"}})
        held = node.device()
        consumed = {"memory": "31Gi", "compute": "0"} if "compute" in held.capacities else {"memory": "31Gi"}
        result = {
            "request": "gpu",
            "driver": DRIVER,
            "pool": NODE,
            "device": held.name,
            "shareID": "4f2c2a1b-1111-4222-8333-0123456789ab",
            "consumedCapacity": consumed,
        }
        allocation = {"devices": {"results": [result]}}
        started.store.create(CLAIMS, {**claim("other", "31Gi"), "status": {"allocation": allocation}})
        started.store.create(CLAIMS, claim("mine", "40Gi"))
        started.store.create(f"{API}/deviceclasses", {"metadata": {"name": "shares"}, "spec": {}})
        spec = {
            "containers": [{"name": "main"}],
            "resourceClaims": [
                {"name": "own", "resourceClaimName": "mine"},
                {"name": "made", "resourceClaimTemplateName": "template"},
            ],
        }
        started.store.create(
            PODS, {"metadata": {"name": "waits", "namespace": "team"}, "spec": spec, "status": {"phase": "Pending"}}
        )
        yield started


async def explained(server: ApiServer, folder: Path, *more: str) -> str:
    """Return the explanation of the pod that waits."""
    to = {"KUBECONFIG": str(server.kubeconfig(folder / "config"))}
    done = await gpushare("explain", "waits", "-n", "team", *more, environment=to)
    assert (done.status, done.errors) == (0, "")
    return done.output


async def test_a_pod_that_waits_for_a_claim_is_explained(server: ApiServer, tmp_path: Path) -> None:
    """Which claims there are, what each GPU has free, who holds the rest; a claim that is not made yet is named."""
    lines = (await explained(server, tmp_path)).splitlines()
    unmade = "Claim made: is to be made from its template, and is not there yet"
    assert lines[:3] == [unmade, "", "Pod team/waits waits for a node"]
    assert not any("extender" in line or "Placement policy" in line for line in lines)
    assert "  Claim team/mine: not allocated" in lines
    assert "    Request gpu of DeviceClass shares: 40960 MiB of memory" in lines
    gpus = [line for line in lines if line.startswith(f"      {NODE} ")]
    assert len(gpus) == 4
    assert sorted(line.partition(": ")[2] for line in gpus) == [
        "9216 MiB of 40960 MiB memory free, 40960 MiB wanted; held by team/other",
        "has room",
        "has room",
        "has room",
    ]
    assert f"  {unmade}" in lines
    assert json.loads(await explained(server, tmp_path, "-o", "json"))["claims"][0] == "Claim team/mine: not allocated"


async def test_a_pod_can_be_named_with_its_namespace(server: ApiServer, tmp_path: Path) -> None:
    """As other commands show it; another namespace beside that is a mistake."""
    to = {"KUBECONFIG": str(server.kubeconfig(tmp_path / "config"))}
    done = await gpushare("explain", "team/waits", environment=to)
    assert done.output == await explained(server, tmp_path)
    wrong = await gpushare("explain", "team/waits", "-n", "other", environment=to)
    assert (wrong.status, wrong.output) == (2, "")
    assert "team/waits with --namespace other names no pod; give NAME, NAMESPACE/NAME" in " ".join(wrong.errors.split())


async def test_a_missing_right_is_named(server: ApiServer, tmp_path: Path) -> None:
    """What cannot be read is said, with the right that is missing, and the rest is told."""
    group = "resource.k8s.io"
    server.permissions = [
        Permission("list", "nodes"),
        Permission("list", "pods"),
        Permission("get", "resourceclaims", group=group),
    ]
    said = await explained(server, tmp_path)
    assert "resourceslices: you may not list resourceslices of resource.k8s.io; see the ClusterRole" in said
    assert "resourceclaims: you may not list resourceclaims of resource.k8s.io; see the ClusterRole" in said
    assert "deviceclasses: you may not list deviceclasses of resource.k8s.io; see the ClusterRole" in said
    assert "Claim team/mine: not allocated" in said
    server.permissions = server.permissions[:2]
    assert "Claim team/mine: you may not get resourceclaims of resource.k8s.io" in await explained(server, tmp_path)


async def test_a_device_class_that_is_not_there_is_named(server: ApiServer, tmp_path: Path) -> None:
    """kube-scheduler says nothing of that until somebody makes the class."""
    server.store.delete(f"{API}/deviceclasses", "shares")
    assert "There is no DeviceClass shares: `kubectl get deviceclasses`" in await explained(server, tmp_path)


EVENTS = "/api/v1/namespaces/team/events"


def placed(server: ApiServer, phase: str = "Pending") -> None:
    """Put a pod on the node whose claim is allocated, with what the kubelet says of it."""
    spec = {
        "nodeName": NODE,
        "containers": [{"name": "main"}],
        "resourceClaims": [{"name": "own", "resourceClaimName": "other"}],
    }
    pod = {"metadata": {"name": "placed", "namespace": "team"}, "spec": spec, "status": {"phase": phase}}
    uid = server.store.create(PODS, pod)["metadata"]["uid"]
    refused = "FailedPrepareDynamicResources"
    said = "claim team/other: 31744 MiB of memory allocated\x1b[2J"
    for number, (about, reason, message) in enumerate(
        (
            (uid, refused, "no-room"),
            (uid, refused, said),
            (uid, "FailedMount", "no volume"),
            ("other", refused, "other"),
        )
    ):
        event = {
            "metadata": {"name": f"placed.{number}", "namespace": "team"},
            "involvedObject": {"kind": "Pod", "namespace": "team", "uid": about},
            "reason": reason,
            "message": message,
            "lastTimestamp": f"2026-01-01T00:00:0{number}Z",
        }
        server.store.create(EVENTS, event)


async def explained_placed(server: ApiServer, folder: Path) -> str:
    """Return the explanation of the pod that has a node."""
    to = {"KUBECONFIG": str(server.kubeconfig(folder / "config"))}
    done = await gpushare("explain", "placed", "-n", "team", environment=to)
    assert (done.status, done.errors) == (0, "")
    return done.output


async def test_a_pod_whose_claims_the_node_refuses_has_the_reason(server: ApiServer, tmp_path: Path) -> None:
    """The newest of what the kubelet says of the pod's claims, and nothing once the pod runs."""
    placed(server)
    said = await explained_placed(server, tmp_path)
    assert f"The kubelet of {NODE} says: claim team/other: 31744 MiB of memory allocated\\x1b[2J" in said
    assert ("no-room" in said, "no volume" in said) == (False, False)
    assert ("Promise" in said, "offers none" in said) == (False, False), "the pod asks for no units"
    rights = [Permission("list", "nodes"), Permission("list", "pods")]
    rights += [Permission("get", "resourceclaims", group="resource.k8s.io")]
    server.permissions = [*rights, Permission("list", "resourceslices", group="resource.k8s.io")]
    said = await explained_placed(server, tmp_path)
    assert "events: you may not list events; see the ClusterRole" in said
    server.permissions = None
    server.store.patch(PODS, "placed", {"status": {"phase": "Running"}})
    assert "The kubelet of" not in await explained_placed(server, tmp_path)


async def test_a_pod_whose_node_has_no_driver_any_more_is_told(server: ApiServer, tmp_path: Path) -> None:
    """Its claim is allocated a GPU that no ResourceSlice has."""
    placed(server)
    assert "No ResourceSlice has" not in await explained_placed(server, tmp_path)
    server.store.delete(f"{API}/resourceslices", "a")
    assert f"does not run on {NODE}, or no more" in await explained_placed(server, tmp_path)
