"""The API server of the kit takes, changes and refuses objects of `resource.k8s.io` as Kubernetes 1.36 does."""

import copy
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.testing.cluster import ApiServer, Permission
from gpushare_plugin.testing.cluster.dra.gates import Gates
from tests.unit.testing.dra.driver import DRIVER

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
GROUP = "resource.k8s.io"
MERGE = "application/merge-patch+json"
CONDITION = {
    "type": "InEffect",
    "status": "True",
    "reason": "Seen",
    "message": "seen",
    "lastTransitionTime": "2025-11-27T03:43:20Z",
}

Object = dict[str, Any]


def gpu(name: str = "gpu-0", **more: Any) -> Object:
    """Return a shared device with 80 GiB in steps of 1 GiB."""
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "80Gi", "step": "1Gi"}}
    memory = {"value": "80Gi", "requestPolicy": policy}
    return {"name": name, "allowMultipleAllocations": True, "capacity": {"memory": memory}, **more}


def resource_slice(*devices: Object, name: str = "node-1-gpus", **spec: Any) -> Object:
    """Return a ResourceSlice of a node."""
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": name},
        "spec": {"driver": DRIVER, "nodeName": "node-1", "pool": pool, "devices": list(devices), **spec},
    }


def claim(**exactly: Any) -> Object:
    """Return a ResourceClaim of one request."""
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER, **exactly}}
    return {"metadata": {"name": "claim"}, "spec": {"devices": {"requests": [request]}}}


def allocation(*, share: str | None = None) -> Object:
    """Return an allocation of one device of node-1."""
    result = {"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": "gpu-0"}
    fields = [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]
    shared = {"shareID": share, "consumedCapacity": {"memory": "10Gi"}} if share else {}
    return {
        "devices": {"results": [{**result, **shared}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
    }


class Api:
    """A client whose answers are objects."""

    def __init__(self, server: ApiServer, client: Client) -> None:
        """Ask `server`."""
        self.server = server
        self._client = client

    async def create(self, path: str, body: Object) -> Object:
        """Create an object."""
        return dict(msgspec.json.decode(await self._client.request("POST", path, body=body)))

    async def update(self, path: str, body: Object) -> Object:
        """Update an object."""
        return dict(msgspec.json.decode(await self._client.request("PUT", path, body=body)))

    async def patch(self, path: str, body: Object) -> Object:
        """Patch an object."""
        return dict(msgspec.json.decode(await self._client.request("PATCH", path, body=body, content_type=MERGE)))


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """Run an API server."""
    async with ApiServer() as server, Client(server.kubeconfig(tmp_path / "kubeconfig")) as client:
        yield Api(server, client)


def attributes(**value: Any) -> Object:
    """Return a device with one attribute."""
    return gpu(attributes={"driverVersion": value})


def policy(**policy: Any) -> Object:
    """Return a shared device of 80 GiB with a policy for requests."""
    return gpu(capacity={"memory": {"value": "80Gi", "requestPolicy": policy}})


def refused() -> Iterator[tuple[str, Object, str]]:
    """Yield slices that an API server refuses, and what the message names."""
    taint = {"key": "gpu.example.com/xid", "effect": "NoSchedule"}
    yield "129 devices", resource_slice(*(gpu(f"gpu-{number}") for number in range(129))), "at most 128 items"
    tainted = [gpu(f"gpu-{number}", taints=[taint]) for number in range(65)]
    yield "65 devices with taints", resource_slice(*tainted), "at most 64 items"
    many = {f"a{number}": {"int": number} for number in range(32)}
    yield "33 attributes and capacities", resource_slice(gpu(attributes=many)), "must not exceed 32"
    yield "leading zero", resource_slice(attributes(version="535.161.08")), "compatible with semver.org"
    yield "long value", resource_slice(attributes(string="x" * 65)), "may not be more than 64 bytes"
    yield "two values", resource_slice(attributes(string="x", int=1)), "exactly one value"
    yield "dot in name", resource_slice(gpu("gpu.0")), 'devices[0].name: Invalid value: "gpu.0"'
    yield "capital in name", resource_slice(gpu("GPU-0")), "RFC 1123 label"
    yield "long identifier", resource_slice(gpu(attributes={"a" * 33: {"int": 1}})), "may not be more than 32 bytes"
    yield "no identifier", resource_slice(gpu(attributes={"pci-bus": {"int": 1}})), "C identifier"
    yield "17 taints", resource_slice(gpu(taints=[taint] * 17)), "at most 16 items"
    yield "one name twice", resource_slice(gpu(), gpu()), 'Duplicate value: "gpu-0"'
    yield "policy of a whole GPU", resource_slice(gpu(allowMultipleAllocations=False)), "must be true"
    yield "no default", resource_slice(policy(validValues=["1Gi"])), "Required value"
    yield "default not valid", resource_slice(policy(default="2Gi", validValues=["1Gi"])), "default value is not valid"
    yield "not ascending", resource_slice(policy(default="1Gi", validValues=["2Gi", "1Gi"])), "ascending order"
    yield "default below min", resource_slice(policy(default="0", validRange={"min": "1Gi"})), "validRange.min"
    uneven = {"min": "0", "max": "80Gi", "step": "3Gi"}
    yield "max not a step", resource_slice(policy(default="0", validRange=uneven)), "not a multiple of a given step"
    yield "two node fields", resource_slice(gpu(), allNodes=True), "exactly one of `nodeName`"


@pytest.mark.parametrize(("body", "message"), [each[1:] for each in refused()], ids=[each[0] for each in refused()])
async def test_one_bad_device_refuses_the_whole_slice(api: Api, body: Object, message: str) -> None:
    """Limits of slices; kubernetes: pkg/apis/resource/validation/validation.go, staging api/resource/v1/types.go."""
    body["spec"]["devices"].append(gpu("fine"))
    with pytest.raises(ClusterError, match="422") as failure:
        await api.create(SLICES, body)
    assert message in str(failure.value)
    assert api.server.store.find(SLICES) == []


@pytest.mark.parametrize(
    "change", [{"driver": "other.example.com"}, {"nodeName": "node-2"}, {"pool": {"name": "node-2"}}]
)
async def test_driver_node_and_pool_of_a_slice_stay(api: Api, change: Object) -> None:
    """Driver, node and name of the pool cannot change, all else can; validateResourceSliceSpec."""
    await api.create(SLICES, resource_slice(gpu()))
    with pytest.raises(ClusterError, match="field is immutable"):
        await api.patch(f"{SLICES}/node-1-gpus", {"spec": change})
    changed = await api.patch(f"{SLICES}/node-1-gpus", {"spec": {"pool": {"generation": 2}, "devices": []}})
    assert (changed["spec"]["pool"]["generation"], changed["metadata"]["generation"]) == (2, 2)


@pytest.mark.parametrize("version", ["1.34", "1.35"])
async def test_fields_of_a_gate_that_is_off_are_dropped_without_a_word(api: Api, version: str) -> None:
    """Before 1.36 a shared device becomes a card for one, and taints vanish; resourceslice/strategy.go.

    A slice that had the fields keeps them when the gate is turned off.
    """
    body = resource_slice(gpu(taints=[{"key": "a/b", "effect": "NoSchedule"}]))
    await api.create(SLICES, copy.deepcopy(body))
    api.server.dra.gates = Gates.of(version)
    (kept,) = (await api.update(f"{SLICES}/node-1-gpus", body))["spec"]["devices"]
    (made,) = (await api.create(SLICES, {**body, "metadata": {"name": "another"}}))["spec"]["devices"]
    assert (kept["allowMultipleAllocations"], len(kept["taints"])) == (True, 1)
    assert made == {"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}}}


async def test_a_slice_can_be_made_with_a_generated_name(api: Api) -> None:
    """`generateName` begins the name; staging apiserver, pkg/storage/names."""
    made = await api.create(SLICES, {**resource_slice(gpu()), "metadata": {"generateName": "node-1-"}})
    assert made["metadata"]["name"].startswith("node-1-")


async def test_a_claims_status_is_its_subresources_alone(api: Api) -> None:
    """A new claim has no status, and an update keeps it; the spec never changes; resourceclaim/strategy.go."""
    made = await api.create(CLAIMS, {**claim(), "status": {"allocation": allocation()}})
    assert "status" not in made
    await api.patch(f"{CLAIMS}/claim/status", {"spec": {"devices": None}, "status": {"allocation": allocation()}})
    changed = await api.patch(f"{CLAIMS}/claim", {"metadata": {"labels": {"a": "b"}}, "status": {"allocation": None}})
    assert changed["status"]["allocation"] == allocation()
    assert changed["spec"] == claim()["spec"]
    with pytest.raises(ClusterError, match="field is immutable"):
        await api.patch(f"{CLAIMS}/claim", {"spec": {"devices": {"requests": []}}})


async def test_access_for_admins_needs_a_label_of_the_namespace(api: Api) -> None:
    """kubernetes: pkg/registry/resource/utils.go, AuthorizedForAdmin."""
    with pytest.raises(ClusterError, match=r"resource\.kubernetes\.io/admin-access: true"):
        await api.create(CLAIMS, claim(adminAccess=True))
    labels = {"resource.kubernetes.io/admin-access": "true"}
    api.server.store.create("/api/v1/namespaces", {"metadata": {"name": "default", "labels": labels}})
    await api.create(CLAIMS, claim(adminAccess=True))


async def test_the_status_of_a_device_is_that_of_an_allocated_share(api: Api) -> None:
    """Keyed by driver, pool, device and share, at most 8 conditions, 10 KiB of an object; gone at deallocation.

    kubernetes: validateDeviceStatus; resourceclaim/strategy.go, dropDeallocatedStatusDevices.
    """
    share = "6b5ae8a1-9b9b-4a8e-9d2f-2f1f4f1a2b3c"
    path = f"{CLAIMS}/claim/status"
    await api.create(CLAIMS, claim())
    await api.patch(path, {"status": {"allocation": allocation(share=share)}})
    entry = {"driver": DRIVER, "pool": "node-1", "device": "gpu-0", "shareID": share, "data": {"uuid": "GPU-0"}}
    for wrong, message in (
        ({"shareID": None}, "must be an allocated device"),
        ({"conditions": [{}] * 9}, "at most 8 items"),
        ({"conditions": [CONDITION, CONDITION]}, "conditions[1].type: Duplicate value"),
        ({"conditions": [{**CONDITION, "type": "in effect"}]}, "type: Invalid value"),
        ({"conditions": [{**CONDITION, "status": "true"}]}, "status: Unsupported value"),
        ({"conditions": [{**CONDITION, "reason": "in effect"}]}, "reason: Invalid value"),
        ({"conditions": [{**CONDITION, "reason": ""}]}, "reason: Invalid value"),
        ({"conditions": [{**CONDITION, "lastTransitionTime": None}]}, "lastTransitionTime: Required value"),
        ({"conditions": [{**CONDITION, "message": "x" * 32769}]}, "may not be more than 32768 bytes"),
        ({"data": {"a": "x" * 10_240}}, "may not be more than 10240 bytes"),
        ({"data": "text"}, "must be a valid JSON object"),
    ):
        with pytest.raises(ClusterError) as failure:
            await api.patch(path, {"status": {"devices": [{**entry, **wrong}]}})
        assert message in str(failure.value)
    right = {**entry, "conditions": [CONDITION]}
    assert (await api.patch(path, {"status": {"devices": [right]}}))["status"]["devices"] == [right]
    assert (await api.patch(path, {"status": {"allocation": None}}))["status"] == {}


@pytest.mark.parametrize(
    ("right", "node", "permitted"),
    [
        ("associated-node:patch", "node-1", True),
        ("associated-node:patch", "node-2", False),
        ("associated-node:patch", None, False),
        ("arbitrary-node:patch", None, True),
        ("patch", "node-1", False),
    ],
)
async def test_a_driver_writes_the_status_of_its_devices_of_its_node(
    api: Api, right: str, node: str | None, *, permitted: bool
) -> None:
    """1.36 asks for `resourceclaims/driver` of the driver's name, by a token of the node.

    kubernetes: registry/resource/utils.go, AuthorizedForDeviceStatus. Before, `resourceclaims/status` is enough.
    """
    api.server.store.create(CLAIMS, {**claim(), "status": {"allocation": allocation()}})
    status = Permission("patch", "resourceclaims/status", group=GROUP)
    api.server.permissions = {status, Permission(right, "resourceclaims/driver", None, DRIVER, GROUP)}
    api.server.dra.node = node
    entry = {"driver": DRIVER, "pool": "node-1", "device": "gpu-0"}
    change = {"status": {"devices": [entry]}}
    if permitted:
        assert await api.patch(f"{CLAIMS}/claim/status", change)
    else:
        with pytest.raises(ClusterError, match="resourceclaims/driver"):
            await api.patch(f"{CLAIMS}/claim/status", change)
        api.server.dra.gates = Gates.of("1.35")
        assert await api.patch(f"{CLAIMS}/claim/status", change)


async def test_an_allocation_is_written_by_those_who_bind(api: Api) -> None:
    """1.36 asks for `resourceclaims/binding` to change allocation or users; utils.go, AuthorizedForBinding."""
    await api.create(CLAIMS, claim())
    status = Permission("patch", "resourceclaims/status", group=GROUP)
    api.server.permissions = {status}
    with pytest.raises(ClusterError, match="resourceclaims/binding"):
        await api.patch(f"{CLAIMS}/claim/status", {"status": {"allocation": allocation()}})
    api.server.permissions = {status, Permission("patch", "resourceclaims/binding", group=GROUP)}
    await api.patch(f"{CLAIMS}/claim/status", {"status": {"allocation": allocation()}})
    with pytest.raises(ClusterError, match=r"status\.allocation: Invalid value: field is immutable"):
        await api.patch(f"{CLAIMS}/claim/status", {"status": {"allocation": allocation(share="a")}})
