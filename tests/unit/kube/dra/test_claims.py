"""Tests of `gpushare_plugin.kube.dra.claims`: claims as the scheduler allocated them, and what is written into them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.claim import AllocatedDevice, ClaimRefusedError
from gpushare_plugin.claims.status import DeviceStatus
from gpushare_plugin.core.effect import IN_EFFECT, not_in_effect, unknown
from gpushare_plugin.core.prepared_claim import ClaimId, ClaimUser
from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.kube.dra.claims import Claims
from gpushare_plugin.kube.dra.device_status import entry, status_of
from gpushare_plugin.testing.cluster import ApiServer, Permission
from gpushare_plugin.testing.cluster.dra.gates import Gates
from gpushare_plugin.testing.cluster.server import Refusal
from tests.unit.kube.cluster import QUICK
from tests.unit.kube.dra.gpus import CLAIMS, DRIVER, GIB, NODE, Object

GROUP = "resource.k8s.io"
RIGHTS = frozenset(
    {
        Permission("get", "resourceclaims", group=GROUP),
        Permission("list", "resourceclaims", group=GROUP),
        Permission("patch", "resourceclaims/status", group=GROUP),
        Permission("associated-node:patch", "resourceclaims/driver", name=DRIVER, group=GROUP),
    }
)
NOW, LATER = 1_764_215_000.0, 1_764_215_060.0
SHARE = "share-1"


def result(request: str = "gpu", **more: Any) -> Object:
    """Return a share of a GPU as the scheduler allocates it."""
    device = {"request": request, "driver": DRIVER, "pool": NODE, "device": "gpu-0"}
    share = {"shareID": SHARE, "consumedCapacity": {"memory": "10Gi", "compute": "25"}}
    return {name: each for name, each in {**device, **share, **more}.items() if each is not None}


def claim(server: ApiServer, *results: Object, name: str = "claim", **devices: Any) -> ClaimId:
    """Make a claim that is allocated these results, and reserved for a pod; without results it waits."""
    fields = [{"key": "metadata.name", "operator": "In", "values": [NODE]}]
    allocation = {
        "devices": {"results": list(results), **devices},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
    }
    users = [{"resource": "pods", "name": "pod", "uid": "uid-of-pod"}, {"resource": "others", "name": "x", "uid": "y"}]
    status = {"status": {"allocation": allocation, "reservedFor": users}} if results else {}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}
    made = server.store.create(CLAIMS, {"metadata": {"name": name}, "spec": spec, **status})
    return ClaimId("default", name, made["metadata"]["uid"])


def status(**more: Any) -> DeviceStatus:
    """Return what is to be said of the share."""
    said = DeviceStatus(NODE, "gpu-0", "GPU-0", SHARE, memory_mib=10240, percent=25, isolation="mps", effect=IN_EFFECT)
    return replace(said, **more)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run with no other rights than those that the chart grants, for a token that is bound to the node."""
    async with ApiServer(RIGHTS) as running:
        running.dra.node = NODE
        yield running


@pytest.fixture
async def claims(server: ApiServer, tmp_path: Path) -> AsyncIterator[Claims]:
    """Read the claims of the node."""
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        yield Claims(client, DRIVER, NODE, clock=lambda: NOW)


async def test_a_claim_is_read_with_its_devices_and_users(server: ApiServer, claims: Claims) -> None:
    """By one request; devices of other DRA drivers are theirs."""
    nic = {"request": "nic", "driver": "nic.example.com", "pool": NODE, "device": "nic-0"}
    whole = {"request": "whole", "driver": DRIVER, "pool": NODE, "device": "gpu-1", "adminAccess": True}
    found = await claims.allocated(identity := claim(server, result("gpu/small"), nic, whole))
    assert found.id == identity
    assert found.users == (ClaimUser("pod", "uid-of-pod"),)
    assert found.devices == (
        AllocatedDevice("gpu/small", NODE, "gpu-0", SHARE, {"memory": 10 * GIB, "compute": 25}),
        AllocatedDevice("whole", NODE, "gpu-1", admin_access=True),
    )
    assert [each.verb for each in server.asked] == ["get"]


async def refusal(claims: Claims, identity: ClaimId) -> tuple[str, str]:
    """Return why a claim is refused, as a reason and in words."""
    with pytest.raises(ClaimRefusedError) as refused:
        await claims.allocated(identity)
    assert identity.label in str(refused.value)
    return refused.value.reason, str(refused.value)


async def test_a_claim_that_cannot_be_prepared_is_refused_in_words(server: ApiServer, claims: Claims) -> None:
    """Each refusal names the claim and the remedy: the pod shows the message and nothing else."""
    there = claim(server, result())
    assert (await refusal(claims, ClaimId("default", "gone", "uid")))[0] == "not-found"
    reason, words = await refusal(claims, ClaimId("default", "claim", "uid"))
    assert (reason, there.uid in words) == ("other-claim", True)
    assert (await refusal(claims, claim(server, name="waiting")))[0] == "not-allocated"
    reason, words = await refusal(claims, claim(server, result(pool="gpu-2"), name="elsewhere"))
    assert (reason, "gpu-2" in words) == ("unknown-device", True)
    parameters = {"opaque": {"driver": DRIVER, "parameters": {"sharing": "mps"}}}
    reason, words = await refusal(claims, claim(server, result(), name="configured", config=[parameters]))
    assert (reason, "takes none" in words) == ("parameters", True)
    unreadable = claim(server, result(consumedCapacity={"memory": "much"}), name="unreadable")
    assert (await refusal(claims, unreadable))[0] == "malformed"
    server.refusals = [Refusal(500, "get")]
    assert (await refusal(claims, there))[0] == "api"


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([result(consumedCapacity={"memory": "-1Gi"})], "quantity '-1Gi' found"),
        ([result(consumedCapacity={"memory": "NaN"})], "quantity 'NaN' found"),
        ([result(f"request-{number}") for number in range(33)], "33 devices found, at most 32 expected"),
        ([result("../../x")], "request '../../x' found, a DNS label expected"),
        ([result("a/b/c")], "request 'a/b/c' found"),
        ([result("")], "request '' found"),
    ],
)
async def test_an_allocation_that_kube_scheduler_never_writes_is_refused(
    server: ApiServer, claims: Claims, results: list[dict[str, object]], words: str
) -> None:
    """Nothing of it reaches a file; the reason is another one than for an API server that is away."""
    reason, message = await refusal(claims, claim(server, *results))
    assert reason == "malformed"
    assert words in message


async def test_parameters_for_others_are_theirs(server: ApiServer, claims: Claims) -> None:
    """A claim may have devices and parameters of several DRA drivers."""
    parameters = {"opaque": {"driver": "nic.example.com", "parameters": {}}}
    assert (await claims.allocated(claim(server, result(), config=[parameters]))).devices


async def test_names_of_claims_cannot_lead_elsewhere(server: ApiServer, claims: Claims) -> None:
    """Whatever the kubelet says stays a part of the path."""
    claim(server, result())
    assert (await refusal(claims, ClaimId("default", "../resourceclaims/claim", "uid")))[0] in {"not-found", "api"}
    assert not any(each.name == "claim" for each in server.asked)


async def test_all_claims_with_devices_of_the_pool_are_listed(server: ApiServer, claims: Claims) -> None:
    """In pages; also one that would be refused, because it holds its devices nevertheless. Unreadable ones do not."""
    parameters = {"opaque": {"driver": DRIVER, "parameters": {}}}
    held = {claim(server, result(), name=f"claim-{number}") for number in range(3)}
    held.add(claim(server, result(), name="configured", config=[parameters]))
    claim(server, name="waiting")
    claim(server, result(pool="gpu-2"), name="elsewhere")
    claim(server, result(driver="nic.example.com"), name="other")
    claim(server, result(consumedCapacity={"memory": "much"}), name="unreadable")
    assert {each.id for each in await claims.all_allocated()} == held


async def test_the_status_says_what_a_claim_got(server: ApiServer, claims: Claims) -> None:
    """By the rights that 1.36 asks for; other DRA drivers keep their entries."""
    nic = {"request": "nic", "driver": "nic.example.com", "pool": NODE, "device": "nic-0"}
    identity = claim(server, result(), nic)
    theirs = {"driver": "nic.example.com", "pool": NODE, "device": "nic-0", "data": {"mac": "x"}}
    server.store.patch(CLAIMS, "claim", {"status": {"devices": [theirs]}})
    assert await claims.write_status(identity, [status(), status(device="gpu-7")])
    (found,) = server.store.find(CLAIMS, "claim")
    assert found["status"]["devices"] == [
        theirs,
        {
            "driver": DRIVER,
            "pool": NODE,
            "device": "gpu-0",
            "shareID": SHARE,
            "conditions": [
                {
                    "type": "LimitInEffect",
                    "status": "True",
                    "reason": "InEffect",
                    "message": "in effect",
                    "lastTransitionTime": "2025-11-27T03:43:20Z",
                }
            ],
            "data": {"uuid": "GPU-0", "isolation": "mps", "limit": {"memory": "10Gi", "compute": 25}},
        },
    ]


async def test_the_same_status_is_written_once(server: ApiServer, claims: Claims, tmp_path: Path) -> None:
    """The time of a condition is that of its last change."""
    identity = claim(server, result())
    assert await claims.write_status(identity, [status()])
    async with Client(server.kubeconfig(tmp_path / "later"), QUICK) as client:
        later = Claims(client, DRIVER, NODE, clock=lambda: LATER)
        assert not await later.write_status(identity, [status()])
        assert await later.write_status(identity, [status(percent=30)])
        assert _times(server) == ["2025-11-27T03:43:20Z"]
        assert await later.write_status(identity, [status(effect=not_in_effect("x" * 5000))])
    assert _times(server) == ["2025-11-27T03:44:20Z"]
    (entry,) = server.store.find(CLAIMS, "claim")[0]["status"]["devices"]
    assert len(entry["conditions"][0]["message"]) == 1024


async def test_a_status_without_a_limit_says_so_little(server: ApiServer, claims: Claims) -> None:
    """A whole GPU has no limit, and no condition about one."""
    identity = claim(server, result(shareID=None, consumedCapacity=None))
    whole = status(share_id=None, memory_mib=None, percent=None, isolation="none", effect=None)
    assert await claims.write_status(identity, [whole])
    (entry,) = server.store.find(CLAIMS, "claim")[0]["status"]["devices"]
    assert entry["data"] == {"uuid": "GPU-0", "isolation": "none"}
    assert not {"conditions", "shareID"} & entry.keys()


async def test_a_status_that_others_write_at_the_same_time_is_tried_again(server: ApiServer, claims: Claims) -> None:
    """A few times; a failure of the API server is one."""
    identity = claim(server, result())
    server.refusals = [Refusal(409, "patch", times=2)]
    assert await claims.write_status(identity, [status()])
    server.refusals = [Refusal(409, "patch")]
    with pytest.raises(ClusterError, match="409"):
        await claims.write_status(identity, [status(percent=1)])


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36"])
async def test_a_status_needs_no_more_rights_in_any_version(server: ApiServer, claims: Claims, version: str) -> None:
    """Before 1.36, `resourceclaims/status` is enough; a share ID is dropped with its gate."""
    server.dra.gates = Gates.of(version)
    server.permissions = RIGHTS if version == "1.36" else {each for each in RIGHTS if "driver" not in each.resource}
    shared = version == "1.36"
    identity = claim(server, result() if shared else result(shareID=None, consumedCapacity=None))
    assert await claims.write_status(identity, [status(share_id=SHARE if shared else None)])


async def test_another_claim_of_the_same_name_is_not_written(server: ApiServer, claims: Claims) -> None:
    """Nor one that is gone."""
    identity = claim(server, result())
    with pytest.raises(ClaimRefusedError):
        await claims.write_status(identity._replace(uid="other"), [status()])
    server.store.delete(CLAIMS, "claim")
    with pytest.raises(ClaimRefusedError):
        await claims.write_status(identity, [status()])


def _times(server: ApiServer) -> list[str]:
    (found,) = server.store.find(CLAIMS, "claim")
    return [each["lastTransitionTime"] for entry in found["status"]["devices"] for each in entry["conditions"]]


@pytest.mark.parametrize(
    "said",
    [
        status(),
        status(effect=not_in_effect("process 7 is not a client of MPS")),
        status(share_id=None, memory_mib=None, percent=None, isolation="none", effect=None),
    ],
)
def test_what_a_node_says_of_a_device_is_read_as_written(said: DeviceStatus) -> None:
    """Commands show in claims what daemons wrote there."""
    assert status_of(entry(DRIVER, said, None, NOW)) == said


def test_what_others_say_of_a_device_is_nothing() -> None:
    """Whatever form it has: another DRA driver writes what it likes, and a person can write nonsense."""
    there = dict(entry(DRIVER, status(), None, NOW))
    for data in (None, {}, {"uuid": 1, "isolation": "mps"}, {**there["data"], "limit": {"memory": "much"}}):
        assert status_of({**there, "data": data}) is None
    found = status_of({**there, "conditions": [{"type": "LimitInEffect", "status": "False", "message": "x" * 9999}]})
    assert found is not None
    assert found.effect == unknown("x" * 1024)
