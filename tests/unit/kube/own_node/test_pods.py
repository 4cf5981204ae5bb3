"""Tests of how a node follows its pods and writes into them, against an API server."""

import asyncio
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.base.published import Published
from gpushare_plugin.kube.client import Client
from gpushare_plugin.kube.collection import PAGE
from gpushare_plugin.kube.own_node.pod_writer import WRITE_AGAIN, PodWriter
from gpushare_plugin.kube.own_node.pods import OwnPods
from gpushare_plugin.ledger.annotations import ALLOCATION
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.server import Asked, Refusal
from tests.unit.kube.cluster import NODE, QUICK
from tests.unit.ledger.objects import by_the_daemon
from tests.waiting import until

PATH = "/api/v1/namespaces/default/pods"
TRUTH = {ALLOCATION: "the truth"}


def bound(server: ApiServer, name: str, created: str = "2026-01-01T00:00:00Z", node: str = NODE) -> str:
    """Create a bound pod, and return its UID."""
    metadata = {"name": name, "creationTimestamp": created}
    found: dict[str, Any] = server.store.create(PATH, {"metadata": metadata, "spec": {"nodeName": node}})
    uid: str = found["metadata"]["uid"]
    return uid


@asynccontextmanager
async def following(server: ApiServer, folder: Path) -> AsyncIterator[tuple[OwnPods, Client]]:
    """Follow the pods of the node."""
    async with Client(server.kubeconfig(folder / "kubeconfig"), QUICK) as client:
        pods = OwnPods(client, NODE)
        task = asyncio.create_task(pods.follow())
        try:
            yield pods, client
        finally:
            task.cancel()
            await asyncio.wait([task])


def names(pods: OwnPods) -> list[str]:
    """Return the names of the pods, in order."""
    return [pod.name for pod in pods.in_order]


async def test_pods_are_in_the_order_in_which_they_come_to_the_node(server: ApiServer, tmp_path: Path) -> None:
    """Those that are there by their age, then each as it is bound; those of other nodes are not seen."""
    bound(server, "a", "2026-01-01T00:00:02Z")
    bound(server, "b", "2026-01-01T00:00:01Z")
    bound(server, "elsewhere", node="another")
    async with following(server, tmp_path) as (pods, _):
        await pods.answered.wait()
        assert names(pods) == ["b", "a"]
        assert pods.live
        bound(server, "0", "2026-01-01T00:00:00Z")
        await until(lambda: names(pods) == ["b", "a", "0"])
        server.store.patch(PATH, "b", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:03Z"}})
        await until(lambda: names(pods) == ["a", "0", "b"])
        server.store.delete(PATH, "b")
        await until(lambda: names(pods) == ["a", "0"])


async def test_a_watch_that_is_down_is_known_to_be(server: ApiServer, tmp_path: Path) -> None:
    """Nobody waits for it; when the API server is back, what happened meanwhile is seen."""
    bound(server, "gone")
    async with following(server, tmp_path) as (pods, _):
        await pods.answered.wait()
        await server.stop()
        await until(lambda: not pods.live)
        server.store.delete(PATH, "gone")
        bound(server, "new")
        await server.start()
        await until(lambda: pods.live and names(pods) == ["new"])


async def test_changes_of_no_interest_wake_nobody(server: ApiServer, tmp_path: Path) -> None:
    """A kubelet reports the status of its pods all the time."""
    bound(server, "one")
    async with following(server, tmp_path) as (pods, _):
        await pods.answered.wait()
        before = pods.changed.value
        server.store.patch(PATH, "one", {"status": {"conditions": [{"type": "Ready"}]}})
        server.store.patch(PATH, "one", {"metadata": {"labels": {"of": "others"}}})
        bound(server, "two")
        await until(lambda: names(pods) == ["one", "two"])
        assert pods.changed.value == before + 1


async def test_whatever_the_daemon_writes_is_seen_again(server: ApiServer, tmp_path: Path) -> None:
    """Each annotation of the daemon is known to it from the pod, so that a lost or forged one is written again."""
    bound(server, "one")
    server.store.patch(PATH, "one", {"metadata": {"annotations": by_the_daemon()}})
    async with following(server, tmp_path) as (pods, _):
        await pods.answered.wait()
        (seen,) = pods.in_order
        assert dict(seen.written) == by_the_daemon(), "_WRITTEN in kube/own_node/pods.py"


@asynccontextmanager
async def writing(
    client: Client, pods: OwnPods, desired: Mapping[str, Mapping[str, str]], clock: list[float]
) -> AsyncIterator[Published[Mapping[str, Mapping[str, str]]]]:
    """Keep annotations as desired; the time is the last one in `clock`."""
    published: Published[Mapping[str, Mapping[str, str]]] = Published(desired)
    task = asyncio.create_task(PodWriter(client, pods, lambda: clock[-1]).write(published))
    try:
        yield published
    finally:
        task.cancel()
        await asyncio.wait([task])


def annotation(server: ApiServer, name: str) -> str | None:
    """Return what is written into a pod."""
    (found,) = server.store.find(PATH, name)
    text: str | None = (found["metadata"].get("annotations") or {}).get(ALLOCATION)
    return text


def writes(server: ApiServer) -> int:
    """Return how many applies there were."""
    return sum(each.verb == "patch" for each in server.asked)


async def test_a_forged_annotation_is_written_again_after_a_minute(server: ApiServer, tmp_path: Path) -> None:
    """The truth is written again after a minute, not at once; another truth is, without any wait."""
    uid, clock = bound(server, "one"), [0.0]
    async with following(server, tmp_path) as (pods, client), writing(client, pods, {uid: TRUTH}, clock) as desired:
        await until(lambda: annotation(server, "one") == "the truth")
        server.store.patch(PATH, "one", {"metadata": {"annotations": {ALLOCATION: "forged"}}})
        other = bound(server, "other")
        desired.publish({uid: TRUTH, other: TRUTH})
        await until(lambda: annotation(server, "other") == "the truth")
        assert annotation(server, "one") == "forged"
        clock.append(WRITE_AGAIN)
        desired.publish({uid: TRUTH, other: TRUTH})
        await until(lambda: annotation(server, "one") == "the truth")
        desired.publish({uid: {ALLOCATION: "another truth"}})
        await until(lambda: annotation(server, "one") == "another truth")
        assert writes(server) == 4


@pytest.mark.parametrize("replaced", [True, False])
async def test_a_pod_that_is_gone_is_not_created(
    server: ApiServer, tmp_path: Path, log: list[MutableMapping[str, Any]], *, replaced: bool
) -> None:
    """Neither it nor another pod of its name is written, which is nothing to warn of; what follows is."""
    async with following(server, tmp_path) as (pods, client):
        await pods.answered.wait()
        gone = bound(server, "gone")
        other = bound(server, "other")
        await until(lambda: names(pods) == ["gone", "other"])
        server.watches.delay = 3600.0
        server.store.delete(PATH, "gone")
        if replaced:
            bound(server, "gone")
        async with writing(client, pods, {gone: TRUTH, other: TRUTH}, [0.0]):
            await until(lambda: annotation(server, "other") == "the truth")
        assert writes(server) == 2
        assert not replaced or annotation(server, "gone") is None
    assert "pod_not_annotated" not in [each["event"] for each in log]


async def test_failures_of_the_server_are_waited_out(
    server: ApiServer, tmp_path: Path, log: list[MutableMapping[str, Any]]
) -> None:
    """Also where nothing else happens that would start another attempt."""
    uid = bound(server, "one")
    server.refusals.append(Refusal(503, "patch", times=3))
    async with following(server, tmp_path) as (pods, client), writing(client, pods, {uid: TRUTH}, [0.0]):
        await until(lambda: annotation(server, "one") == "the truth")
    assert [each["event"] for each in log].count("api_request_failed") == 3


@pytest.mark.parametrize("verb", ["list", "patch"])
async def test_a_request_that_is_forbidden_for_a_moment_is_soon_tried_again(
    server: ApiServer, tmp_path: Path, log: list[MutableMapping[str, Any]], verb: str
) -> None:
    """An API server that has just started forbids everything until it knows the rights; it is said once."""
    uid = bound(server, "one")
    server.refusals.append(Refusal(403, verb, times=3))
    async with following(server, tmp_path) as (pods, client), writing(client, pods, {uid: TRUTH}, [0.0]):
        await until(lambda: annotation(server, "one") == "the truth")
    assert [each["event"] for each in log].count("pods_forbidden") == 1


@dataclass(slots=True)
class BreaksSecondPage(Refusal):
    """Answers the second page of the first list with an error, after a pod of the first page was deleted."""

    server: ApiServer | None = None
    lists: int = 0

    def takes(self, asked: Asked) -> bool:
        """Count lists."""
        self.lists += asked.verb == "list"
        if asked.verb != "list" or self.lists != 2 or self.server is None:
            return False
        self.server.store.delete(PATH, "0000")
        return True


@pytest.mark.parametrize("status", [500, 403])
async def test_a_list_that_breaks_loses_no_pod_and_keeps_none_that_is_gone(
    server: ApiServer, tmp_path: Path, status: int
) -> None:
    """What came before it broke counts when it is complete; a 403 may come in the middle, too."""
    for number in range(PAGE + 1):
        bound(server, f"{number:04}")
    server.refusals.append(BreaksSecondPage(status, server=server))
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        pods = OwnPods(client, NODE)
        task = asyncio.create_task(pods.follow())
        await until(lambda: len(names(pods)) >= PAGE)
        assert names(pods) == [f"{number:04}" for number in range(1, PAGE + 1)]
        task.cancel()
        await asyncio.wait([task])


async def test_containers_have_the_claims_that_they_name(server: ApiServer, tmp_path: Path) -> None:
    """By the name of the claim, from a template, and for extended resources; one that is not made is left out."""
    spec = {
        "nodeName": NODE,
        "resourceClaims": [
            {"name": "own", "resourceClaimName": "mine"},
            {"name": "made", "resourceClaimTemplateName": "template"},
            {"name": "unmade", "resourceClaimTemplateName": "template"},
        ],
        "initContainers": [{"name": "init", "resources": {"claims": [{"name": "made"}]}}],
        "containers": [
            {
                "name": "main",
                "resources": {"claims": [{"name": "own", "request": "a"}, {"name": "own", "request": "b"}]},
            },
            {"name": "other", "resources": {"claims": [{"name": "unmade"}, {"name": "unknown"}]}},
        ],
    }
    extended = {"containerName": "other", "resourceName": "example.com/gpu", "requestName": "container-1-request-0"}
    status = {
        "resourceClaimStatuses": [{"name": "made", "resourceClaimName": "pod-made-x"}, {"name": "unmade"}],
        "extendedResourceClaimStatus": {"resourceClaimName": "pod-extended", "requestMappings": [extended]},
    }
    server.store.create(PATH, {"metadata": {"name": "pod"}, "spec": spec, "status": status})
    async with following(server, tmp_path) as (pods, _):
        await pods.answered.wait()
        (pod,) = pods.in_order
        assert pod.claims == (
            ("init", "pod-made-x", ""),
            ("main", "mine", "a"),
            ("main", "mine", "b"),
            ("other", "pod-extended", "container-1-request-0"),
        )
