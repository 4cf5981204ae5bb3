"""The pod-resources service: which container holds which devices, and which devices are healthy."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import grpc

from gpushare_plugin.kubelet.api import podresources_pb2_grpc
from gpushare_plugin.kubelet.api.podresources_pb2 import (
    AllocatableResourcesRequest,
    AllocatableResourcesResponse,
    CDIDevice,
    ClaimResource,
    ContainerDevices,
    ContainerResources,
    DynamicResource,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
    PodResources,
)
from gpushare_plugin.testing.kubelet.device_manager.manager import DeviceManager
from gpushare_plugin.testing.kubelet.shared.journal import Journal
from gpushare_plugin.testing.kubelet.shared.pods import Container, Pod

if TYPE_CHECKING:
    from gpushare_plugin.testing.kubelet.dra_manager.claims import ClaimInfo
    from gpushare_plugin.testing.kubelet.dra_manager.manager import ClaimManager

CALLS_PER_SECOND = 100.0
BURST = 10.0


class PodResourcesLister(podresources_pb2_grpc.PodResourcesListerServicer):
    """Answers for the active `pods`, at most a hundred times a second by `clock`, ten of them at once."""

    def __init__(
        self,
        manager: DeviceManager,
        pods: Callable[[], Iterable[Pod]],
        *,
        clock: Callable[[], float],
        journal: Journal,
        claims: "ClaimManager | None" = None,
    ) -> None:
        """Start with a full allowance; `claims` are None for a kubelet without DRA."""
        self._manager = manager
        self._pods = pods
        self._clock = clock
        self._journal = journal
        self._claims = claims
        self._allowance = BURST
        self._allowance_at = clock()

    async def List(  # noqa: N802 -- the name on the wire
        self,
        _request: ListPodResourcesRequest,
        context: grpc.aio.ServicerContext[ListPodResourcesRequest, ListPodResourcesResponse],
    ) -> ListPodResourcesResponse:
        """List the pods that are not over, those still being admitted among them; frees what is over first."""
        if not self._allowed():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._journal.count("List")
        self._manager.free_inactive()
        return ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._pods()])

    async def GetAllocatableResources(  # noqa: N802 -- the name on the wire
        self,
        _request: AllocatableResourcesRequest,
        context: grpc.aio.ServicerContext[AllocatableResourcesRequest, AllocatableResourcesResponse],
    ) -> AllocatableResourcesResponse:
        """List all healthy devices, allocated or not; frees nothing."""
        if not self._allowed():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._journal.count("GetAllocatableResources")
        return AllocatableResourcesResponse(
            devices=[
                ContainerDevices(resource_name=resource, device_ids=[id_])
                for resource, ids in self._manager.healthy.items()
                for id_ in sorted(ids)
            ]
        )

    def _allowed(self) -> bool:
        now = self._clock()
        earned = (now - self._allowance_at) * CALLS_PER_SECOND
        self._allowance, self._allowance_at = min(BURST, self._allowance + earned), now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    def _pod(self, pod: Pod) -> PodResources:
        # Init containers that are to end are never shown, whatever they hold.
        shown = [container for container in pod.init_containers if container.restartable]
        return PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[self._container(pod, container) for container in (*shown, *pod.containers)],
        )

    def _container(self, pod: Pod, container: Container) -> ContainerResources:
        """List each device by itself, as the real one does: once for each NUMA node it is on."""
        return ContainerResources(
            name=container.name,
            devices=[
                ContainerDevices(resource_name=resource, device_ids=[one])
                for resource, allocation in self._manager.allocations.of(pod.uid, container.name).items()
                for ids in allocation.ids_by_numa.values()
                for one in ids
            ],
            dynamic_resources=[_claim(info) for info in self._claims.of(pod, container)] if self._claims else [],
        )


def _claim(info: "ClaimInfo") -> DynamicResource:
    """Show a claim whole, as the real one does, whatever requests the container names.

    The CDI devices of a driver add up from one device to the next (kubernetes: cm/container_manager_linux.go,
    GetDynamicResources), so the last device of a driver shows those of all.
    """
    resources = []
    for driver, devices in info.devices.items():
        ids: list[CDIDevice] = []
        for device in devices:
            ids += [CDIDevice(name=one) for one in device.cdi_ids]
            resources.append(
                ClaimResource(
                    cdi_devices=ids,
                    driver_name=driver,
                    pool_name=device.pool,
                    device_name=device.device,
                    share_id=device.share_id,
                )
            )
    return DynamicResource(claim_name=info.name, claim_namespace=info.namespace, claim_resources=resources)
