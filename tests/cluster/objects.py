"""Pods of the API, made and read as the kubelet and kube-scheduler do."""

from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.kube.collection import Collection, Gone, Listed, Put
from gpushare_plugin.ledger.request import ContainerKind, effective
from gpushare_plugin.testing.kubelet import Container, Pod

Object = Mapping[str, Any]

ALL_PODS = "/api/v1/pods"
NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"

ENDED = frozenset({"Succeeded", "Failed"})


def pod_object(pod: Pod, *, labels: Mapping[str, str] | None = None, owner: str | None = None) -> dict[str, Any]:
    """Return a pod as its owner creates it."""
    owners = [{"kind": "ReplicaSet", "name": owner, "uid": f"uid-of-{owner}", "controller": True}] if owner else []
    return {
        "metadata": {"name": pod.name, "uid": pod.uid, "labels": dict(labels or {}), "ownerReferences": owners},
        "spec": {
            "containers": [_container(each) for each in pod.containers],
            "initContainers": [_container(each) for each in pod.init_containers],
        },
        "status": {"phase": "Pending"},
    }


def kubelet_pod(found: Object) -> Pod:
    """Return a pod as the kubelet takes it from the API."""
    metadata, spec = found["metadata"], found["spec"]
    containers = [_read(each) for each in spec["containers"]]
    init = [_read(each) for each in spec.get("initContainers") or ()]
    return Pod(metadata["name"], containers, init, namespace=metadata["namespace"], uid=metadata["uid"])


def amounts(found: Object) -> Counter[str]:
    """Return what a pod takes of each resource, by Kubernetes' rule."""
    pod = kubelet_pod(found)
    containers: list[tuple[ContainerKind, Mapping[str, int]]] = [
        *(("sidecar" if each.restartable else "init", each.limits) for each in pod.init_containers),
        *(("app", each.limits) for each in pod.containers),
    ]
    resources = {name for _, limits in containers for name in limits}
    return Counter({name: effective((kind, limits.get(name, 0)) for kind, limits in containers) for name in resources})


def has_ended(found: Object) -> bool:
    """Return whether a pod has ended."""
    return found["status"].get("phase") in ENDED


async def objects(client: Client, path: str, selector: str = "") -> AsyncGenerator[Put[Any] | Gone | Listed, None]:
    """Yield the objects of a collection as they change, whole."""
    kind: type[dict[str, Any]] = dict
    following = Collection(client, path, kind, consequence="test", selector=selector)
    async with aclosing(following.changes()) as changes:
        async for change in changes:
            yield change


async def patch(client: Client, path: str, merge: Object) -> None:
    """Change an object by a merge patch; one that is gone stays so."""
    try:
        await client.request("PATCH", path, body=merge, content_type="application/merge-patch+json")
    except ClusterError as error:
        if error.status != 404:
            raise


async def delete(client: Client, pod: Object, *, at_once: bool = False) -> None:
    """Delete a pod: one that is bound ends first, unless it is to go `at_once`; one that is gone stays so."""
    body = {"preconditions": {"uid": pod["metadata"]["uid"]}, **({"gracePeriodSeconds": 0} if at_once else {})}
    try:
        await client.request("DELETE", f"{PODS}/{pod['metadata']['name']}", body=body)
    except ClusterError as error:
        if error.status != 404:
            raise


def stored(pod: Object) -> dict[str, Any]:
    """Return a pod as the API server completes it: amounts are texts, and limits are requests, too."""

    def completed(container: Object) -> dict[str, Any]:
        limits = {name: str(amount) for name, amount in container["resources"]["limits"].items()}
        return {**container, "resources": {"limits": limits, "requests": limits}}

    spec = {**pod["spec"], "containers": [completed(each) for each in pod["spec"]["containers"]]}
    return {**pod, "spec": spec, "status": {"phase": "Pending"}}


def _container(container: Container) -> dict[str, Any]:
    limits = {resource: str(units) for resource, units in container.limits.items()}
    sidecar = {"restartPolicy": "Always"} if container.restartable else {}
    return {"name": container.name, "resources": {"limits": limits, "requests": limits}, **sidecar}


def _read(container: Object) -> Container:
    limits = {name: int(units) for name, units in container["resources"]["limits"].items()}
    return Container(container["name"], limits, restartable=container.get("restartPolicy") == "Always")
