"""Pods for tests, as an API server has them."""

from typing import Any

from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.testing.cluster import ApiServer

PODS = "/api/v1/namespaces/team/pods"
ALL_PODS = "/api/v1/pods"


def pod(name: str, node: str = "", units: str = "5") -> dict[str, Any]:
    """Return a pod with one container that asks for shared memory."""
    container = {"name": "main", "image": "i", "resources": {"limits": {"aliyun.com/gpu-mem": units}}}
    spec = {"containers": [container], **({"nodeName": node} if node else {})}
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Pending"}}


def a_pod(server: ApiServer, name: str = "one", node: str = "") -> ObjectIdentity:
    """Create a pod, perhaps bound to a node."""
    created = server.store.create(PODS, pod(name, node))
    return ObjectIdentity("team", name, created["metadata"]["uid"])
