"""Evicts pods of this node through the API server, which respects PodDisruptionBudgets.

Facts: the subresource `pods/eviction` of policy/v1 (kubernetes: pkg/registry/core/pod/storage/eviction.go): 429 if a
budget forbids the eviction, 404 if the pod does not exist, 409 if another pod has the name.
"""

from http import HTTPStatus

from gpushare_plugin.base.errors import EvictionError
from gpushare_plugin.kube.client import LONGEST_WAIT, Client, ClusterError
from gpushare_plugin.kube.identity import ObjectIdentity

ASK_AGAIN = 60.0
"""Seconds until the next attempt, unless the API server requests a longer wait."""
FORBIDDEN_AGAIN = 300.0
"""Seconds until the next attempt if RBAC forbids evictions: rights can be granted while this process runs."""

_GONE = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT})


async def evict(client: Client, pod: ObjectIdentity) -> bool:
    """Evict a pod; return False if the pod is already gone. Raises EvictionError."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
    try:
        await client.request("POST", f"{pod.path}/eviction", body=body)
    except ClusterError as error:
        if error.status in _GONE:
            return False
        raise _refused(error) from error
    return True


def _refused(error: ClusterError) -> EvictionError:
    wait = min(max(error.retry_after or 0.0, ASK_AGAIN), LONGEST_WAIT)
    if error.status == HTTPStatus.TOO_MANY_REQUESTS:
        return EvictionError(
            f"the API server refuses it for now, as where a PodDisruptionBudget forbids it: {error}", wait
        )
    if error.lacks_right:
        reason = f"{error}; grant create of pods/eviction (in the chart: usage.evict)"
        return EvictionError(reason, FORBIDDEN_AGAIN)
    return EvictionError(str(error), wait)
