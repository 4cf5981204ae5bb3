"""The parts of the kit together: slices over HTTP, allocation, the kubelet, a driver, and the way back."""

from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.kube.client import Client
from gpushare_plugin.testing.claims import AllocationError, ClaimScheduler
from gpushare_plugin.testing.kubelet import ClaimEntry, Container, Pod
from tests.unit.testing.dra.driver import DRIVER
from tests.unit.testing.dra.node import NODE, SLICES, dra_node

API = "/apis/resource.k8s.io/v1"


def wanted(name: str) -> dict[str, Any]:
    """Return a claim for 50 GiB."""
    capacity = {"requests": {"memory": "50Gi"}}
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "capacity": capacity}}
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}


async def test_a_share_goes_from_the_slice_to_the_container_and_back(short_path: Path) -> None:
    """A second share waits until the first one's pod has ended; a deletion by force frees only what the API counts."""
    async with dra_node(short_path) as node, Client(short_path / "kubeconfig") as client:
        policy = {"default": "80Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
        memory = {"value": "80Gi", "requestPolicy": policy}
        gpu = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": memory}}
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": [gpu]}
        await node.register()
        await node.until_asked("deletecollection", 200, 1)
        await client.request("POST", SLICES, body={"metadata": {"name": "a"}, "spec": spec})
        store = node.server.store
        store.create(f"{API}/deviceclasses", {"metadata": {"name": "gpu"}, "spec": {}})
        scheduler = ClaimScheduler(store, NODE)
        pods = [Pod(n, [Container("main", claims=[ClaimEntry("gpu")])], claims={"gpu": n}) for n in ("first", "second")]
        for pod in pods:
            await client.request("POST", f"{API}/namespaces/default/resourceclaims", body=wanted(pod.name))
        first, second = pods
        scheduler.schedule(first)
        with pytest.raises(AllocationError):
            scheduler.schedule(second)
        await node.kubelet.admit(first)
        scheduler.release(first)
        scheduler.schedule(second)
        admitted = await node.kubelet.admit(second)
        assert admitted.containers["main"].cdi_devices == (f"example.com/claim={node.uid('second')}",)
        assert len(node.kubelet.prepared()) == 2  # the API has promised 100 GiB of 80
        await node.kubelet.end(first)
        assert node.driver.unprepared == [[node.uid("first")]]
        await node.driver.stop()
