"""Tests of `plugin`, with the DRA manager of an embedded kubelet."""

import asyncio
import contextlib
import socket
from functools import partial
from pathlib import Path

import pytest

from gpushare_plugin.core.prepared_claim import ClaimId
from gpushare_plugin.kubelet.dra_plugin.plugin import LONGEST_CALLS, DraPlugin
from gpushare_plugin.testing.kubelet import PrepareError
from gpushare_plugin.testing.kubelet.view import KubeletView
from tests.logs import logged
from tests.unit.kubelet.dra_plugin.serving import Claims, cdi_name, plugin_node
from tests.unit.testing.dra.driver import DRIVER, Driver
from tests.waiting import until


async def test_a_claim_is_prepared_for_a_container_and_given_back(short_path: Path) -> None:
    """The kubelet finds the plugin within a second, the container gets the CDI device, and the end unprepares."""
    claims = Claims()
    async with plugin_node(short_path) as its, its.plugin(claims) as plugin:
        pod = its.node.pod("gpu")
        await its.until_registered(plugin)
        admitted = await its.node.kubelet.admit(pod)
        uid = its.node.uid("gpu")
        assert admitted.containers["main"].cdi_devices == (cdi_name(uid),)
        await its.node.kubelet.end(pod)
        assert claims.prepared == claims.unprepared == [[ClaimId("default", "gpu", uid)]]
        assert {name: sum(each.counts) for (name, _), each in plugin.calls.durations.items()} == {
            "NodePrepareResources": 1,
            "NodeUnprepareResources": 1,
        }


async def test_a_kubelet_before_1_34_is_answered(short_path: Path) -> None:
    """Such a kubelet knows v1beta1 alone, whose answers have no ID of the share."""
    async with plugin_node(short_path, services=("v1beta1.DRAPlugin",)) as its, its.plugin() as plugin:
        pod = its.node.pod("gpu")
        await its.until_registered(plugin)
        admitted = await its.node.kubelet.admit(pod)
        assert admitted.containers["main"].cdi_devices == (cdi_name(its.node.uid("gpu")),)
        await its.node.kubelet.end(pod)


async def test_a_claim_that_is_refused_shows_why(short_path: Path) -> None:
    """The pod has the error of its claim, and the kubelet may ask again."""
    claims = Claims()
    async with plugin_node(short_path) as its, its.plugin(claims) as plugin:
        pod = its.node.pod("gpu")
        await its.until_registered(plugin)
        claims.answers[its.node.uid("gpu")] = "no room"
        with pytest.raises(PrepareError, match="no room"):
            await its.node.kubelet.admit(pod)
        claims.answers.clear()
        await its.node.kubelet.admit(pod)


async def test_a_kubelet_that_restarts_registers_the_plugin_again(short_path: Path) -> None:
    """The sockets stay as they are; what follows the registration learns that it has to publish again."""
    async with plugin_node(short_path) as its, its.plugin() as plugin:
        await its.until_registered(plugin)
        before = its.sockets
        for times in (2, 3):
            await its.node.kubelet.restart()  # looks at once
            await its.until_known(plugin, times)
        await its.node.kubelet.admit(its.node.pod("gpu"))
        assert its.sockets == before


async def test_sockets_that_somebody_removes_are_made_again(short_path: Path) -> None:
    """Whichever is gone, the kubelet can call again, with a registration where the one in the registry was gone."""
    async with plugin_node(short_path) as its, its.plugin() as plugin:
        await its.until_registered(plugin)
        before = its.sockets
        its.endpoint.unlink()
        await until(lambda: plugin.served)
        await its.node.kubelet.wait_for(lambda kubelet: kubelet.connected_drivers)
        await its.node.kubelet.admit(its.node.pod("gpu"))
        assert plugin.registered.value.times == 1
        its.registration.unlink()
        await until(lambda: plugin.served)
        await its.node.clock.skip(1)
        await its.node.kubelet.wait_for(lambda kubelet: not kubelet.connected_drivers)
        await its.until_registered(plugin, 2)
        assert its.sockets == before


async def test_a_plugin_waits_for_the_kubelets_directories(short_path: Path) -> None:
    """Trouble that lasts is warned of, with the directory; the plugin serves once a kubelet has made it."""
    with logged() as events:
        plugin = DraPlugin(short_path, DRIVER, Claims(), grace=0.0)
        task = asyncio.create_task(plugin.run())
        warning = await until(lambda: [each for each in events if each["event"] == "dra_plugin_failed"])
        assert str(short_path / "plugins_registry") in warning[0]["reason"]
    async with plugin_node(short_path) as its:
        await until(lambda: plugin.served)
        await its.until_registered(plugin)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_refusal_of_the_kubelet_is_told(short_path: Path) -> None:
    """The reason is the kubelet's; that it is not registered is seen, too."""
    with logged() as events:
        async with plugin_node(short_path, services=("v9.DRAPlugin",)) as its, its.plugin(grace=0.0) as plugin:
            await its.node.clock.skip(1)
            await until(lambda: plugin.registered.value.refusal)
            assert not plugin.registered.value.stands
            (warning, *_) = await until(lambda: [each for each in events if each["event"] == "dra_plugin_refused"])
            assert "v9.DRAPlugin" in warning["reason"]


async def test_both_sockets_are_removed_at_the_end_and_nothing_else(short_path: Path) -> None:
    """At whatever moment a plugin ends while it starts, its sockets are gone; those of another driver stay."""
    async with plugin_node(short_path) as its:
        other = Driver(short_path, name="other.example.com")
        await other.start()
        for turns in range(40):
            running = asyncio.create_task(DraPlugin(short_path, DRIVER, Claims()).run())
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running])
            assert its.sockets == ["other.example.com-reg.sock"], f"cancelled after {turns} turns"
        await other.stop()


async def test_sockets_of_dead_processes_are_removed(short_path: Path) -> None:
    """Those of this DRA driver alone, at the start and later; the sockets of a living instance stay."""
    async with plugin_node(short_path) as its:
        registry, plugins = its.directories
        plugins.mkdir(parents=True)
        foreign = [registry / f"{DRIVER}.other~12-reg.sock", registry / "other-reg.sock", plugins / "another.sock"]
        dead = [registry / f"{DRIVER}~12ab-reg.sock", registry / f"{DRIVER}~1-reg.sock", plugins / "dra~12ab.sock"]
        for path in (*foreign, *dead):
            left_behind(path)
        async with its.plugin(), its.plugin():
            assert not any(path.exists() for path in dead)
            assert len(its.sockets) == 4 + len(foreign)
            left_behind(dead[0])
            await until(lambda: not dead[0].exists())
        assert its.sockets == sorted(path.name for path in foreign)


def failed_so_often(times: int, kubelet: KubeletView) -> bool:
    """Return whether a kubelet tried to register plugins so many times."""
    return len(kubelet.driver_registrations) == times


def left_behind(path: Path) -> None:
    """Leave a socket behind as a killed process does."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()


async def test_a_kubelet_that_failed_to_reach_a_dead_plugin_registers_the_next_at_once(short_path: Path) -> None:
    """The kubelet waits for minutes before it tries a path again, whatever socket is there; another path is new."""
    async with plugin_node(short_path) as its:
        dead = its.directories[0] / f"{DRIVER}~1-reg.sock"
        left_behind(dead)
        kubelet = its.node.kubelet
        for failures in (1, 2, 3):
            while not kubelet.is_registering:
                await its.node.clock.skip(1)
            await its.node.clock.skip(10)
            await kubelet.wait_for(partial(failed_so_often, failures))
        async with its.plugin() as plugin:
            await its.until_registered(plugin)
            assert not dead.exists()


async def test_two_instances_serve_side_by_side(short_path: Path) -> None:
    """As during an update with `maxSurge: 1`: the newer one is called; each ends alone, and takes its sockets along."""
    older, newer = Claims(), Claims()
    async with plugin_node(short_path) as its, its.plugin(older) as first:
        await its.until_registered(first)
        await its.node.kubelet.admit(its.node.pod("a", name="a"))
        async with its.plugin(newer) as second:
            await its.until_registered(second)
            assert len(its.sockets) == 4
            await its.node.kubelet.admit(its.node.pod("b", name="b"))
            assert (len(older.prepared), len(newer.prepared)) == (1, 1)
        assert len(its.sockets) == 2
        await its.node.kubelet.admit(its.node.pod("c", name="c"))
        assert (len(older.prepared), len(newer.prepared)) == (2, 1)
        assert first.registered.value.times == 1


async def test_no_call_fails_while_one_instance_follows_another(short_path: Path) -> None:
    """A call that is under way when an instance ends is answered; the next calls go to the next instance."""
    answering, answer = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        answering.set()
        await answer.wait()

    older, newer = Claims(during=wait), Claims()
    async with plugin_node(short_path) as its, its.plugin(newer) as second:
        await its.until_registered(second)
        ending = contextlib.AsyncExitStack()
        first = await ending.enter_async_context(its.plugin(older))
        await its.until_registered(first)
        admission = asyncio.create_task(its.node.kubelet.admit(its.node.pod("a", name="a")))
        await answering.wait()
        ended = asyncio.create_task(ending.aclose())
        await until(lambda: not first.served)
        await its.node.clock.skip(2)  # the kubelet looks at its registry
        answer.set()
        admitted = await admission
        await ended
        assert admitted.containers["main"].cdi_devices == (cdi_name(its.node.uid("a")),)
        await its.node.kubelet.admit(its.node.pod("b", name="b"))
        assert (len(older.prepared), len(newer.prepared)) == (1, 1)


async def test_an_end_does_not_wait_for_reports_of_health(short_path: Path) -> None:
    """The kubelet reads these without an end; only calls for claims are waited for."""
    async with plugin_node(short_path) as its:
        running = contextlib.AsyncExitStack()
        await its.until_registered(await running.enter_async_context(its.plugin()))
        await its.node.kubelet.admit(its.node.pod("gpu"))
        await its.node.kubelet.wait_for(lambda kubelet: kubelet.calls["NodeWatchResources"])
        async with asyncio.timeout(LONGEST_CALLS / 2):
            await running.aclose()
