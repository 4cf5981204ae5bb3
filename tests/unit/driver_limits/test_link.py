"""Tests of `gpushare_plugin.driver_limits.link`: the side of the daemon."""

import asyncio
from pathlib import Path

import pytest

from gpushare_plugin.base.files.lock import lock
from gpushare_plugin.driver_limits.exchange import (
    DriverLimitsRoot,
    DriverLimitsStatus,
    GpuStatus,
    LimitedContainer,
    LimitOrder,
    LimitStatus,
)
from gpushare_plugin.driver_limits.link import DriverLimitsLink
from gpushare_plugin.gpus.exchange import read_message, write_message
from tests.logs import logged
from tests.unit.driver_limits.conftest import GPU, OTHER, container_id, pod_uid, wanted
from tests.waiting import until

ORDER = LimitOrder(gpus=(GPU, OTHER), containers=(wanted(1, 2048),))


@pytest.fixture
def root(tmp_path: Path) -> DriverLimitsRoot:
    """Return a root that is not there yet."""
    return DriverLimitsRoot(tmp_path / "run/driver-limits")


def report(root: DriverLimitsRoot, *gpus: GpuStatus, trouble: str | None = None, late: float | None = 1.5) -> None:
    """Write a status, as the agent does."""
    limit = LimitStatus(uuid=GPU, hard_mib=2048, late=late)
    containers = (LimitedContainer(pod_uid=pod_uid(1), container_id=container_id(1), gpus=(limit,)),)
    write_message(root.status, DriverLimitsStatus(gpus=gpus, containers=containers, trouble=trouble))


def test_nothing_is_written_before_an_order(root: DriverLimitsRoot) -> None:
    """A node without driver limits gets no file."""
    link = DriverLimitsLink(root, lambda: None)
    assert link.view.unable == {}
    assert not root.path.exists()


def test_an_agent_that_does_not_run_can_limit_nothing(root: DriverLimitsRoot) -> None:
    """The reason names the remedy; a status that an agent left behind does not count."""
    link = DriverLimitsLink(root, lambda: None)
    link.order(ORDER)
    report(root, GpuStatus(uuid=GPU, proven=True))
    link.order(LimitOrder(gpus=(GPU, OTHER)))
    assert link.view.unable.keys() == {GPU, OTHER}
    assert all("driverLimits.enabled: true" in reason for reason in link.view.unable.values())


def test_the_view_says_how_limits_stand_and_why_not(root: DriverLimitsRoot) -> None:
    """By container and GPU, as the agent reports it while it runs."""
    link = DriverLimitsLink(root, lambda: None)
    root.path.mkdir(parents=True)
    with lock(root.lock):
        link.order(LimitOrder(gpus=(GPU,)))
        assert "has not proven yet" in link.view.unable[GPU]
        report(root, GpuStatus(uuid=GPU, proven=True), GpuStatus(uuid=OTHER, reason="the card is busy"))
        link.order(ORDER)
        assert link.view.unable == {OTHER: "the card is busy"}
        assert link.view.late[container_id(1), GPU] == 1.5
        report(root, GpuStatus(uuid=GPU, proven=True), trouble="no cgroups")
        link.order(LimitOrder(gpus=(GPU,)))
        assert link.view.unable == {GPU: "no cgroups"}
        root.status.write_text("{")
        link.order(ORDER)
        assert "cannot be read" in link.view.unable[GPU]


def test_a_late_limit_stays_late(root: DriverLimitsRoot) -> None:
    """While the agent does not run, after restarts of both, and where the agent has forgotten; until the end."""
    late = {(container_id(1), GPU): 6.0}
    link = DriverLimitsLink(root, lambda: None)
    root.path.mkdir(parents=True)
    with lock(root.lock):
        report(root, GpuStatus(uuid=GPU, proven=True), late=6.0)
        link.order(ORDER)
        assert link.view.late == late
    link.order(LimitOrder(gpus=(GPU,), containers=ORDER.containers))
    assert link.view.late == late, "the agent has ended"
    restarted = DriverLimitsLink(root, lambda: None)
    restarted.order(ORDER)
    assert restarted.view.late == late, "the daemon has restarted"
    with lock(root.lock):
        for forgetful in (0.0, None):
            report(root, GpuStatus(uuid=GPU, proven=True), late=forgetful)
            restarted.order(LimitOrder(gpus=(), containers=ORDER.containers))
            assert restarted.view.late == late
            restarted.order(ORDER)
        report(root, GpuStatus(uuid=GPU, proven=True), late=90.0)
        restarted.order(LimitOrder(gpus=(), containers=ORDER.containers))
        assert restarted.view.late == {(container_id(1), GPU): 90.0}, "set again after a restart of the driver"
        restarted.order(LimitOrder(gpus=(GPU,)))
        assert restarted.view.late == {}


def test_an_order_tells_whether_other_gpus_can_be_limited(root: DriverLimitsRoot) -> None:
    """So that the offer follows at once; how the limits of containers stand changes no offer."""
    link = DriverLimitsLink(root, lambda: None)
    root.path.mkdir(parents=True)
    with lock(root.lock):
        report(root, GpuStatus(uuid=GPU, proven=True))
        assert not link.order(LimitOrder(gpus=(GPU,)))
        assert not link.order(LimitOrder(gpus=(GPU,), containers=(wanted(1, 2048),)))
        assert link.order(ORDER)
        assert not link.order(ORDER)
    assert link.order(LimitOrder(gpus=(GPU,)))


async def test_changes_are_noticed(root: DriverLimitsRoot) -> None:
    """Each change of the status calls back once, so that the offer follows."""
    changed: list[None] = []
    link = DriverLimitsLink(root, lambda: changed.append(None), every=0.01)
    watching = asyncio.create_task(link.watch())
    root.path.mkdir(parents=True)
    with lock(root.lock):
        link.order(ORDER)
        report(root, GpuStatus(uuid=GPU, proven=True), GpuStatus(uuid=OTHER, proven=True))
        await until(lambda: link.view.unable == {})
    await until(lambda: link.view.unable)
    assert len(changed) == 2
    watching.cancel()


async def test_an_order_that_cannot_be_written_is_tried_again(root: DriverLimitsRoot) -> None:
    """The reason is logged once, and shown for every GPU until the order is written."""
    root.path.parent.mkdir(parents=True)
    root.path.touch()
    link = DriverLimitsLink(root, lambda: None, every=0.01)
    with logged() as told:
        link.order(ORDER)
        link.order(ORDER)
        assert "cannot be written" in link.view.unable[GPU]
    assert [each["event"] for each in told] == ["driver_limits_desired_not_written"]
    watching = asyncio.create_task(link.watch())
    root.path.unlink()
    await until(lambda: root.path.is_dir() and read_message(root.wanted, LimitOrder) == ORDER)
    await until(lambda: "does not run" in link.view.unable[GPU])
    watching.cancel()
