"""The examples of claims: an API server takes each as it stands, and kube-scheduler finds what its words promise.

The node has what the examples need: cards that claims share under MPS, in turns, or not at all, and MIG instances.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare_plugin.base.memory import MIB_PER_GIB
from gpushare_plugin.base.published import Published
from gpushare_plugin.claims.claim import AllocatedClaim
from gpushare_plugin.claims.device import Device
from gpushare_plugin.claims.devices import by_device, node_devices
from gpushare_plugin.claims.grants import grants, held
from gpushare_plugin.core.claimed_gpu import ClaimedGpu
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.prepared_claim import ClaimId
from gpushare_plugin.kube.client import Client, Object
from gpushare_plugin.kube.dra.claims import Claims
from gpushare_plugin.kube.dra.resource_slices import ResourceSlices
from gpushare_plugin.testing.claims import AllocationError, ClaimScheduler
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import Container, Pod
from tests.chart.rendering import ROOT, objects
from tests.nodes import a_gpu, cut
from tests.unit.sharing.settings import planned
from tests.waiting import until

NODE, DRIVER = "gpu-1", "gpu.gpushare.io"
EXAMPLES = ROOT / "examples/claims"
GIB = MIB_PER_GIB

CONFIG: dict[str, Any] = {
    "dra": {},
    "flags": {"migStrategy": "mixed"},
    "sharing": {
        "memory": {
            "resources": [{"name": "aliyun.com/gpu-mem", "isolation": "mps", "compute": "requested", "devices": [0, 1]}]
        },
        "timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4, "devices": [2]}]},
    },
}
_MIG = a_gpu(5, 80 * GIB, mig_enabled=True)
INVENTORY = Inventory((*(a_gpu(index, 80 * GIB) for index in range(5)), _MIG), instances=cut(_MIG, "1g.10gb"))

PATHS = {
    "Namespace": "/api/v1/namespaces",
    "Pod": "/api/v1/namespaces/{}/pods",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates",
}


class ClaimCluster:
    """An API server with one node, whose GPUs are given by claim, and with the DeviceClasses of the chart."""

    def __init__(self, server: ApiServer, client: Client) -> None:
        """Run nothing yet."""
        self.server = server
        self._client = client
        plan = planned(INVENTORY, **CONFIG)
        assert plan.problems == ()
        self.gpus: Mapping[str, ClaimedGpu] = by_device(plan.by_claim)
        self.devices: tuple[Device, ...] = node_devices(plan.by_claim, INVENTORY).devices

    @contextlib.asynccontextmanager
    async def offered(self) -> AsyncIterator[None]:
        """Offer the devices and make the classes."""
        for each in objects({"dra": {"enabled": True}}):
            if each["kind"] == "DeviceClass":
                await self.create(each)
        node = self.server.store.create("/api/v1/nodes", {"metadata": {"name": NODE}})
        slices = ResourceSlices(self._client, DRIVER, NODE)
        nodes: Published[Object | None] = Published(node)
        task = asyncio.create_task(slices.run(Published(self.devices), nodes))
        await until(lambda: slices.devices.value == frozenset(self.gpus) and not slices.trouble.value)
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def create(self, body: Mapping[str, Any]) -> None:
        """Create an object, as kubectl does."""
        namespace = body["metadata"].get("namespace", "default")
        await self._client.request("POST", PATHS[body["kind"]].format(namespace), body=body)

    async def start(self, made: Mapping[str, Any], name: str) -> AllocatedClaim:
        """Schedule the pod of an example under a name, and return its claim as the node reads the claim."""
        namespace = made["metadata"].get("namespace", "default")
        (use,) = made["spec"]["resourceClaims"]
        pod = Pod(name, [Container("main")], namespace=namespace, claims={use["name"]: name})
        scheduler = ClaimScheduler(self.server.store, NODE)
        claim = scheduler.from_template(use["resourceClaimTemplateName"], pod, name)
        scheduler.schedule(pod)
        return await Claims(self._client, DRIVER, NODE).allocated(ClaimId(namespace, name, claim["metadata"]["uid"]))

    async def example(self, name: str) -> Mapping[str, Any]:
        """Create the objects of an example, and return its pod."""
        found = list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))
        for each in found:
            await self.create(each)
        (pod,) = (each for each in found if each["kind"] == "Pod")
        return dict(pod)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClaimCluster]:
    """Run the cluster."""
    async with ApiServer() as server, Client(server.kubeconfig(tmp_path / "kubeconfig")) as client:
        made = ClaimCluster(server, client)
        async with made.offered():
            yield made


WAYS = {
    "share": {"gpu": [("memory", 10 * GIB, 0)]},
    "share-with-compute": {"gpu": [("memory", 10 * GIB, 25)]},
    "two-containers": {"server": [("memory", 20 * GIB, 0)], "helper": [("memory", 4 * GIB, 0)]},
    "two-gpus": {"gpus": [("whole", 80 * GIB, 0)] * 2},
    "whole": {"gpu": [("whole", 80 * GIB, 0)]},
    "mig-or-share": {"gpu": [("whole", 4864, 0)]},
    "time-slicing": {"gpu": [("replicas", 0, 0)]},
    "admin-access": {"gpu": [("memory", 0, 0)]},
}
"""What the requests of each example get: the way, the memory in MiB, and the compute in percent that counts."""


def test_there_is_no_other_example() -> None:
    """Each example is tested below."""
    assert {each.stem for each in EXAMPLES.iterdir()} == WAYS.keys()


@pytest.mark.parametrize("name", WAYS)
async def test_an_example_runs_as_it_stands(cluster: ClaimCluster, name: str) -> None:
    """Its objects are taken, its claim is allocated as its comment says, and its containers get something by it."""
    pod = await cluster.example(name)
    claim = await cluster.start(pod, name)
    found: dict[str, list[tuple[str, int, int]]] = {}
    for each in held(claim, cluster.gpus):
        found.setdefault(each.request, []).append((each.way, each.memory_mib, each.percent or 0))
    assert found == WAYS[name]
    got = grants(claim, cluster.gpus)
    assert got.keys() == found.keys()
    for container in pod["spec"]["containers"]:
        (use,) = container["resources"]["claims"]
        assert use.get("request", *got.keys() if len(got) == 1 else ()) in got


async def test_containers_of_one_claim_are_on_one_gpu_with_two_limits(cluster: ClaimCluster) -> None:
    """Two variables of one name would replace each other, so each container uses its own request."""
    claim = await cluster.start(await cluster.example("two-containers"), "pod")
    assert len({each.device for each in claim.devices}) == 1
    limits = [each.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for each in grants(claim, cluster.gpus).values()]
    assert sorted(limits) == ["0=20480M", "0=4096M"]


async def test_two_gpus_are_two(cluster: ClaimCluster) -> None:
    """`count` takes different devices."""
    claim = await cluster.start(await cluster.example("two-gpus"), "pod")
    assert len({each.device for each in claim.devices}) == 2


async def test_a_share_follows_where_no_mig_instance_is_free(cluster: ClaimCluster) -> None:
    """The alternatives are tried in their order."""
    pod = await cluster.example("mig-or-share")
    first, second = [await cluster.start(pod, name) for name in ("first", "second")]
    assert [claim.devices[0].request for claim in (first, second)] == ["gpu/mig", "gpu/share"]
    assert [each.memory_mib for each in held(second, cluster.gpus)] == [10 * GIB]


async def test_shares_fill_one_gpu_after_the_other_until_all_are_full(cluster: ClaimCluster) -> None:
    """Whole GPUs, and GPUs without limits, are no shares with a limit."""
    pod = await cluster.example("share")
    used = [(await cluster.start(pod, f"pod-{number}")).devices[0].device for number in range(16)]
    assert [used.count(each) for each in dict.fromkeys(used)] == [8, 8]
    with pytest.raises(AllocationError):
        await cluster.start(pod, "one-too-many")


async def test_an_admin_gets_a_gpu_that_is_in_use(cluster: ClaimCluster) -> None:
    """Beside shares, without limits, and not counted; other namespaces get none."""
    shares = await cluster.example("share")
    await cluster.start(shares, "share-1")
    pod = await cluster.example("admin-access")
    claim = await cluster.start(pod, "admin")
    assert claim.devices[0].admin_access
    assert [(each.memory_mib, each.admin_access) for each in held(claim, cluster.gpus)] == [(0, True)]
    (got,) = grants(claim, cluster.gpus).values()
    assert not any("LIMIT" in name for name in got.environment)
