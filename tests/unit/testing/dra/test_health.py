"""The health of devices reaches pods as in Kubernetes 1.36 (pkg/kubelet/cm/dra/healthinfo.go, manager.go)."""

from pathlib import Path

from gpushare_plugin.kubelet.api.dra_health_pb2 import (
    DeviceHealth,
    DeviceIdentifier,
    HealthStatus,
    NodeWatchResourcesResponse,
)
from gpushare_plugin.testing.kubelet import Pod
from tests.unit.testing.dra.node import DraNode, dra_node


def report(health: HealthStatus.ValueType, timeout: int = 0) -> NodeWatchResourcesResponse:
    """Report on the only device."""
    device = DeviceIdentifier(pool_name="node", device_name="gpu-0")
    return NodeWatchResourcesResponse(
        devices=[DeviceHealth(device=device, health=health, health_check_timeout_seconds=timeout)]
    )


async def health(node: DraNode, pod: Pod, expected: str) -> None:
    """Wait until the device of a pod has this health."""
    resource = f"example.com/claim={node.uid('gpu')}"
    await node.kubelet.wait_for(lambda kubelet: kubelet.health(pod, "main") == {"claim:gpu": {resource: expected}})


async def test_health_is_unknown_30_s_after_a_report_and_when_the_stream_ends(short_path: Path) -> None:
    """DefaultHealthTimeout, or the report's own; a stream that ended is tried again after 5 s."""
    async with dra_node(short_path) as node:
        await node.register()
        pod = node.pod("gpu")
        await node.kubelet.admit(pod)
        await health(node, pod, "Unknown")
        node.driver.reports.put_nowait(report(HealthStatus.HEALTHY))
        await health(node, pod, "Healthy")
        await node.clock.skip(30)
        await health(node, pod, "Healthy")
        await node.clock.skip(1)
        await health(node, pod, "Unknown")
        node.driver.reports.put_nowait(report(HealthStatus.UNHEALTHY, timeout=100))
        await health(node, pod, "Unhealthy")
        await node.clock.skip(99)
        await health(node, pod, "Unhealthy")
        node.driver.reports.put_nowait(None)
        await health(node, pod, "Unknown")
        streams = node.kubelet.calls["NodeWatchResources"]
        await node.clock.skip(5)
        await node.kubelet.wait_for(lambda kubelet: kubelet.calls["NodeWatchResources"] == streams + 1)
        await node.driver.stop()


async def test_before_1_36_no_health_is_asked_for(short_path: Path) -> None:
    """The gate ResourceHealthStatus is off by default there."""
    async with dra_node(short_path, health=False) as node:
        await node.register()
        await node.kubelet.admit(node.pod("gpu"))
        assert node.kubelet.calls["NodeWatchResources"] == 0
        await node.driver.stop()
