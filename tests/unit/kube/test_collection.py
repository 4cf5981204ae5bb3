"""Tests of `gpushare_plugin.kube.collection`: what a consumer is given, whatever goes wrong."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.base.tasks import beside
from gpushare_plugin.kube.client import NODES, Client, Timing
from gpushare_plugin.kube.collection import Collection, Gone, Listed, Put, follow_object
from gpushare_plugin.kube.objects import ApiNode, ApiPod
from gpushare_plugin.testing.cluster import ApiServer, Permission
from gpushare_plugin.testing.cluster.server import Refusal
from gpushare_plugin.testing.cluster.store.place import collection
from gpushare_plugin.testing.cluster.store.selectors import Selector
from tests.logs import logged
from tests.unit.kube.cluster import NODE, QUICK, a_node, annotate
from tests.unit.kube.pods import ALL_PODS, PODS, a_pod, pod
from tests.waiting import until


@dataclass
class View:
    """What a consumer knows of the pods, and all that it was given for that."""

    pods: dict[str, ApiPod] = field(default_factory=dict)
    changes: list[Put[ApiPod] | Gone | Listed] = field(default_factory=list)

    async def take(self, collected: Collection[ApiPod]) -> None:
        """Follow; each change must be one that can be."""
        async for change in collected.changes():
            self.changes.append(change)
            match change:
                case Put(found):
                    self.pods[found.metadata.uid] = found
                case Gone(uid=uid):
                    del self.pods[uid]

    def versions(self) -> dict[str, str]:
        """Return the version of each pod, by UID."""
        return {uid: found.metadata.resource_version for uid, found in self.pods.items()}

    def has_listed(self, times: int) -> bool:
        """Return whether so many lists were complete."""
        return self.listed() == times

    def listed(self) -> int:
        """Return how many lists were complete."""
        return self.changes.count(Listed())


@asynccontextmanager
async def followed(server: ApiServer, folder: Path, timing: Timing = QUICK, **options: Any) -> AsyncIterator[View]:
    """Follow all pods, once the first list is complete."""
    async with Client(server.kubeconfig(folder / "kubeconfig"), timing) as client:
        view = View()
        collected = Collection(client, ALL_PODS, ApiPod, consequence="nothing", **options)
        task = asyncio.create_task(view.take(collected))
        try:
            await until(lambda: view.listed() or task.done())
            yield view
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.wait([task])


def there(server: ApiServer) -> dict[str, str]:
    """Return the version of each pod of the server, by UID."""
    return {found["metadata"]["uid"]: found["metadata"]["resourceVersion"] for found in server.store.find(ALL_PODS)}


async def agrees(server: ApiServer, view: View) -> None:
    """Wait until the consumer knows exactly what is there."""
    await until(lambda: view.versions() == there(server))


def touch(server: ApiServer, name: str, value: str = "1") -> None:
    """Make another version of a pod."""
    server.store.patch(PODS, name, {"metadata": {"annotations": {"touched": value}}})


def count(server: ApiServer, verb: str) -> int:
    """Return how many requests of a verb there were."""
    return [each.verb for each in server.asked].count(verb)


async def test_changes_follow_the_first_list(server: ApiServer, tmp_path: Path) -> None:
    """First comes what is there, then that this was all, then each change, as what it is."""
    one, two = a_pod(server, "one"), a_pod(server, "two", "gpu-1")
    async with followed(server, tmp_path) as view:
        names = [change.object.metadata.name for change in view.changes if isinstance(change, Put)]
        assert (names, view.changes[-1]) == (["one", "two"], Listed())
        assert [view.pods[each.uid].spec.node_name for each in (one, two)] == ["", "gpu-1"]
        touch(server, "one")
        server.store.delete(PODS, "two")
        three = a_pod(server, "three")
        await until(lambda: three.uid in view.pods)
        put, gone, last = view.changes[-3:]
        assert isinstance(put, Put)
        assert isinstance(last, Put)
        assert put.object.metadata.annotations == {"touched": "1"}
        assert gone == Gone(two.uid, "team", "two")
        assert last.object.metadata.uid == three.uid


async def test_a_long_list_comes_in_pages(server: ApiServer, tmp_path: Path) -> None:
    """No request asks for more than a page, and what changes between pages is not lost."""
    for index in range(95):
        a_pod(server, f"pod-{index:03}")
    async with followed(server, tmp_path, page=10) as view:
        assert count(server, "list") == 10
        await agrees(server, view)
        touch(server, "pod-000")
        await agrees(server, view)
        assert (count(server, "list"), view.listed()) == (10, 1)


async def test_a_broken_object_stops_no_other(server: ApiServer, tmp_path: Path) -> None:
    """An object that no API server sends, in a list or a watch, is logged; the others are followed as ever."""
    broken = {"metadata": {"name": "broken"}, "spec": {"containers": 7}}
    server.store.create(PODS, broken)
    server.store.create(PODS, {"metadata": {"name": "labelled", "labels": {"a": 1}}})
    one = a_pod(server, "one")
    with logged() as log:
        async with followed(server, tmp_path) as view:
            assert list(view.pods) == [one.uid]
            server.store.patch(PODS, "one", {"spec": {"priority": "high"}})
            two = a_pod(server, "two")
            await until(lambda: two.uid in view.pods)
            assert (list(view.pods), view.listed()) == ([one.uid, two.uid], 1)
    ignored = [each for each in log if each["event"] == "object_ignored"]
    assert [each["found"] for each in ignored] == ["team/broken", "without a name", "team/one"]
    assert "spec.containers" in ignored[0]["reason"]


async def test_an_object_with_text_that_is_not_unicode_stops_no_other(server: ApiServer, tmp_path: Path) -> None:
    """An object with text that is not Unicode is logged, and the others are followed as ever."""
    one = a_pod(server, "one")
    a_pod(server, "zwei")
    write_over(server, "zwei", b'"zwei"', b'"\xff"')
    with logged() as log:
        async with followed(server, tmp_path) as view:
            assert list(view.pods) == [one.uid]
    assert [each["found"] for each in log if each["event"] == "object_ignored"] == ["without a name"]


async def test_a_list_that_cannot_be_read_is_tried_again(server: ApiServer, tmp_path: Path) -> None:
    """Fields that are nested too deep to be read hide all of a list; once they are gone, it is read."""
    one = a_pod(server, "one")
    a_pod(server, "two")
    write_over(server, "two", b'"spec":', b'"more": ' + b"[" * 100_000 + b"]" * 100_000 + b', "spec":')
    with logged() as log:
        async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
            view = View()
            task = asyncio.create_task(view.take(Collection(client, ALL_PODS, ApiPod, consequence="nothing")))
            await until(lambda: log or task.done())
            server.store.delete(PODS, "two")
            await until(lambda: view.listed() or task.done())
            task.cancel()
            await asyncio.wait([task])
    assert list(view.pods) == [one.uid]
    assert log[0]["event"] == "api_request_failed"
    assert "recursion" in log[0]["reason"]


def write_over(server: ApiServer, name: str, text: bytes, other: bytes) -> None:
    """Have a pod be sent with other bytes in place of a text, which no object could be made of."""
    ((_, stored),) = server.store.selected(collection(PODS), Selector((("name", True, name),)))
    assert text in stored.body
    stored.body = stored.body.replace(text, other, 1)


async def test_an_expired_page_begins_the_list_again(server: ApiServer, tmp_path: Path) -> None:
    """Where the server cannot go on with a list, it is begun again, and only what changed is given again."""
    for index in range(30):
        a_pod(server, f"pod-{index:03}")
    gone = server.store.find(PODS, "pod-000")[0]["metadata"]["uid"]
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        changes = Collection(client, ALL_PODS, ApiPod, consequence="nothing", page=10).changes()
        given = [await anext(changes) for _ in range(10)]
        server.store.delete(PODS, "pod-000")
        touch(server, "pod-001")
        server.store.forget()
        while Listed() not in given:
            given.append(await anext(changes))
        await changes.aclose()
    assert [each.status for each in server.asked if each.verb == "list"] == [200, 410, 200, 200, 200]
    names = [each.object.metadata.name for each in given if isinstance(each, Put)]
    assert (len(names), names[10]) == (31, "pod-001")
    assert [each.uid for each in given if isinstance(each, Gone)] == [gone]


async def test_pods_of_one_node_are_selected(server: ApiServer, tmp_path: Path) -> None:
    """A pod comes when it is bound to the node, and goes when it is no more; others never come."""
    a_pod(server, "other", "gpu-2")
    one = a_pod(server, "one")
    async with followed(server, tmp_path, selector="spec.nodeName=gpu-1") as view:
        assert view.pods == {}
        server.store.patch(PODS, "one", {"spec": {"nodeName": "gpu-1"}})
        await until(lambda: view.pods)
        assert view.pods[one.uid].spec.node_name == "gpu-1"
        server.store.delete(PODS, "one")
        await until(lambda: not view.pods)
    assert {change.uid for change in view.changes if isinstance(change, Gone)} == {one.uid}


async def test_a_watch_that_breaks_is_resumed(server: ApiServer, tmp_path: Path) -> None:
    """After a broken connection, also in the middle of a line, the watch goes on, and nothing is listed again."""
    a_pod(server, "one")
    async with followed(server, tmp_path) as view:
        for round_, words in enumerate([b"", b"{", b'{"type":"MODIFIED","object":{"metadata":{"na']):
            await until(lambda: server.watches.open)
            await server.watches.cut(last_words=words)
            touch(server, "one", str(round_))
            await agrees(server, view)
        assert (count(server, "list"), view.listed()) == (1, 1)
        assert count(server, "watch") > 3


async def test_a_server_that_comes_back_is_not_listed_again(server: ApiServer, tmp_path: Path) -> None:
    """When a server comes back, the watch is resumed: a restart of the server is no storm of lists."""
    a_pod(server, "one")
    async with followed(server, tmp_path) as view:
        await server.stop()
        touch(server, "one")
        a_pod(server, "two")
        await server.start()
        await agrees(server, view)
        assert (count(server, "list"), view.listed()) == (1, 1)


async def test_forgotten_changes_are_found_by_a_list(server: ApiServer, tmp_path: Path) -> None:
    """After 410, the list gives what changed, what is new, what is gone and what was replaced, and nothing else."""
    replaced, gone = a_pod(server, "replaced"), a_pod(server, "gone")
    changed = a_pod(server, "changed")
    a_pod(server, "same")
    async with followed(server, tmp_path) as view:
        await server.stop()
        server.store.delete(PODS, "replaced")
        server.store.delete(PODS, "gone")
        touch(server, "changed")
        new, another = a_pod(server, "new"), a_pod(server, "replaced")
        server.store.forget()
        before = len(view.changes)
        await server.start()
        await until(lambda: view.listed() == 2)
        assert view.versions() == there(server)
        since = view.changes[before:]
        assert {each.uid for each in since if isinstance(each, Gone)} == {replaced.uid, gone.uid}
        assert {each.object.metadata.uid for each in since if isinstance(each, Put)} == {
            changed.uid,
            new.uid,
            another.uid,
        }


async def test_a_server_that_forgets_all_the_time_is_not_listed_all_the_time(server: ApiServer, tmp_path: Path) -> None:
    """Lists that follow each other get further and further apart, although each watch is accepted at first."""
    a_pod(server, "one")
    timing = Timing(request=20.0, watch=60.0, first_wait=0.2, longest_wait=60.0)
    with logged() as events:
        async with followed(server, tmp_path, timing) as view:
            for listed in range(2, 6):
                await until(lambda: server.watches.open)
                server.store.forget()
                await until(partial(view.has_listed, listed))
    waits = [event["retry_seconds"] for event in events if event["event"] == "api_request_failed"]
    # The first 410 is no failure. After it, the waits double from 0.4 s on; a random part, up to half, is left out.
    assert len(waits) == 3
    assert all(wait >= 0.2 * 2**power * 0.5 - 0.05 for power, wait in enumerate(waits, 1))


async def test_bookmarks_spare_a_list(server: ApiServer, tmp_path: Path) -> None:
    """A watch that saw nothing but a bookmark is resumed from there, also when everything before is forgotten."""
    a_pod(server, "one")
    timing = Timing(request=20.0, watch=1.0, first_wait=0.01, longest_wait=0.05)
    async with followed(server, tmp_path, timing) as view:
        await until(lambda: server.watches.open)
        annotate(server, "some", "node")
        newest = server.store.version.value
        await until(lambda: [each.version for each in server.watches.open] == [newest])
        server.store.oldest = newest
        await until(lambda: count(server, "watch") > 1)
        touch(server, "one")
        await agrees(server, view)
        assert count(server, "list") == 1


async def test_a_server_that_vanishes_is_noticed_by_its_silence(server: ApiServer, tmp_path: Path) -> None:
    """A connection that stays open and says nothing ends long before the watch; what answers then is no failure."""
    a_pod(server, "one")
    timing = Timing(request=20.0, watch=3600.0, quiet=0.3, first_wait=0.01, longest_wait=0.05)
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), timing) as client:
        view, collected = View(), Collection(client, ALL_PODS, ApiPod, consequence="nothing")
        async with beside(view.take(collected)) as following:
            await until(lambda: count(server, "watch") > 1)
            assert (collected.failing, count(server, "list")) == (False, 1)
            server.silent = True
            await until(lambda: collected.failing)
            server.silent = False
            await until(lambda: collected.live)
            assert count(server, "list") == 1
            following.cancel()


async def test_a_late_watch_loses_nothing(server: ApiServer, tmp_path: Path) -> None:
    """Events that come late come in order, and nothing is waited for in vain."""
    server.watches.delay = 0.3
    async with followed(server, tmp_path) as view:
        pods = [a_pod(server, f"pod-{index}") for index in range(5)]
        assert view.pods == {}
        await agrees(server, view)
        assert list(view.pods) == [each.uid for each in pods]


@pytest.mark.parametrize("size", [64 * 1024, 200 * 1024, 256 * 1024 - 3])
async def test_a_line_of_any_length_arrives(server: ApiServer, tmp_path: Path, size: int) -> None:
    """The longest annotation there can be arrives by the watch, without a second list, for one object and for all."""
    a_node(server)
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        one = follow_object(client, NODES, NODE, "nothing")
        everything = Collection(client, NODES, ApiNode, consequence="nothing").changes()
        await anext(one)
        assert [type(await anext(everything)) for _ in range(2)] == [Put, Listed]
        annotate(server, "big", "x" * size)
        found, change = await anext(one), await anext(everything)
        assert found is not None
        assert len(found["metadata"]["annotations"]["big"]) == size
        assert isinstance(change, Put)
        assert len(change.object.metadata.annotations["big"]) == size
        assert count(server, "list") == 2
        await one.aclose()
        await everything.aclose()


@pytest.mark.parametrize(
    "line",
    [
        b"{\n",
        b"nonsense\n",
        b"[]\n",
        b'{"type":"MODIFIED"}\n',
        b'{"type":"MODIFIED","object":7}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":1}}}\n',
        b'{"type":"ERROR","object":{"code":500,"message":"etcd lost its way"}}\n',
        b'{"type":"ERROR","object":[]}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"\xff","resourceVersion":"9"}}}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"deep","fields":' + b"[" * 100_000 + b"]" * 100_000 + b"}}}\n",
    ],
    ids=range(10),
)
async def test_a_broken_line_leads_to_a_list(server: ApiServer, tmp_path: Path, line: bytes) -> None:
    """What cannot be understood, or is an error, could be a change that is lost; a list finds it."""
    a_pod(server, "one")
    async with followed(server, tmp_path) as view:
        await until(lambda: server.watches.open)
        await server.watches.say(line)
        await until(lambda: view.listed() == 2)
        touch(server, "one")
        await agrees(server, view)


async def test_events_of_unknown_kinds_are_passed_over(server: ApiServer, tmp_path: Path) -> None:
    """What a newer server may send beside is no change, and no failure."""
    a_pod(server, "one")
    async with followed(server, tmp_path) as view:
        await until(lambda: server.watches.open)
        version = str(server.store.version.value).encode()
        await server.watches.say(b'{"type":"NEWS","object":{"metadata":{"resourceVersion":"%s"}}}\n' % version)
        await server.watches.say(
            b'{"type":"DELETED","object":{"metadata":{"name":"never-seen","resourceVersion":"%s"}}}\n' % version
        )
        touch(server, "one")
        await agrees(server, view)
        assert view.listed() == 1


async def test_a_missing_right_to_list_is_told(tmp_path: Path) -> None:
    """A consumer that waits for a first answer learns that there will be none, and the log says what follows."""
    told: list[bool] = []
    async with (
        ApiServer([Permission("list", "nodes")]) as server,
        Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client,
    ):
        consequence = "pods are not known"
        collected = Collection(client, ALL_PODS, ApiPod, consequence=consequence, forbidden=lambda: told.append(True))
        with logged() as events:
            task = asyncio.create_task(View().take(collected))
            await until(lambda: told and events)
            task.cancel()
            await asyncio.wait([task])
    assert (events[0]["event"], events[0]["consequence"]) == ("api_request_failed", "pods are not known")


@pytest.mark.parametrize("status", [0, 403, 409, 429, 500, 503])
@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_failed_request_is_tried_again(server: ApiServer, tmp_path: Path, verb: str, status: int) -> None:
    """Whatever the server answers instead, in the end the consumer knows what is there."""
    a_pod(server, "one")
    server.refusals.append(Refusal(status, verb, times=3))
    with logged() as events:
        async with followed(server, tmp_path) as view:
            await until(lambda: server.watches.open)
            touch(server, "one")
            await agrees(server, view)
    names = [event["event"] for event in events]
    assert "api_request_failed" in names
    assert "api_server_recovered" in names


async def test_a_storm_of_failures_loses_no_object(server: ApiServer, tmp_path: Path) -> None:
    """Through cuts, restarts, forgotten versions, pages and late events, the consumer ends with what is there."""
    for index in range(40):
        a_pod(server, f"pod-{index}")
    async with followed(server, tmp_path, page=7) as view:
        disturbances: list[Callable[[], object]] = [
            server.store.forget,
            lambda: setattr(server.watches, "delay", 0.02),
            lambda: setattr(server.watches, "delay", 0.0),
        ]
        for round_ in range(60):
            name = f"pod-{round_ * 7 % 40}"
            if server.store.find(PODS, name) and round_ % 3:
                server.store.delete(PODS, name)
            elif server.store.find(PODS, name):
                touch(server, name, str(round_))
            else:
                server.store.create(PODS, pod(name))
            if round_ % 4 == 0:
                disturbances[round_ // 4 % 3]()
            if round_ % 10 == 5:
                await server.watches.cut(last_words=b'{"type"')
            if round_ % 25 == 24:
                await server.stop()
                await server.start()
            await asyncio.sleep(0)
        server.watches.delay = 0.0
        await agrees(server, view)
