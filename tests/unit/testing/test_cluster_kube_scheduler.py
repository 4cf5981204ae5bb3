"""Tests of what `gpushare_plugin.testing.cluster` answers a client that is not ours, such as kube-scheduler."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gpushare_plugin.testing.cluster import ApiServer

PODS, ALL_PODS = "/api/v1/namespaces/team/pods", "/api/v1/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/team/leases"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server that answers everyone."""
    async with ApiServer() as running:
        running.anonymous = True
        yield running


@pytest.fixture
async def http(server: ApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    """Run a client without a token."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
        yield session


async def got(http: aiohttp.ClientSession, path: str, **query: str) -> tuple[int, Any]:
    """Return status and object of an answer."""
    async with http.get(path, params=query) as response:
        return response.status, await response.json()


async def watched(http: aiohttp.ClientSession, path: str, count: int, **query: str) -> list[tuple[str, Any]]:
    """Return the first events of a watch."""
    async with http.get(path, params={"watch": "true", **query}) as response:
        assert response.status == 200
        events = [json.loads(await response.content.readline()) for _ in range(count)]
    return [(each["type"], each["object"]) for each in events]


def names(items: list[Any]) -> list[str]:
    """Return the names of objects."""
    return [each["metadata"]["name"] for each in items]


SELECTED = [
    ("app=web", ["a", "b"]),
    ("app==web,tier=front", ["a"]),
    ("app!=web", ["c", "d"]),
    ("tier in (front, back)", ["a", "c"]),
    ("tier notin (front)", ["b", "c", "d"]),
    ("tier,app", ["a"]),
    ("!app", ["c", "d"]),
    ("example.com/gpu=", ["d"]),
    ("", ["a", "b", "c", "d"]),
]


@pytest.mark.parametrize(("selector", "expected"), SELECTED)
async def test_objects_are_selected_by_labels(
    server: ApiServer, http: aiohttp.ClientSession, selector: str, expected: list[str]
) -> None:
    """Lists and watches show those whose labels fit, where a missing label is unequal to everything."""
    labels = {"a": {"app": "web", "tier": "front"}, "b": {"app": "web"}, "c": {"tier": "back"}}
    for name in "abcd":
        metadata = {"name": name, "labels": labels.get(name, {"example.com/gpu": ""})}
        server.store.create(PODS, {"metadata": metadata})
    _, answer = await got(http, ALL_PODS, labelSelector=selector)
    assert names(answer["items"]) == expected
    events = await watched(http, ALL_PODS, len(expected), labelSelector=selector)
    assert names([found for _, found in events]) == expected
    # Beside fields, both must hold.
    _, answer = await got(http, ALL_PODS, labelSelector=selector, fieldSelector="metadata.name!=a")
    assert names(answer["items"]) == [name for name in expected if name != "a"]


@pytest.mark.parametrize("selector", ["a in b", "=", "a=b c", "a in (b", "a,,b"])
@pytest.mark.parametrize("watch", ["", "true"])
async def test_texts_that_are_no_label_selectors_are_refused(
    http: aiohttp.ClientSession, selector: str, watch: str
) -> None:
    """The answer is a bad request, of a list as of a watch."""
    status, answer = await got(http, ALL_PODS, labelSelector=selector, watch=watch)
    assert (status, answer["reason"]) == (400, "BadRequest")


async def test_an_object_that_gets_another_label_leaves_the_selection(
    server: ApiServer, http: aiohttp.ClientSession
) -> None:
    """A watch of some labels ends an object's being there with DELETED, and begins it with ADDED."""
    server.store.create(PODS, {"metadata": {"name": "a", "labels": {"app": "web"}}})
    version = str(server.store.version.value)
    for app in ("other", "web"):
        server.store.patch(PODS, "a", {"metadata": {"labels": {"app": app}}})
    events = await watched(http, ALL_PODS, 2, labelSelector="app=web", resourceVersion=version)
    assert [kind for kind, _ in events] == ["DELETED", "ADDED"]


@pytest.mark.parametrize("query", [{}, {"resourceVersion": ""}, {"resourceVersion": "0"}])
async def test_a_watch_from_nowhere_begins_with_what_there_is(
    server: ApiServer, http: aiohttp.ClientSession, query: dict[str, str]
) -> None:
    """Without a version, or with 0, the objects that are there come first as ADDED, and then what happens."""
    for name in "ba":
        server.store.create(PODS, {"metadata": {"name": name}})
    server.store.patch(PODS, "a", {"spec": {"nodeName": "gpu-1"}})
    async with http.get(ALL_PODS, params={"watch": "1", **query}) as response:
        first = [json.loads(await response.content.readline()) for _ in range(2)]
        server.store.delete(PODS, "b")
        then = json.loads(await response.content.readline())
    assert [(each["type"], each["object"]["metadata"]["name"]) for each in (*first, then)] == [
        ("ADDED", "a"),
        ("ADDED", "b"),
        ("DELETED", "b"),
    ]
    assert first[0]["object"]["spec"] == {"nodeName": "gpu-1"}


async def test_a_list_can_be_streamed(server: ApiServer, http: aiohttp.ClientSession) -> None:
    """With sendInitialEvents, a bookmark says where the objects end that were there; which takes one more parameter."""
    server.store.create(PODS, {"metadata": {"name": "a"}})
    query = {"sendInitialEvents": "true", "allowWatchBookmarks": "true"}
    (added, first), (kind, bookmark) = await watched(http, ALL_PODS, 2, resourceVersionMatch="NotOlderThan", **query)
    assert (added, first["metadata"]["name"], kind) == ("ADDED", "a", "BOOKMARK")
    assert bookmark == {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "resourceVersion": str(server.store.version.value),
            "annotations": {"k8s.io/initial-events-end": "true"},
        },
    }
    assert (await got(http, ALL_PODS, watch="true", **query))[0] == 422


@pytest.mark.parametrize(
    "path", ["", "/", "/api", "/apis", "/api/v1", "/apis/apps", "/apis/apps/v1", "/version", "/x/y", "/api/v1/none"]
)
async def test_paths_that_name_no_resource_are_not_found(http: aiohttp.ClientSession, path: str) -> None:
    """A path without a resource is 404, and so is a resource that the API does not have."""
    status, answer = await got(http, path)
    assert (status, answer["reason"], answer["message"]) == (
        404,
        "NotFound",
        "the server could not find the requested resource",
    )


async def test_objects_and_lists_have_the_kind_of_their_resource(
    server: ApiServer, http: aiohttp.ClientSession
) -> None:
    """Objects, those of events too, and lists say what they are; items of lists do not, as those of an API server."""
    for path, kind, version in ((PODS, "Pod", "v1"), (LEASES, "Lease", "coordination.k8s.io/v1")):
        server.store.create(path, {"metadata": {"name": "a"}})
        _, answer = await got(http, path)
        assert (answer["kind"], answer["apiVersion"]) == (f"{kind}List", version)
        assert [sorted(each) for each in answer["items"]] == [["metadata"]]
        _, one = await got(http, f"{path}/a")
        assert (one["kind"], one["apiVersion"]) == (kind, version)
        ((_, found),) = await watched(http, path, 1)
        assert found == one
    async with http.patch(
        f"{PODS}/a", data='{"spec":{"x":1}}', headers={"Content-Type": "application/merge-patch+json"}
    ) as response:
        patched = await response.json()
    assert (patched["kind"], patched["apiVersion"], patched["spec"]) == ("Pod", "v1", {"x": 1})
    async with http.post(PODS, json={"metadata": {"name": "b"}}) as response:
        assert (await response.json())["kind"] == "Pod"
    async with http.put(f"{PODS}/b", json={"metadata": {"name": "b"}}) as response:
        assert (await response.json())["apiVersion"] == "v1"


async def test_a_client_without_a_token_is_answered_only_if_that_is_allowed(
    server: ApiServer, http: aiohttp.ClientSession
) -> None:
    """By default a token is needed; where it is not, a wrong one is nevertheless refused."""
    wrong = {"Authorization": "Bearer another"}
    async with http.get(ALL_PODS, headers=wrong) as response:
        assert response.status == 401
    assert (await got(http, ALL_PODS))[0] == 200
    server.anonymous = False
    assert [(await got(http, path))[0] for path in (ALL_PODS, "/api")] == [401, 401]
