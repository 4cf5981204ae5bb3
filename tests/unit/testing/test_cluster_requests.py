"""Tests of the requests that `gpushare_plugin.testing.cluster` answers, over HTTP, as the API server answers them."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.testing.cluster import ApiServer

PODS, ALL_PODS = "/api/v1/namespaces/team/pods", "/api/v1/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/team/leases"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server."""
    async with ApiServer() as running:
        yield running


@pytest.fixture
async def client(server: ApiServer, tmp_path: Path) -> AsyncIterator[Client]:
    """Run a client of it."""
    async with Client(server.kubeconfig(tmp_path / "kubeconfig")) as running:
        yield running


async def asked(client: Client, method: str, path: str, body: Any = None, **query: str) -> Any:
    """Return what is answered."""
    return json.loads(await client.request(method, path, query, body))


async def refused(client: Client, method: str, path: str, body: Any = None, **query: str) -> ClusterError:
    """Return the error that is answered."""
    with pytest.raises(ClusterError) as raised:
        await client.request(method, path, query, body)
    return raised.value


def names(answer: Any) -> list[str]:
    """Return the names of the objects of a list."""
    return [each["metadata"]["name"] for each in answer["items"]]


async def test_all_pages_show_one_moment(server: ApiServer, client: Client) -> None:
    """Pages come in the order of names, with what remains, and show nothing that happened after the first."""
    for name in "cabed":
        server.store.create(PODS, {"metadata": {"name": name}})
    first = await asked(client, "GET", ALL_PODS, limit="2")
    server.store.delete(PODS, "e")
    server.store.create(PODS, {"metadata": {"name": "bb"}})
    token = first["metadata"]["continue"]
    second = await asked(client, "GET", ALL_PODS, limit="2", **{"continue": token})
    token = second["metadata"]["continue"]
    third = await asked(client, "GET", ALL_PODS, limit="2", **{"continue": token})
    assert [names(each) for each in (first, second, third)] == [["a", "b"], ["c", "d"], ["e"]]
    assert [each["metadata"].get("remainingItemCount") for each in (first, second, third)] == [3, 1, None]
    assert len({each["metadata"]["resourceVersion"] for each in (first, second, third)}) == 1
    server.store.forget()
    error = await refused(client, "GET", ALL_PODS, limit="2", **{"continue": token})
    assert (error.status, "continue parameter is too old" in str(error)) == (410, True)


async def test_objects_are_selected_by_fields(server: ApiServer, client: Client) -> None:
    """Terms hold together; a field that is none to select by is a bad request."""
    for name, node in (("a", "gpu-1"), ("b", "gpu-2"), ("c", "")):
        server.store.create(PODS, {"metadata": {"name": name}, "spec": {"nodeName": node}})
    for selector, expected in [
        ("spec.nodeName=gpu-1", ["a"]),
        ("spec.nodeName!=gpu-1", ["b", "c"]),
        ("spec.nodeName=", ["c"]),
        ("metadata.namespace==team,spec.nodeName!=", ["a", "b"]),
        ("metadata.name=b,spec.nodeName=gpu-1", []),
    ]:
        assert names(await asked(client, "GET", ALL_PODS, fieldSelector=selector)) == expected
    assert (await refused(client, "GET", ALL_PODS, fieldSelector="spec.color=red")).status == 400


async def test_objects_are_made_replaced_and_read(server: ApiServer, client: Client) -> None:
    """A name is taken once, and whoever replaces an object must have seen its newest version."""
    made = await asked(client, "POST", LEASES, {"metadata": {"name": "one"}, "spec": {"holderIdentity": "a"}})
    assert (await refused(client, "POST", LEASES, {"metadata": {"name": "one"}})).status == 409
    held = made | {"spec": {"holderIdentity": "b"}}
    assert (await asked(client, "PUT", f"{LEASES}/one", held))["spec"] == {"holderIdentity": "b"}
    assert (await refused(client, "PUT", f"{LEASES}/one", held)).status == 409
    assert (await asked(client, "GET", f"{LEASES}/one"))["metadata"]["uid"] == made["metadata"]["uid"]
    assert (await refused(client, "GET", f"{LEASES}/two")).status == 404
    assert [each.group for each in server.asked[-2:]] == ["coordination.k8s.io", "coordination.k8s.io"]


async def test_a_patch_changes_no_uid(server: ApiServer, client: Client) -> None:
    """A UID that is not the object's is invalid there, and no precondition; a version is one."""
    server.store.create(PODS, {"metadata": {"name": "one"}})
    for metadata, status in (({"uid": "another"}, 422), ({"resourceVersion": "1"}, 409)):
        with pytest.raises(ClusterError) as raised:
            await client.request(
                "PATCH", f"{PODS}/one", body={"metadata": metadata}, content_type="application/merge-patch+json"
            )
        assert raised.value.status == status


async def test_a_bound_pod_ends_before_it_is_gone(server: ApiServer, client: Client) -> None:
    """Deleting marks a pod that a kubelet has, and removes one that none has, or with no grace."""
    for name, node in (("bound", "gpu-1"), ("free", "")):
        server.store.create(PODS, {"metadata": {"name": name}, "spec": {"nodeName": node}})
        await asked(client, "DELETE", f"{PODS}/{name}")
    (left,) = server.store.find(PODS)
    assert (left["metadata"]["name"], bool(left["metadata"]["deletionTimestamp"])) == ("bound", True)
    preconditions = {"gracePeriodSeconds": 0, "preconditions": {"uid": "another"}}
    assert (await refused(client, "DELETE", f"{PODS}/bound", preconditions)).status == 409
    await asked(client, "DELETE", f"{PODS}/bound", {"gracePeriodSeconds": 0})
    assert server.store.find(PODS) == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"metadata": {"name": "another"}, "target": {"name": "gpu-1"}}, 400),
        ({"metadata": {"name": "one"}}, 500),
        ({"metadata": {"name": "one", "uid": "another"}, "target": {"name": "gpu-1"}}, 409),
    ],
)
async def test_a_binding_that_is_wrong_binds_nothing(
    server: ApiServer, client: Client, body: dict[str, Any], status: int
) -> None:
    """A Binding names its pod and a node; the UID, where it is there, is a precondition."""
    server.store.create(PODS, {"metadata": {"name": "one"}, "spec": {}})
    assert (await refused(client, "POST", f"{PODS}/one/binding", body)).status == status
    assert server.store.find(PODS, "one")[0]["spec"] == {}


async def test_a_request_that_is_not_served_is_refused(client: Client) -> None:
    """A request that an API server would answer, and this one cannot, is an error and no surprise."""
    for method, path in (("POST", f"{PODS}/one/attach"), ("PUT", f"{PODS}/one/status")):
        assert (await refused(client, method, path, {"metadata": {"name": "one"}})).status == 405


async def test_a_large_cluster_is_listed_by_what_was_serialised_before(server: ApiServer, client: Client) -> None:
    """Objects are text once, however often they are listed: equal bytes, of forty thousand pods as of one."""
    for index in range(2000):
        server.store.create(PODS, {"metadata": {"name": f"pod-{index}"}, "spec": {"nodeName": f"gpu-{index % 50}"}})
    whole = await client.request("GET", ALL_PODS)
    assert whole == await client.request("GET", ALL_PODS)
    assert len(json.loads(whole)["items"]) == 2000


async def test_a_stopped_server_keeps_its_port(server: ApiServer) -> None:
    """Nobody else can have the port while the server is stopped, clients are refused, and it starts there again."""
    port = server.port
    await server.stop()
    with socket.socket() as other, pytest.raises(OSError, match="already in use"):
        other.bind(("127.0.0.1", port))
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    await server.start()
    assert server.port == port
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await writer.wait_closed()


async def test_conditions_are_merged_by_their_type(server: ApiServer, client: Client) -> None:
    """A strategic merge patch of a status changes, adds or deletes one condition and leaves the others."""
    conditions = [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "True", "reason": "A"}]
    server.store.create("/api/v1/nodes", {"metadata": {"name": "n"}, "status": {"conditions": conditions}})

    async def patched(change: dict[str, str], **metadata: str) -> Any:
        body = {"metadata": metadata, "status": {"conditions": [change]}}
        answer = await client.request(
            "PATCH", "/api/v1/nodes/n/status", {}, body, "application/strategic-merge-patch+json"
        )
        return json.loads(answer)["status"]["conditions"]

    other = {"type": "Other", "status": "False", "reason": "A"}
    assert await patched({"type": "Other", "status": "False"}) == [conditions[0], other]
    assert await patched({"type": "New", "status": "True"}) == [{"type": "New", "status": "True"}, conditions[0], other]
    await patched({"type": "New", "$patch": "delete"})
    assert await patched({"type": "Other", "$patch": "delete"}) == [conditions[0]]
    with pytest.raises(ClusterError, match="field is immutable"):
        await patched({"type": "New", "status": "True"}, uid="another")


async def test_events_are_where_their_object_is(server: ApiServer, client: Client) -> None:
    """One about a Node is in `default`, one about a pod in its namespace; one that ends takes none."""
    events = "/api/v1/namespaces/{}/events"
    node = {"metadata": {"name": "a"}, "involvedObject": {"kind": "Node", "name": "n"}}
    pod = {"metadata": {"name": "b"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "team"}}
    await asked(client, "POST", events.format("default"), node)
    await asked(client, "POST", events.format("team"), pod)
    assert (await refused(client, "POST", events.format("team"), node)).status == 422
    server.terminating.add("team")
    error = await refused(client, "POST", events.format("team"), {**pod, "metadata": {"name": "c"}})
    assert error.status == 403
    assert "being terminated" in str(error)
