"""DRA drivers register with the embedded kubelet as with Kubernetes 1.36 (pkg/kubelet/pluginmanager, cm/dra/plugin)."""

from pathlib import Path

from tests.unit.testing.dra.driver import DRIVER
from tests.unit.testing.dra.node import dra_node


async def test_a_driver_is_called_once_it_has_registered(short_path: Path) -> None:
    """A socket in the registry is found within the loop of 1 s; then a pod's claim is prepared before it starts.

    kubernetes: pluginmanager/plugin_manager.go (loopSleepDuration), cm/dra/manager.go (PrepareResources).
    """
    async with dra_node(short_path) as node:
        pod = node.pod("gpu")
        await node.register()
        admitted = await node.kubelet.admit(pod)
        assert node.driver.prepared == [[node.uid("gpu")]]
        assert admitted.containers["main"].cdi_devices == (f"example.com/claim={node.uid('gpu')}",)
        assert [status.plugin_registered for status in node.driver.statuses] == [True]
        assert [(each.driver, each.error) for each in node.kubelet.driver_registrations] == [(DRIVER, None)]
        await node.kubelet.end(pod)
        assert node.driver.unprepared == [[node.uid("gpu")]]
        await node.driver.stop()
