"""The embedded kubelet prepares and unprepares claims as Kubernetes 1.36 does (pkg/kubelet/cm/dra/manager.go)."""

import asyncio
from pathlib import Path

import grpc
import pytest

from gpushare_plugin.kubelet.api.dra_v1_pb2 import Device
from gpushare_plugin.kubelet.api.podresources_pb2 import ListPodResourcesRequest
from gpushare_plugin.kubelet.api.podresources_pb2_grpc import PodResourcesListerStub
from gpushare_plugin.testing.kubelet import ClaimEntry, Container, Pod, PrepareError, UnprepareError
from tests.unit.testing.dra.driver import DRIVER, Driver
from tests.unit.testing.dra.node import CLAIMS, dra_node


async def test_a_pod_has_one_call_to_each_driver_and_all_claims_in_it(short_path: Path) -> None:
    """Namespace, UID and name of each claim; what one driver prepared stays when another fails (prepareResources)."""
    async with dra_node(short_path) as node:
        other = Driver(short_path, name="nic.example.com")
        await node.register()
        await node.register(other)
        node.reserve("both", drivers=(DRIVER, other.name))
        pod = node.pod("one", "two", "both")
        other.errors[node.uid("both")] = "no such card"
        with pytest.raises(PrepareError, match="NodePrepareResources failed for ResourceClaim both: no such card"):
            await node.kubelet.admit(pod)
        assert node.driver.prepared == [[node.uid("one"), node.uid("two"), node.uid("both")]]
        assert node.driver.unprepared == []
        assert node.kubelet.prepared() == {}
        assert pod.uid in node.kubelet.pods
        other.errors.clear()
        await node.kubelet.admit(pod)
        assert other.prepared == [[node.uid("both")]] * 2
        assert len(node.driver.prepared) == 2
        await other.stop()
        await node.driver.stop()


async def test_every_claim_must_be_in_the_answer(short_path: Path) -> None:
    """kubernetes: prepareResources, `NodePrepareResources skipped`."""
    async with dra_node(short_path) as node:
        await node.register()
        pod = node.pod("one", "two")
        node.driver.skipped.add(node.uid("two"))
        with pytest.raises(PrepareError, match="NodePrepareResources skipped 1 ResourceClaims"):
            await node.kubelet.admit(pod)
        await node.driver.stop()


async def test_a_call_that_takes_45_s_is_given_up(short_path: Path) -> None:
    """kubernetes: dra_plugin.go, defaultClientCallTimeout; the driver's call is cancelled."""
    async with dra_node(short_path) as node:
        await node.register()
        node.driver.during["NodePrepareResources"] = asyncio.Event().wait
        admission = asyncio.create_task(node.kubelet.admit(node.pod("gpu")))
        await node.kubelet.wait_for(lambda kubelet: kubelet.calls["NodePrepareResources"])
        await node.clock.skip(44)
        assert not admission.done()
        await node.clock.skip(1)
        with pytest.raises(PrepareError, match="code = DeadlineExceeded"):
            await admission
        await node.driver.stop()


async def test_claims_of_several_pods_are_prepared_side_by_side(short_path: Path) -> None:
    """The kubelet has a worker for each pod; a driver has to serialise calls itself (kubeletplugin/draplugin.go)."""
    async with dra_node(short_path) as node:
        await node.register()
        both = asyncio.Barrier(2)
        node.driver.during["NodePrepareResources"] = both.wait
        await asyncio.gather(*(node.kubelet.admit(node.pod(name, name=name)) for name in ("one", "two")))
        assert sorted(node.driver.prepared) == sorted([[node.uid("one")], [node.uid("two")]])
        await node.driver.stop()


async def test_a_second_pod_of_a_claim_brings_no_call_and_the_last_one_gives_it_back(short_path: Path) -> None:
    """A driver never learns who uses a claim; unprepareResources."""
    async with dra_node(short_path) as node:
        await node.register()
        first, second = node.pod("gpu"), Pod("second", [Container("main")], claims={"gpu": "gpu"})
        node.reserve("gpu", second)
        await node.kubelet.admit(first)
        await node.kubelet.admit(second)
        assert len(node.driver.prepared) == 1
        await node.kubelet.end(first)
        assert node.driver.unprepared == []
        node.server.store.delete(CLAIMS, "gpu")  # it may be gone by then
        await node.kubelet.end(second)
        assert len(node.driver.unprepared) == 1
        await node.driver.stop()


async def test_a_pod_without_a_reservation_is_refused(short_path: Path) -> None:
    """kubernetes: IsReservedForPod; nothing is remembered of that, so the pod can go."""
    async with dra_node(short_path) as node:
        await node.register()
        node.reserve("gpu")
        pod = Pod("pod", [Container("main")], claims={"gpu": "gpu"})
        with pytest.raises(PrepareError, match="is not allowed to use ResourceClaim gpu"):
            await node.kubelet.admit(pod)
        await node.kubelet.end(pod)
        assert (node.driver.prepared, node.driver.unprepared) == ([], [])
        await node.driver.stop()


async def test_a_claim_of_the_same_name_waits_until_the_older_one_is_unprepared(short_path: Path) -> None:
    """After a forced deletion of the pod; prepareResources. A vanished pod is found within 60 s (reconcileLoop)."""
    async with dra_node(short_path) as node:
        await node.register()
        first = node.pod("gpu")
        await node.kubelet.admit(first)
        old = node.uid("gpu")
        node.kubelet.delete(first)
        node.server.store.delete(CLAIMS, "gpu")
        second = node.pod("gpu", name="second")
        with pytest.raises(PrepareError, match="old ResourceClaim with same name gpu"):
            await node.kubelet.admit(second)
        await node.clock.skip(60)
        await node.kubelet.wait_for(lambda _kubelet: not node.kubelet.prepared())
        assert node.driver.unprepared == [[old]]
        await node.kubelet.admit(second)
        await node.driver.stop()


async def test_a_driver_that_is_away_keeps_a_pod_terminating(short_path: Path) -> None:
    """kubernetes: pkg/kubelet/kubelet.go, SyncTerminatingPod, which is tried again."""
    async with dra_node(short_path) as node:
        await node.register()
        pod = node.pod("gpu")
        await node.kubelet.admit(pod)
        await node.driver.stop()
        await node.clock.skip(1)
        await node.kubelet.wait_for(lambda kubelet: not kubelet.connected_drivers)
        with pytest.raises(UnprepareError, match=f"DRA driver {DRIVER} is not registered"):
            await node.kubelet.end(pod)
        assert pod.uid in node.kubelet.pods
        await node.register()
        await node.kubelet.end(pod)
        assert pod.uid not in node.kubelet.pods
        await node.driver.stop()


async def test_a_restarted_kubelet_forgets_what_was_prepared_and_asks_again(short_path: Path) -> None:
    """`prepared` is not in the checkpoint, devices are: a container then has its CDI devices twice (claiminfo.go)."""
    async with dra_node(short_path) as node:
        await node.register()
        pod = node.pod("gpu")
        (once,) = (await node.kubelet.admit(pod)).containers["main"].cdi_devices
        registered = len(node.driver.statuses)
        await node.kubelet.restart()
        assert node.kubelet.prepared() == {}
        await node.kubelet.wait_for(
            lambda kubelet: len(node.driver.statuses) > registered and kubelet.connected_drivers
        )
        again = await node.kubelet.admit(pod)  # a new sandbox
        assert node.driver.prepared == [[node.uid("gpu")]] * 2
        assert again.containers["main"].cdi_devices == (once, once)
        await node.driver.stop()


async def test_the_end_of_a_pod_that_was_never_prepared_takes_a_claim_from_another(short_path: Path) -> None:
    """With one other user, the claim is unprepared: unprepareResources does not look whether the pod uses the claim."""
    async with dra_node(short_path) as node:
        await node.register()
        user = node.pod("gpu")
        await node.kubelet.admit(user)
        stranger = Pod("stranger", [Container("main")], claims={"gpu": "gpu"})
        with pytest.raises(PrepareError):
            await node.kubelet.admit(stranger)
        await node.kubelet.end(stranger)
        assert node.driver.unprepared == [[node.uid("gpu")]]
        await node.driver.stop()


async def test_a_container_gets_the_devices_of_its_claims_and_requests(short_path: Path) -> None:
    """Without a claim nothing, without a request all; devices without request names are in each (GetResources).

    Pod-resources shows claims whole, and adds the CDI devices of a driver up (GetDynamicResources).
    """

    def device(name: str, *requests: str) -> Device:
        return Device(
            request_names=requests, pool_name="node", device_name=name, cdi_device_ids=[f"a/b={name}"], share_id=name
        )

    async with dra_node(short_path) as node:
        node.driver.devices = lambda _uid: [device("one", "r1"), device("two", "r2"), device("all")]
        await node.register()
        uses = {"none": [], "whole": [ClaimEntry("gpu")], "first": [ClaimEntry("gpu", "r1")]}
        containers = [Container(name, claims=claims) for name, claims in uses.items()]
        pod = Pod("pod", containers, claims={"gpu": "gpu"})
        node.reserve("gpu", pod)
        admitted = await node.kubelet.admit(pod)
        got = {name: each.cdi_devices for name, each in admitted.containers.items()}
        assert got == {"none": (), "whole": ("a/b=one", "a/b=two", "a/b=all"), "first": ("a/b=one", "a/b=all")}
        async with grpc.aio.insecure_channel(f"unix:{node.kubelet.pod_resources_socket}") as channel:
            (shown,) = (await PodResourcesListerStub(channel).List(ListPodResourcesRequest())).pod_resources
        resources = {each.name: each.dynamic_resources for each in shown.containers}
        assert [len(each) for each in resources.values()] == [0, 1, 1]
        (claim,) = resources["first"]
        assert [(each.device_name, each.share_id) for each in claim.claim_resources] == [
            (n, n) for n in ("one", "two", "all")
        ]
        assert [len(each.cdi_devices) for each in claim.claim_resources] == [1, 2, 3]
        await node.driver.stop()
