"""Binds a pod to a node, and annotates it, in one step.

The API server sets the node and copies the Binding's annotations to the pod in one write, so a pod never has the one
without the other (kubernetes: pkg/registry/core/pod/storage, setPodNodeAndMetadata).
"""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing, suppress
from enum import Enum
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import quote

import msgspec

from gpushare_plugin.adapters.cluster.client import NODES, PODS, UNREADABLE, Client, ClusterError, decoded
from gpushare_plugin.adapters.cluster.collection import pages
from gpushare_plugin.adapters.cluster.identity import ObjectIdentity
from gpushare_plugin.adapters.cluster.objects import ApiNode, ApiPod

T = TypeVar("T")

_OF_THE_SERVER = 0.75
"""The part of a Binding's time that the API server has; the rest is for the way there and back."""


class Unbound(Enum):
    """Why a pod was not bound to the node it was to be bound to."""

    ELSEWHERE = "it is bound to another node"
    GONE = "it does not exist any more"
    REPLACED = "another pod of its name exists"
    ENDING = "it is being deleted"
    REJECTED = "the API server rejected the Binding"
    BUSY = "the API server takes no requests now"
    UNKNOWN = "it is not known whether the API server did it"
    """Binding it again tells; until then it may be bound to the node, or become so."""


class BindingError(ClusterError):
    """A pod was not bound; `why` says what follows from it, and `node` where the pod is bound instead."""

    def __init__(self, message: str, why: Unbound, cause: ClusterError | None = None, node: str = "") -> None:
        """Keep why, and what the API server answered."""
        status, retry_after, sent = (
            (None, None, True) if cause is None else (cause.status, cause.retry_after, cause.sent)
        )
        super().__init__(message, status, retry_after, sent=sent)
        self.why = why
        self.node = node


async def bind(client: Client, pod: ObjectIdentity, node: str, annotations: Mapping[str, str], within: float) -> bool:
    """Bind a pod to a node with these annotations, within so many seconds.

    The API server does it before they have passed, or never, also where we are gone by then. Returns False where the
    pod was bound to this node before, perhaps with other annotations; so it can be asked for again when the first
    answer was lost. Raises BindingError.
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
    """Return the pod of this name as it is now, whatever its UID; raises ClusterError."""
    return await _read(client, pod.path, ApiPod)


async def read_node(client: Client, name: str) -> ApiNode | None:
    """Return the Node of this name as it is now; raises ClusterError."""
    return await _read(client, f"{NODES}/{quote(name, safe='')}", ApiNode)


async def pods_on(client: Client, node: str) -> list[str]:
    """Return the UIDs of the pods that are bound to a node at this moment; raises ClusterError.

    Pods that cannot be read are left out, as a Collection leaves them out.
    """
    found: list[str] = []
    async with aclosing(pages(client, PODS, {"fieldSelector": f"spec.nodeName={node}"})) as listing:
        async for page in listing:
            for item in page.items or ():
                with suppress(*UNREADABLE):
                    found.append(msgspec.json.decode(item, type=ApiPod).metadata.uid)
    return found


def _deadline(within: float) -> dict[str, str]:
    """Return the query with which the API server gives up a request in time for its answer to come within seconds.

    Otherwise it may carry the request out after its client has gone, for as long as --request-timeout says: 60 s
    (kubernetes: apiserver/pkg/endpoints/filters/request_deadline.go).
    """
    return {"timeout": f"{max(1, int(within * 1000 * _OF_THE_SERVER))}ms"}


async def _read(client: Client, path: str, kind: type[T]) -> T | None:
    """Return an object, None where there is none; raises ClusterError."""
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
        # Also behind a server's error there can be a write that took its time.
        why = Unbound.UNKNOWN if error.sent else Unbound.BUSY
    else:
        why = Unbound.REJECTED
    return BindingError(f"{pod} could not be bound to node {node}: {why.value}: {error}", why, error)


async def _explain_conflict(client: Client, pod: ObjectIdentity, node: str, conflict: ClusterError) -> None:
    """Return where the pod is bound to this node; else raise what stands against it.

    All conflicts have one status, so the pod itself is asked, not the words of the message.
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
