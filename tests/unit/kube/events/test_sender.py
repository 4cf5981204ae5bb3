"""Tests of `gpushare_plugin.kube.events`: Events reach the API server, and nobody waits for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from gpushare_plugin.kube.client import Client
from gpushare_plugin.kube.events.event import Backlog, Event, Reporter, of_node, of_pod
from gpushare_plugin.kube.events.sender import LONGEST_MESSAGE, EventSender
from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.testing.cluster import ApiServer, Permission
from gpushare_plugin.testing.cluster.server import Refusal
from tests.logs import logged
from tests.unit.kube.cluster import NODE, NOW
from tests.waiting import until

EVENTS = "/api/v1/namespaces/default/events"
POD_EVENTS = "/api/v1/namespaces/team/events"
REPORTER = Reporter("gpushare", NODE)
REMEDY = "grant create and patch of events"
RIGHTS = frozenset({Permission("create", "events"), Permission("patch", "events")})


def event(message: str = "it failed", regarding: ObjectIdentity | None = None) -> Event:
    """Return an Event, of the node unless it is about something else."""
    return Event(regarding or of_node(NODE), "GpuUnhealthy", "Warning", "Allocate", message)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server that allows Events and nothing else."""
    async with ApiServer(RIGHTS) as running:
        yield running


@pytest.fixture
async def backlog(client: Client) -> AsyncIterator[Backlog]:
    """Run a sender, and return where it takes Events from; each is a second later than the one before."""
    seconds = count(NOW)
    made = Backlog(lambda: next(seconds), most=3)
    async with sending(client, made):
        yield made


@contextlib.asynccontextmanager
async def sending(client: Client, backlog: Backlog, ask_again: float = 0.02) -> AsyncIterator[None]:
    """Send what comes into a backlog."""
    task = asyncio.create_task(EventSender(client, REPORTER, REMEDY, ask_again).send(backlog))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def found(server: ApiServer, path: str = EVENTS) -> list[Any]:
    """Return the Events of a namespace, in the order in which they were created."""
    return sorted(server.store.find(path), key=lambda each: (each["firstTimestamp"], each["message"]))


def messages(server: ApiServer, path: str = EVENTS) -> list[str]:
    """Return what they say."""
    return [each["message"] for each in found(server, path)]


async def test_an_event_about_the_node_has_all_that_kubectl_describe_shows(server: ApiServer, backlog: Backlog) -> None:
    """The namespace is that of objects without one."""
    backlog.put(event())
    await until(lambda: found(server))
    (one,) = found(server)
    assert one["metadata"]["name"].startswith(f"{NODE}.")
    del one["metadata"]
    assert one == {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE},
        "type": "Warning",
        "reason": "GpuUnhealthy",
        "action": "Allocate",
        "message": "it failed",
        "source": {"component": "gpushare", "host": NODE},
        "reportingComponent": "gpushare",
        "reportingInstance": NODE,
        "firstTimestamp": "2025-10-09T08:53:20Z",
        "lastTimestamp": "2025-10-09T08:53:20Z",
        "count": 1,
    }


async def test_an_event_about_a_pod_is_in_its_namespace_and_names_its_uid(server: ApiServer, backlog: Backlog) -> None:
    """The API server takes no Event in another namespace than that of its object."""
    backlog.put(event(regarding=of_pod("team", "one", "uid-1")))
    await until(lambda: found(server, POD_EVENTS))
    (one,) = found(server, POD_EVENTS)
    regarding = {"apiVersion": "v1", "kind": "Pod", "name": "one", "namespace": "team", "uid": "uid-1"}
    assert one["involvedObject"] == regarding


async def test_an_event_that_repeats_is_patched_and_not_created_again(server: ApiServer, backlog: Backlog) -> None:
    """The patch raises its count; both rights are used, and no other."""
    backlog.put(event())
    backlog.put(event())
    await until(lambda: [each["count"] for each in found(server)] == [2])
    (one,) = found(server)
    assert (one["firstTimestamp"], one["lastTimestamp"]) == ("2025-10-09T08:53:20Z", "2025-10-09T08:53:21Z")
    assert [(each.verb, each.status) for each in server.asked] == [("create", 201), ("patch", 200)]
    assert server.used == RIGHTS


async def test_an_event_that_has_expired_is_created_again(server: ApiServer, backlog: Backlog) -> None:
    """The API server deletes Events after an hour; the new one has the count of all."""
    backlog.put(event())
    await until(lambda: found(server))
    server.store.delete(EVENTS, found(server)[0]["metadata"]["name"])
    backlog.put(event())
    await until(lambda: [each["count"] for each in found(server)] == [2])


async def test_a_message_shows_text_of_others_as_text(server: ApiServer, backlog: Backlog) -> None:
    """Whoever describes the object sees an escape for each control, and for what changes the direction of writing."""
    backlog.put(event("found \x1b[2J\u202e\nNormal"))
    await until(lambda: found(server))
    assert messages(server) == [r"found \x1b[2J\u202e\nNormal"]


async def test_a_long_message_is_cut(server: ApiServer, backlog: Backlog) -> None:
    """Nothing is rejected because a config has many mistakes."""
    backlog.put(event("x" * 5000))
    await until(lambda: found(server))
    assert len(messages(server)[0]) == LONGEST_MESSAGE


async def test_an_outage_loses_only_the_oldest(server: ApiServer, backlog: Backlog) -> None:
    """What happens meanwhile is kept back within bounds and sent afterwards, in its order; what was lost is counted."""
    server.refusals.append(Refusal(503, times=3))
    backlog.put(event("first"))
    await until(lambda: server.asked)
    server.refusals.append(Refusal(0))
    for number in range(5):
        backlog.put(event(str(number)))
    assert backlog.dropped == 2
    with logged() as events:
        server.refusals.clear()
        await until(lambda: messages(server) == ["first", "2", "3", "4"])
        await until(lambda: [each for each in events if each["event"] == "events_dropped"])
    assert [each["count"] for each in events if each["event"] == "events_dropped"] == [2]


async def test_a_lost_answer_makes_no_second_event(server: ApiServer, backlog: Backlog) -> None:
    """The attempt whose answer was lost had made it; the next one finds it there."""
    server.refusals.append(Refusal(0, "create", times=1, carried_out=True))
    backlog.put(event("lost"))
    backlog.put(event("next"))
    await until(lambda: messages(server) == ["lost", "next"])


@pytest.mark.parametrize("status", [400, 403, 404, 413, 422])
async def test_an_event_that_is_rejected_holds_up_no_other(server: ApiServer, backlog: Backlog, status: int) -> None:
    """The API server does not take it, its namespace is gone or has a quota: the next one is sent."""
    server.refusals.append(Refusal(status, "create", times=1))
    backlog.put(event("rejected"))
    backlog.put(event("next"))
    await until(lambda: messages(server) == ["next"])


async def test_a_missing_right_to_send_events_is_said_once(server: ApiServer, client: Client) -> None:
    """The log names the right, attempts are seldom, and Events are sent once it is granted; once more it is news."""
    server.permissions = frozenset()
    backlog = Backlog()
    backlog.put(event("kept"))
    with logged() as events:
        async with sending(client, backlog):
            await until(lambda: len(server.asked) > 2)
            server.permissions = RIGHTS
            await until(lambda: messages(server) == ["kept"])
            server.permissions = frozenset()
            backlog.put(event("again"))
            await until(lambda: len([each for each in events if each["event"] == "events_forbidden"]) > 1)
    told = [each for each in events if each["event"] == "events_forbidden"]
    assert len(told) == 2
    assert told[0]["remedy"] == REMEDY


async def test_a_forbidden_event_is_not_tried_again_for_a_while(server: ApiServer, client: Client) -> None:
    """However many Events come, there is one request until the time is over."""
    server.permissions = frozenset()
    backlog = Backlog()
    async with sending(client, backlog, ask_again=600):
        for number in range(20):
            backlog.put(event(str(number)))
        await until(lambda: server.asked)
        for _ in range(20):
            await asyncio.sleep(0)
    assert len(server.asked) == 1


async def test_a_namespace_that_ends_says_nothing_of_our_rights(server: ApiServer, backlog: Backlog) -> None:
    """An Event about a pod that goes with its namespace is given up, and others are sent at once."""
    server.terminating.add("team")
    backlog.put(event(regarding=of_pod("team", "one", "uid-1")))
    backlog.put(event("next"))
    await until(lambda: messages(server) == ["next"])
    assert [each.status for each in server.asked] == [403, 201]


def test_the_newest_events_are_kept() -> None:
    """Without anybody who takes them, Events are counted and dropped; putting one never waits."""
    backlog = Backlog(most=2)
    for number in range(5):
        backlog.put(event(str(number)))
    assert backlog.dropped == 3
