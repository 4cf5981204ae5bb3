"""Tests of `kube.scheduling.binding`: what a Binding does, and what follows where it does not."""

import asyncio
from typing import Any

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.kube.scheduling.binding import BindingError, Unbound, bind, read_pod
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.server import Refusal
from tests.unit.kube.pods import PODS, a_pod
from tests.waiting import PATIENCE

PROMISE = {"gpushare/promise": '{"version":1}'}


async def bound(client: Client, pod: ObjectIdentity, node: str = "gpu-1") -> bool:
    """Bind a pod."""
    return await bind(client, pod, node, PROMISE, within=PATIENCE)


async def refused(client: Client, pod: ObjectIdentity) -> BindingError:
    """Bind a pod that cannot be bound, and return why."""
    with pytest.raises(BindingError) as raised:
        await bound(client, pod)
    return raised.value


def found(server: ApiServer) -> Any:
    """Return the pod as the server has it."""
    return server.store.find(PODS, "one")[0]


async def test_a_pod_is_bound_and_annotated_in_one_step(server: ApiServer, client: Client) -> None:
    """One version of the pod brings the node and the annotations; those it had stay."""
    pod = a_pod(server)
    server.store.patch(PODS, "one", {"metadata": {"annotations": {"theirs": "1"}}})
    before = server.store.version.value
    assert await bound(client, pod)
    assert found(server)["spec"]["nodeName"] == "gpu-1"
    assert found(server)["metadata"]["annotations"] == {"theirs": "1", **PROMISE}
    assert server.store.version.value == before + 1


async def test_a_pod_that_is_bound_there_already_is_no_error(server: ApiServer, client: Client) -> None:
    """Binding again does nothing, and says that it did nothing."""
    pod = a_pod(server)
    assert await bound(client, pod)
    before = server.store.version.value
    assert not await bound(client, pod)
    assert server.store.version.value == before


async def test_a_pod_bound_to_another_node_stays_there(server: ApiServer, client: Client) -> None:
    """The error names the node that has the pod, and the pod keeps its annotations."""
    pod = a_pod(server, node="gpu-2")
    error = await refused(client, pod)
    assert (error.why, error.node, error.status) == (Unbound.ELSEWHERE, "gpu-2", 409)
    assert "pod team/one could not be bound to node gpu-1: it is bound to another node gpu-2" in str(error)
    assert "annotations" not in found(server)["metadata"]


async def test_a_pod_that_is_gone_is_not_bound(server: ApiServer, client: Client) -> None:
    """A pod that was deleted meanwhile is an error of its own."""
    pod = a_pod(server)
    server.store.delete(PODS, "one")
    assert (await refused(client, pod)).why is Unbound.GONE
    assert await read_pod(client, pod) is None


async def test_another_pod_of_the_name_is_not_bound(server: ApiServer, client: Client) -> None:
    """The UID is a precondition: a pod that a controller made anew is left alone."""
    pod = a_pod(server)
    server.store.delete(PODS, "one")
    a_pod(server)
    assert (await refused(client, pod)).why is Unbound.REPLACED
    assert "nodeName" not in found(server)["spec"]


async def test_a_pod_that_is_being_deleted_is_not_bound(server: ApiServer, client: Client) -> None:
    """A pod with a deletion timestamp is an error of its own."""
    pod = a_pod(server)
    server.store.patch(PODS, "one", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert (await refused(client, pod)).why is Unbound.ENDING


async def test_a_pod_with_scheduling_gates_is_not_bound(server: ApiServer, client: Client) -> None:
    """What else stands against it is in the message of the server."""
    pod = a_pod(server)
    server.store.patch(PODS, "one", {"spec": {"schedulingGates": [{"name": "wait"}]}})
    error = await refused(client, pod)
    assert error.why is Unbound.REJECTED
    assert "non-empty .spec.schedulingGates" in str(error)


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (400, Unbound.REJECTED),
        (403, Unbound.REJECTED),
        (404, Unbound.GONE),
        (422, Unbound.REJECTED),
        (429, Unbound.BUSY),
        (500, Unbound.UNKNOWN),
        (503, Unbound.UNKNOWN),
        (504, Unbound.UNKNOWN),
    ],
)
async def test_every_answer_says_whether_the_pod_may_be_bound_and_when_to_try_again(
    server: ApiServer, client: Client, status: int, why: Unbound
) -> None:
    """The error says whether the pod may have been bound, and when to try again."""
    pod = a_pod(server)
    server.refusals.append(Refusal(status, resource="pods/binding", headers={"Retry-After": "3"}))
    error = await refused(client, pod)
    assert (error.why, error.status, error.retry_after) == (why, status, 3.0)


@pytest.mark.parametrize("status", [0, 504])
async def test_a_lost_answer_is_told_by_binding_again(server: ApiServer, client: Client, status: int) -> None:
    """A Binding whose answer was lost may have been done; the next attempt finds out, and binds nothing twice."""
    pod = a_pod(server)
    server.refusals.append(Refusal(status, resource="pods/binding", times=1, carried_out=True))
    assert (await refused(client, pod)).why is Unbound.UNKNOWN
    assert found(server)["spec"]["nodeName"] == "gpu-1"
    before = server.store.version.value
    assert not await bound(client, pod)
    assert server.store.version.value == before


async def test_an_answer_that_does_not_come_in_time_is_unknown(server: ApiServer, client: Client) -> None:
    """The time that a Binding may take is the caller's, however patient the client is."""
    server.silent = True
    with pytest.raises(BindingError, match=r"no answer of the API server within 0\.05 s") as raised:
        await bind(client, ObjectIdentity("team", "one", "u"), "gpu-1", PROMISE, within=0.05)
    assert raised.value.why is Unbound.UNKNOWN


async def test_a_server_that_is_away_has_bound_nothing(server: ApiServer, client: Client) -> None:
    """Where no connection could be made, nothing can have happened."""
    pod = a_pod(server)
    await server.stop()
    error = await refused(client, pod)
    assert (error.why, error.sent) == (Unbound.BUSY, False)


@pytest.mark.parametrize("status", [0, 403, 500])
async def test_a_conflict_that_cannot_be_looked_into_is_unknown(server: ApiServer, client: Client, status: int) -> None:
    """Without the pod, a conflict does not say whether the pod is bound here."""
    pod = a_pod(server)
    assert await bound(client, pod)
    server.refusals.append(Refusal(status, verb="get"))
    assert (await refused(client, pod)).why is Unbound.UNKNOWN


async def test_two_bindings_at_a_time_bind_a_pod_once(server: ApiServer, client: Client) -> None:
    """The API server decides: the pod is on one node, and the other Binding is an error."""
    pod = a_pod(server)
    results = await asyncio.gather(bound(client, pod, "gpu-1"), bound(client, pod, "gpu-2"), return_exceptions=True)
    (error,) = [each for each in results if isinstance(each, BindingError)]
    assert error.why is Unbound.ELSEWHERE
    assert error.node == found(server)["spec"]["nodeName"]


async def test_the_name_of_a_pod_reaches_no_other_path_of_the_api(server: ApiServer, client: Client) -> None:
    """A scheduler can send any text as a name."""
    pod = replace(a_pod(server), name="../../nodes/gpu-1?x=")
    with pytest.raises(ClusterError):
        await bound(client, pod)
    assert [(each.resource, each.name) for each in server.asked] == [("pods/binding", pod.name)]
