"""Binds a pod to a node and annotates the pod in one step.

The API server sets the node and copies the Binding's annotations to the pod in one write, so a pod never has the node
without the annotations (kubernetes: pkg/registry/core/pod/storage, setPodNodeAndMetadata).
"""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing, suppress
from enum import Enum
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import quote

import msgspec

from gpushare_plugin.kube.client import NODES, PODS, UNREADABLE, Client, ClusterError, decoded
from gpushare_plugin.kube.collection import pages
from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.kube.objects import ApiNode, ApiPod

T = TypeVar("T")

_OF_THE_SERVER = 0.75
"""The fraction of a Binding's time for the API server; the rest is for the way to the server and back."""


class Unbound(Enum):
    """The reason why a pod was not bound to the intended node."""

    ELSEWHERE = "it is bound to another node"
    GONE = "it does not exist any more"
    REPLACED = "another pod of its name exists"
    ENDING = "it is being deleted"
    REJECTED = "the API server rejected the Binding"
    BUSY = "the API server takes no requests now"
    UNKNOWN = "it is not known whether the API server did it"
    """Another Binding shows the outcome; until then the pod may be bound to the node, or may become bound."""


class BindingError(ClusterError):
    """A pod was not bound."""

    def __init__(self, message: str, why: Unbound, cause: ClusterError | None = None, node: str = "") -> None:
        """Keep the reason, the API server's answer in `cause`, and the actual node of the pod, empty if unknown."""
        status, retry_after, sent = (
            (None, None, True) if cause is None else (cause.status, cause.retry_after, cause.sent)
        )
        super().__init__(message, status, retry_after, sent=sent)
        self.why = why
        """The reason, for callers to decide on the next step."""
        self.node = node
        """The node that the pod is bound to instead, empty if the pod has no other node."""


async def bind(client: Client, pod: ObjectIdentity, node: str, annotations: Mapping[str, str], within: float) -> bool:
    """Bind a pod to a node with these annotations, in at most `within` seconds.

    The API server binds the pod within this time or never, even if this process has ended by then. Returns False if
    the pod was bound to the node before, perhaps with other annotations, so a caller may ask again after a lost
    answer. Raises BindingError.
    """
    identity = {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {**identity, "annotations": dict(annotations)},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    try:
        async with asyncio.timeout(within):
            try:
                await client.request("POST", f"{pod.path}/binding", _deadline(within), binding)
            except ClusterError as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise _failure(pod, node, error) from error
                await _explain_conflict(client, pod, node, error)
                return False
    except TimeoutError as error:
        message = f"{pod} could not be bound to node {node}: no answer of the API server within {within:g} s"
        raise BindingError(message, Unbound.UNKNOWN) from error
    return True


async def read_pod(client: Client, pod: ObjectIdentity) -> ApiPod | None:
    """Read and return the pod with this name, of any UID, None for a missing pod; raises ClusterError."""
    return await _read(client, pod.path, ApiPod)


async def read_node(client: Client, name: str) -> ApiNode | None:
    """Read and return the Node with this name, None for a missing Node; raises ClusterError."""
    return await _read(client, f"{NODES}/{quote(name, safe='')}", ApiNode)


async def pods_on(client: Client, node: str) -> list[str]:
    """Return the UIDs of all pods bound to a node now; raises ClusterError.

    Unreadable pods are left out, as in a Collection.
    """
    found: list[str] = []
    async with aclosing(pages(client, PODS, {"fieldSelector": f"spec.nodeName={node}"})) as listing:
        async for page in listing:
            for item in page.items or ():
                with suppress(*UNREADABLE):
                    found.append(msgspec.json.decode(item, type=ApiPod).metadata.uid)
    return found


def _deadline(within: float) -> dict[str, str]:
    """Return the query that makes the API server give up a request in time for an answer in `within` seconds.

    Without the query, the API server may carry out a request after the client has gone, up to its --request-timeout:
    60 s (kubernetes: apiserver/pkg/endpoints/filters/request_deadline.go).
    """
    return {"timeout": f"{max(1, int(within * 1000 * _OF_THE_SERVER))}ms"}


async def _read(client: Client, path: str, kind: type[T]) -> T | None:
    """Read and return an object, None for a missing object; raises ClusterError."""
    try:
        answer = await client.request("GET", path)
    except ClusterError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise
    return decoded(answer, kind, path)


def _failure(pod: ObjectIdentity, node: str, error: ClusterError) -> BindingError:
    if error.status == HTTPStatus.NOT_FOUND:
        why = Unbound.GONE
    elif error.status == HTTPStatus.TOO_MANY_REQUESTS:
        why = Unbound.BUSY
    elif error.status is None or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        # A server error may hide a write that was only slow.
        why = Unbound.UNKNOWN if error.sent else Unbound.BUSY
    else:
        why = Unbound.REJECTED
    return BindingError(f"{pod} could not be bound to node {node}: {why.value}: {error}", why, error)


async def _explain_conflict(client: Client, pod: ObjectIdentity, node: str, conflict: ClusterError) -> None:
    """Read a pod after a conflict and raise BindingError with the reason, unless the pod is bound to this node.

    All conflicts have the same status, so the pod itself tells the reason, not the words of the message.
    """
    try:
        found = await read_pod(client, pod)
    except ClusterError as error:
        message = f"{pod} could not be bound to node {node}: {conflict}; why is not known: {error}"
        raise BindingError(message, Unbound.UNKNOWN, error) from error
    where = ""
    if found is None:
        why = Unbound.GONE
    elif found.metadata.uid != pod.uid:
        why = Unbound.REPLACED
    elif found.spec.node_name == node:
        return
    elif where := found.spec.node_name:
        why = Unbound.ELSEWHERE
    elif found.metadata.deletion_timestamp:
        why = Unbound.ENDING
    else:
        why = Unbound.REJECTED
    there = f" {where}" if where else ""
    message = f"{pod} could not be bound to node {node}: {why.value}{there}: {conflict}"
    raise BindingError(message, why, conflict, where) from conflict
