"""DRA drivers register with the embedded kubelet as with Kubernetes 1.36 (pkg/kubelet/pluginmanager, cm/dra/plugin)."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.testing.cluster.server import Refusal
from tests.unit.testing.dra.driver import DRIVER, Driver
from tests.unit.testing.dra.node import NODE, SLICES, DraNode, dra_node
from tests.waiting import until


def publish(node: DraNode, driver: str = DRIVER) -> None:
    """Make a ResourceSlice of the node."""
    spec = {"driver": driver, "nodeName": NODE, "pool": {"name": NODE}}
    node.server.store.create(SLICES, {"metadata": {"name": driver}, "spec": spec})


def published(node: DraNode) -> list[str]:
    """Return the drivers with a ResourceSlice."""
    return [each["spec"]["driver"] for each in node.server.store.find(SLICES)]


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "CSIPlugin"}, "no handler registered for plugin type: CSIPlugin"),
        ({"services": []}, "empty list of supported gRPC services"),
        ({"services": ["v1alpha3.Node"]}, 'none of services supported by the plugin (["v1alpha3.Node"])'),
    ],
)
async def test_a_driver_that_cannot_be_used_is_told_so(
    short_path: Path, settings: dict[str, Any], message: str
) -> None:
    """kubernetes: pluginmanager/operationexecutor/operation_generator.go, validateSupportedServices."""
    async with dra_node(short_path) as node:
        driver = Driver(short_path, **settings)
        await driver.start()
        await node.clock.skip(1)
        await node.kubelet.wait_for(lambda kubelet: kubelet.driver_registrations)
        (status,) = driver.statuses
        assert not status.plugin_registered
        assert message in status.error
        await driver.stop()


async def test_the_first_service_that_the_kubelet_knows_is_used(short_path: Path) -> None:
    """A kubelet before 1.34 calls v1beta1; dra_plugin_manager.go, validateSupportedServices."""
    async with dra_node(short_path, services=("v1beta1.DRAPlugin",)) as node:
        await node.register()
        await node.kubelet.admit(node.pod("gpu"))
        assert node.driver.calls["v1beta1"] == 1
        await node.driver.stop()


async def test_failures_wait_longer_each_time_whatever_socket_is_there(short_path: Path) -> None:
    """After a failure 0.5 s, doubled, by path: a socket made anew waits, too (goroutinemap/exponentialbackoff)."""
    async with dra_node(short_path) as node:
        driver = Driver(short_path, type="CSIPlugin")
        await driver.start()
        tried = []
        for second in range(40):
            await node.clock.skip(1)
            if node.kubelet.is_registering:
                tried.append(second)
                await node.kubelet.wait_for(lambda kubelet: not kubelet.is_registering)
                await driver.leave_registry()
                await driver.register()
        # Waits of 0.5, 1, 2, 4, 8 and 16 s have to be over when the loop comes round.
        assert [later - earlier for earlier, later in pairwise(tried)] == [1, 2, 3, 5, 9, 17]
        await driver.stop()


async def test_a_driver_has_a_second_for_get_info(short_path: Path) -> None:
    """kubernetes: operationexecutor/operation_generator.go."""
    async with dra_node(short_path) as node:
        node.driver.during["GetInfo"] = asyncio.Event().wait
        await node.driver.start()
        await node.clock.skip(1)
        await until(lambda: node.driver.calls["GetInfo"])
        await node.clock.skip(1)
        await node.kubelet.wait_for(lambda kubelet: kubelet.driver_registrations)
        assert "context deadline exceeded" in (node.kubelet.driver_registrations[0].error or "")
        await node.driver.stop()


async def test_a_driver_that_does_not_take_the_answer_is_not_registered(short_path: Path) -> None:
    """An error of NotifyRegistrationStatus, or 5 s without an answer, deregisters; operation_generator.go."""
    async with dra_node(short_path) as node:
        node.driver.during["NotifyRegistrationStatus"] = asyncio.Event().wait
        await node.driver.start()
        await node.clock.skip(1)
        await until(lambda: node.driver.statuses)
        await node.clock.skip(5)
        await node.kubelet.wait_for(lambda kubelet: kubelet.driver_registrations)
        assert "failed to send registration status" in (node.kubelet.driver_registrations[0].error or "")
        assert node.kubelet.connected_drivers == frozenset()
        await node.driver.stop()


async def test_a_socket_made_anew_is_unregistered_then_registered(short_path: Path) -> None:
    """One operation at a time for a path, so the registration comes with the next loop; reconciler.go."""
    async with dra_node(short_path) as node:
        await node.register()
        await node.driver.leave_registry()
        await node.driver.register()
        await node.clock.skip(1)
        await node.kubelet.wait_for(lambda kubelet: not kubelet.connected_drivers)
        assert len(node.driver.statuses) == 1
        await node.clock.skip(1)
        await node.kubelet.wait_for(lambda kubelet: len(node.driver.statuses) == 2 and kubelet.connected_drivers)
        await node.driver.stop()


async def test_the_same_endpoint_twice_is_refused_and_another_instance_is_preferred(short_path: Path) -> None:
    """The newest connected instance is called, the older one once that has gone; dra_plugin_manager.go, add and get."""
    async with dra_node(short_path) as node:
        await node.register()
        thief = Driver(short_path, instance="-thief", endpoint=str(node.driver.socket))
        await thief.start()
        await node.clock.skip(1)
        await node.kubelet.wait_for(lambda kubelet: len(kubelet.driver_registrations) == 2)
        assert "already registered for DRA driver plugin" in thief.statuses[0].error
        newer = Driver(short_path, instance="-newer")
        await node.register(newer)
        await node.kubelet.wait_for(lambda _kubelet: len(newer.statuses) == 1)
        await node.kubelet.admit(node.pod("gpu"))
        assert (len(node.driver.prepared), len(newer.prepared)) == (0, 1)
        await newer.stop()
        await node.clock.skip(1)
        await node.kubelet.admit(node.pod("another", name="another"))
        assert len(node.driver.prepared) == 1
        await thief.stop()
        await node.driver.stop()


async def test_a_driver_that_has_registered_is_not_asked_again(short_path: Path) -> None:
    """Kubernetes 1.36 sees by the connection for claims that a driver is there (pluginmanager/pluginwatcher/README.md).

    Calls of GetInfo every 10 s were proposed (kubernetes#129799), and not taken.
    """
    async with dra_node(short_path) as node:
        await node.register()
        await node.kubelet.admit(node.pod("gpu"))  # after this call, none of the registration is on the way
        asked = node.driver.calls["GetInfo"]
        await node.clock.skip(3600)
        await node.kubelet.admit(node.pod("gpu", name="later"))
        assert node.driver.calls["GetInfo"] == asked
        await node.driver.stop()


async def test_names_that_begin_with_a_dot_are_ignored(short_path: Path) -> None:
    """kubernetes: pluginwatcher/plugin_watcher.go, handleCreateEvent."""
    async with dra_node(short_path) as node:
        hidden = Driver(short_path, name=".hidden.example.com")
        await hidden.start()
        await node.register()
        assert hidden.calls["GetInfo"] == 0
        await hidden.stop()
        await node.driver.stop()


async def test_a_kubelet_that_starts_deletes_all_slices_until_it_could(short_path: Path) -> None:
    """In the background, tried again after 1 s, 2 s …; so it can hit slices just published; wipeResourceSlices."""
    async with dra_node(short_path) as node:
        await node.kubelet.stop()
        node.server.refusals.append(Refusal(500, "deletecollection", times=2))
        await node.kubelet.start()
        await node.register()
        publish(node)
        publish(node, "other.example.com")
        await node.until_asked("deletecollection", 500, 1)
        await node.clock.skip(1)
        await node.until_asked("deletecollection", 500, 2)
        assert len(published(node)) == 2
        await node.clock.skip(2)
        await node.until_asked("deletecollection", 200, 2)
        assert published(node) == []
        await node.driver.stop()


async def test_slices_of_a_driver_without_a_connection_go_after_30_s(short_path: Path) -> None:
    """Those of others stay; defaultWipingDelay, dra_plugin_manager.go, sync."""
    async with dra_node(short_path) as node:
        await node.register()
        publish(node)
        publish(node, "other.example.com")
        await node.driver.stop()
        await node.kubelet.wait_for(lambda kubelet: not kubelet.connected_drivers)
        await node.clock.skip(29)
        assert len(published(node)) == 2
        wiped = len([each for each in node.server.asked if each.verb == "deletecollection"])
        await node.clock.skip(2)
        await node.until_asked("deletecollection", 200, wiped + 1)
        assert published(node) == ["other.example.com"]


async def test_a_driver_that_is_back_in_time_keeps_its_slices(short_path: Path) -> None:
    """Also at the same endpoint, without a registration; dra_plugin_manager.go, HandleConn."""
    async with dra_node(short_path) as node:
        await node.register()
        publish(node)
        await node.driver.stop_serving()
        await node.kubelet.wait_for(lambda kubelet: not kubelet.connected_drivers)
        await node.clock.skip(20)
        await node.driver.serve()
        await node.kubelet.wait_for(lambda kubelet: kubelet.connected_drivers)
        await node.clock.skip(60)
        assert published(node) == [DRIVER]
        assert len(node.driver.statuses) == 1
        await node.driver.stop()
