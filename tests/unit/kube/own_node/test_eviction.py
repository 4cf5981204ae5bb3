"""Tests of `gpushare_plugin.kube.own_node.eviction`: pods go, unless somebody may not have it."""

from typing import Any

import pytest

from gpushare_plugin.base.errors import EvictionError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.kube.client import Client
from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.kube.own_node.eviction import ASK_AGAIN, FORBIDDEN_AGAIN, evict
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.rbac import Permission
from gpushare_plugin.testing.cluster.server import Refusal
from tests.unit.kube.pods import PODS, a_pod

BUDGETS = "/apis/policy/v1/namespaces/team/poddisruptionbudgets"


def labelled_pod(server: ApiServer) -> ObjectIdentity:
    """Create a pod of an application, bound to a node."""
    pod = a_pod(server, node="gpu-1")
    server.store.patch(PODS, pod.name, {"metadata": {"labels": {"app": "web"}}})
    return pod


def budget(server: ApiServer, allowed: int) -> None:
    """Let so many pods of the application be disrupted."""
    spec = {"selector": {"matchLabels": {"app": "web"}}}
    server.store.create(BUDGETS, {"metadata": {"name": "web"}, "spec": spec, "status": {"disruptionsAllowed": allowed}})


def is_ending(server: ApiServer) -> bool:
    """Return whether the pod is being deleted."""
    found: list[Any] = server.store.find(PODS, "one")
    return not found or bool(found[0]["metadata"].get("deletionTimestamp"))


async def refused(client: Client, pod: ObjectIdentity) -> EvictionError:
    """Evict a pod that cannot be evicted, and return why."""
    with pytest.raises(EvictionError) as raised:
        await evict(client, pod)
    return raised.value


async def test_an_evicted_pod_has_its_own_grace_period(server: ApiServer, client: Client) -> None:
    """The API server deletes the pod with its own grace period, as a drain does."""
    pod = labelled_pod(server)
    assert await evict(client, pod)
    assert is_ending(server)
    assert [(each.verb, each.resource, each.status) for each in server.asked] == [("create", "pods/eviction", 201)]


async def test_a_disruption_budget_is_kept(server: ApiServer, client: Client) -> None:
    """Where a PodDisruptionBudget allows no disruption, the pod stays, and goes once it allows one."""
    pod = labelled_pod(server)
    budget(server, 0)
    error = await refused(client, pod)
    assert "PodDisruptionBudget" in str(error)
    assert error.retry_after == ASK_AGAIN
    assert not is_ending(server)
    server.store.patch(BUDGETS, "web", {"status": {"disruptionsAllowed": 1}})
    assert await evict(client, pod)
    assert is_ending(server)


async def test_a_missing_right_to_evict_is_named(server: ApiServer, client: Client) -> None:
    """A reader of the reason knows which right to grant."""
    pod = labelled_pod(server)
    server.permissions = frozenset({Permission("list", "pods")})
    error = await refused(client, pod)
    assert "create of pods/eviction" in str(error)
    assert error.retry_after == FORBIDDEN_AGAIN
    server.permissions = frozenset({Permission("create", "pods/eviction")})
    assert await evict(client, pod)


async def test_a_pod_that_is_gone_needs_no_eviction(server: ApiServer, client: Client) -> None:
    """A pod that ended by itself has been evicted as far as anybody waits for that."""
    pod = labelled_pod(server)
    server.store.delete(PODS, pod.name)
    assert not await evict(client, pod)


async def test_another_pod_of_the_name_stays(server: ApiServer, client: Client) -> None:
    """A pod that replaced the one that used too much has done nothing."""
    pod = replace(labelled_pod(server), uid="that of the one before")
    assert not await evict(client, pod)
    assert not is_ending(server)


@pytest.mark.parametrize(("given", "expected"), [("120", 120.0), ("1", ASK_AGAIN), ("99999", 300.0)])
async def test_the_server_says_when_to_try_again(
    server: ApiServer, client: Client, given: str, expected: float
) -> None:
    """A server that is overloaded is not asked sooner than it wants, and a mistake of it does not last for ever."""
    pod = labelled_pod(server)
    server.refusals.append(Refusal(429, headers={"Retry-After": given}))
    assert (await refused(client, pod)).retry_after == expected


@pytest.mark.parametrize("status", [500, 0, 403])
async def test_a_failed_eviction_is_tried_again(server: ApiServer, client: Client, status: int) -> None:
    """A server that fails, does not answer, or has a webhook that rejects it, is asked again; no right is missing."""
    pod = labelled_pod(server)
    server.refusals.append(Refusal(status))
    error = await refused(client, pod)
    assert error.retry_after == ASK_AGAIN
    assert "grant" not in str(error)
