"""Evicts pods of this node through the API server, which keeps to PodDisruptionBudgets.

Facts: the subresource `pods/eviction` of policy/v1 (kubernetes: pkg/registry/core/pod/storage/eviction.go): 429 where a
budget forbids it, 404 where there is no such pod, 409 where another pod has its name.
"""

from http import HTTPStatus

from gpushare_plugin.adapters.cluster.client import LONGEST_WAIT, Client, ClusterError
from gpushare_plugin.adapters.cluster.identity import ObjectIdentity
from gpushare_plugin.foundation.errors import EvictionError

ASK_AGAIN = 60.0
"""Seconds until the next attempt, where the API server does not say when."""
FORBIDDEN_AGAIN = 300.0
"""Seconds until the next attempt where RBAC forbids it: rights can be granted while we run."""

_GONE = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT})


async def evict(client: Client, pod: ObjectIdentity) -> bool:
    """Evict a pod; return False where it is gone already. Raises EvictionError."""
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
