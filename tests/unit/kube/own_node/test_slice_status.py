"""Tests of `gpushare_plugin.kube.own_node.slice_status`: the slices in the status of our Node."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.published import Published
from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.kube.own_node.slice_status import SliceStatus, difference, excess
from gpushare_plugin.slices.slice import SchedulableSlices
from gpushare_plugin.testing.cluster import ApiServer, Permission
from gpushare_plugin.testing.cluster.server import Refusal
from tests.unit.kube.cluster import NODE, QUICK, a_node
from tests.waiting import until

TEN, FIVE, MIG = "nvidia.com/gpu-10gb", "nvidia.com/gpu-5gb", "nvidia.com/mig-1g.5gb"
CPU = {"cpu": "8", "nvidia.com/gpu": "3"}


def slices(kind: Any = "mps", **ids: str) -> SchedulableSlices:
    """Return slices with IDs of one letter, by `ten` and `five`."""
    return SchedulableSlices(kind, {{"ten": TEN, "five": FIVE}[name]: frozenset(each) for name, each in ids.items()})


def a_status(capacity: Mapping[str, str], allocatable: Mapping[str, str]) -> dict[str, Any]:
    """Return a Node with these, beside what others count."""
    return {"status": {"capacity": {**CPU, **capacity}, "allocatable": {**CPU, **allocatable}}}


def test_numbers_that_are_right_are_not_written() -> None:
    """The capacity, where the kubelet counts unhealthy ones too, is raised only; nothing else is touched."""
    there = a_status({TEN: "4", FIVE: "1"}, {TEN: "2", FIVE: "1"})
    assert difference(there, {TEN: 2, FIVE: 1}, slices()) == {}
    assert difference(there, {TEN: 3, FIVE: 2}, slices()) == {
        "capacity": {FIVE: "2"},
        "allocatable": {TEN: "3", FIVE: "2"},
    }
    assert difference({}, {TEN: 1, FIVE: 0}, slices()) == {"capacity": {TEN: "1"}, "allocatable": {TEN: "1"}}


def test_slices_that_the_node_does_not_offer_are_set_to_zero() -> None:
    """Of its own kind only: no pod of that size is to be scheduled there until the kubelet removes them."""
    there = a_status({TEN: "4", MIG: "2"}, {TEN: "4", MIG: "2"})
    assert difference(there, {FIVE: 1}, slices()) == {
        "capacity": {FIVE: "1"},
        "allocatable": {TEN: "0", FIVE: "1"},
    }
    assert difference(there, {}, slices("mig")) == {"allocatable": {MIG: "0"}}


def test_a_value_that_is_no_number_is_written_anew() -> None:
    """A writer of the Node can write anything that is a quantity."""
    assert difference(a_status({TEN: "2"}, {TEN: "1k"}), {TEN: 2}, slices()) == {"allocatable": {TEN: "2"}}


def test_excess_is_what_the_node_shows_too_much() -> None:
    """By resource; what grows is no excess."""
    there = a_status({}, {TEN: "4", FIVE: "1"})
    assert excess(there, difference(there, {TEN: 1, FIVE: 2}, slices())) == {TEN: 3}


class Kept:
    """A Node whose slices are kept; what the kubelet confirms is in the hands of a test."""

    def __init__(self, server: ApiServer, client: Client) -> None:
        """Start with a Node without slices."""
        self.server = server
        self.slices: Published[SchedulableSlices | None] = Published(None)
        self.healthy: Mapping[str, frozenset[str]] | None = {}
        self.observed: list[str] = []
        self.nodes = Published[Any](self.node)
        self.status = SliceStatus(client, NODE, self.confirm, self)

    @property
    def node(self) -> Any:
        """The Node as the API server has it."""
        return self.server.store.find(NODES, NODE)[0]

    @property
    def allocatable(self) -> Mapping[str, str]:
        """What the Node shows."""
        found: Mapping[str, str] = (self.node.get("status") or {}).get("allocatable") or {}
        return found

    @property
    def writes(self) -> int:
        """How often the status was written."""
        return len([asked for asked in self.server.asked if asked.verb == "patch"])

    async def confirm(self) -> Mapping[str, frozenset[str]]:
        """Return what the kubelet confirms; None is no answer."""
        if self.healthy is None:
            raise GpushareError("no kubelet")
        return self.healthy

    def shown(self, slices: SchedulableSlices) -> None:  # noqa: ARG002 - as an `Observer` does
        """Note what the Node shows no more than."""
        self.observed.append("shown")

    def exceeded(self, excess: Mapping[str, int]) -> None:
        """Note what it shows too much."""
        self.observed += [f"{name} {count}" for name, count in excess.items()]

    def failed(self) -> None:
        """Note that it is not known."""
        self.observed.append("failed")

    def tick(self, **counts: str) -> None:
        """Write counts as the kubelet does, and have the watch show it."""
        named = {{"ten": TEN, "five": FIVE}[name]: count for name, count in counts.items()}
        self.server.store.patch(NODES, NODE, {"status": {"capacity": named, "allocatable": named}})
        self.nodes.publish(self.node)


@pytest.fixture
async def kept(short_path: Path) -> AsyncIterator[Kept]:
    """Run with no other right than the one needed."""
    async with ApiServer(frozenset({Permission("patch", "nodes/status")})) as server:
        a_node(server)
        async with Client(server.kubeconfig(short_path / "kubeconfig"), QUICK) as client:
            made = Kept(server, client)
            task = asyncio.create_task(made.status.keep(made.nodes, made.slices))
            yield made
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_a_node_never_shows_more_slices_than_the_kubelet_confirms(kept: Kept) -> None:
    """The kubelet is asked again until it confirms all; what it confirms of others does not count."""
    kept.healthy = {TEN: frozenset("ax")}
    kept.slices.publish(slices(ten="abc", five="d"))
    await until(lambda: kept.allocatable == {TEN: "1"})
    kept.healthy = {TEN: frozenset("abc"), FIVE: frozenset("d")}
    await until(lambda: kept.allocatable == {TEN: "3", FIVE: "1"})
    assert kept.node["status"]["capacity"] == {TEN: "3", FIVE: "1"}


async def test_the_kubelets_own_number_is_corrected(kept: Kept) -> None:
    """The observer hears by how much the number was too large, and that it is right again."""
    kept.healthy = {TEN: frozenset("abc")}
    kept.slices.publish(slices(ten="ab"))
    await until(lambda: kept.allocatable == {TEN: "2"})
    await until(lambda: kept.observed == ["shown"])
    kept.tick(ten="3")
    await until(lambda: kept.allocatable == {TEN: "2"})
    await until(lambda: kept.observed == ["shown", f"{TEN} 1", "shown"])
    kept.tick(ten="2")
    await until(lambda: kept.observed[3:] == ["shown"])
    assert kept.writes == 2


async def test_slices_that_cannot_be_confirmed_or_written_are_told(
    kept: Kept, log: list[MutableMapping[str, Any]]
) -> None:
    """The log says so once; the work goes on as soon as it can."""
    kept.healthy = None
    kept.slices.publish(slices(ten="ab"))
    await until(lambda: len(kept.observed) > 2)
    assert set(kept.observed) == {"failed"}
    assert [each["reason"] for each in log if each["event"] == "slices_unconfirmed"] == ["no kubelet"]
    kept.server.refusals.append(Refusal(500, times=2))
    kept.healthy = {TEN: frozenset("ab")}
    await until(lambda: kept.allocatable == {TEN: "2"})
    await until(lambda: kept.observed[-1] == "shown")
    assert [each["event"] for each in log] == ["slices_unconfirmed", "api_request_failed", "api_request_failed"]


async def test_a_node_that_is_not_partitioned_is_not_written(kept: Kept) -> None:
    """Nor is one that there is not; then it is written as soon as it is there."""
    kept.tick(ten="3")
    kept.healthy = {TEN: frozenset("ab")}
    kept.nodes.publish(None)
    kept.slices.publish(slices(ten="ab"))
    kept.nodes.publish(kept.node)
    await until(lambda: kept.allocatable == {TEN: "2"})
    kept.slices.publish(None)
    kept.tick(ten="3")
    kept.slices.publish(slices(ten="a"))
    await until(lambda: kept.allocatable == {TEN: "1"})
    assert kept.writes == 2
