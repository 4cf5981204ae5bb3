"""Pods of the API: the only conversion to the pods that programs work with."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from gpushare_plugin.base.structs import kept_while_used
from gpushare_plugin.kube.judged import requirements_of
from gpushare_plugin.kube.objects import ApiPod, Metadata, OwnerReference, PodStatus
from gpushare_plugin.ledger.annotations import claims, held_resources, pod_request
from gpushare_plugin.ledger.constraints import NOT_READ, Requirements
from gpushare_plugin.ledger.node import is_extended
from gpushare_plugin.ledger.pod import (
    MOST_LABELS,
    NO_LABELS,
    OVER,
    UNKNOWN,
    Labels,
    Pod,
    has_ended,
    shared_labels,
)
from gpushare_plugin.ledger.quantity import QuantityError, units
from gpushare_plugin.ledger.request import (
    MOST_CONTAINERS,
    MOST_READ,
    ContainerKind,
    ContainerRequest,
    PodRequest,
    kept_resources,
    too_large,
)

_LONGEST_UID = 64
"""Longest accepted UID of an owner, in characters: Kubernetes' UIDs have 36, and anybody may write a longer UID."""
_LONGEST_CONTAINER = 63
"""Longest container name, in characters, as in an API server; a client of the extender can send longer names."""
_LONGEST_TIME = 64
"""Number of characters read of a time; every valid time is shorter."""

_MOST_GATES = 8
"""Largest number of scheduling gates kept of a pod: a single gate is enough to hold the pod back."""


def pod_of(found: ApiPod, *, evictable: bool = False) -> Pod:
    """Return a pod without its requirements; no content of a pod is an error.

    Only an `evictable` pod has its start and its labels, because labels change while everything else of a pod stays.
    """
    return _pod(found, request_of(found), NOT_READ, evictable=evictable)


def judged_pod(found: ApiPod) -> Pod:
    """Return a pod with its requirements, for programs that judge nodes.

    A request with an unreadable quantity fits on no node.
    """
    request = request_of(found)
    return _pod(found, request, requirements_of(found, request.amounts.keys()), evictable=False)


def _pod(found: ApiPod, request: PodRequest, requirements: Requirements, *, evictable: bool) -> Pod:
    metadata, spec, status = found.metadata, found.spec, found.status
    node = spec.node_name or None
    claimed = claims(metadata.annotations, request, node)
    return Pod(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        request=request,
        node=node,
        owner=_controller(metadata.owner_references),
        priority=spec.priority or 0,
        created=_time((metadata.creation_timestamp or "")[:_LONGEST_TIME]),
        started=_started((status.start_time or "")[:_LONGEST_TIME]) if evictable else math.inf,
        labels=_labels(metadata) if evictable else NO_LABELS,
        over=status.phase in OVER,
        ended=has_ended(status.phase, lambda: _runs(status)),
        ending=metadata.deletion_timestamp is not None,
        nominated=status.nominated_node_name or None,
        gates=tuple([gate.name for gate in spec.scheduling_gates[:_MOST_GATES]]),
        allocation=claimed.allocation,
        promise=claimed.promise,
        indexes=claimed.indexes,
        requirements=requirements,
    )


@lru_cache(maxsize=1024)
def _time(text: str) -> datetime:
    """Return the time of a text, the same object for replicas created at the same time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return UNKNOWN
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _labels(metadata: Metadata) -> Labels:
    return shared_labels(tuple(sorted(metadata.labels.items())[:MOST_LABELS]))


@lru_cache(maxsize=1024)
def _started(text: str) -> float:
    """Return the time of a text in seconds since 1970, infinite for an unreadable or empty text."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return math.inf


# Plain loops here and below: a large cluster has tens of thousands of pods.
def _controller(owners: Iterable[OwnerReference]) -> str | None:
    """Return the UID of the controller among the owners of a pod, None for no controller or an overlong UID."""
    for owner in owners:
        if owner.controller:
            return owner.uid if len(owner.uid) <= _LONGEST_UID else None
    return None


def _runs(status: PodStatus) -> bool:
    """Return whether a status shows a running container."""
    for statuses in (status.container_statuses, status.init_container_statuses):
        for each in statuses:
            if each.state.running is not None:
                return True
    return False


def asks(pod: ApiPod) -> bool:
    """Return whether a pod requests any extended resource, even in an unreadable quantity."""
    for containers in (pod.spec.containers, pod.spec.init_containers):
        for container in containers:
            resources = container.resources
            for name in resources.limits:
                if is_extended(name):
                    return True
            for name in resources.requests:
                if is_extended(name):
                    return True
    return False


def request_of(pod: ApiPod) -> PodRequest:
    """Return the request of a pod; an unreadable quantity is noted as the problem of the request."""
    metadata, problem = pod.metadata, None
    asked = list(_asked(pod))
    if len(asked) > MOST_CONTAINERS or sum([len(each.quantities) for each in asked]) > MOST_READ:
        asked, problem = _within_bounds(asked, metadata.annotations)
    try:
        containers = tuple([_container_request(name, kind, tuple(found.items())) for name, kind, found in asked])
    except QuantityError as error:
        return replace(pod_request((), metadata.annotations, metadata.labels), problem=str(error))
    return pod_request(containers, metadata.annotations, metadata.labels, problem)


class _Asked(NamedTuple):
    """The request of a container, with quantities as text."""

    name: str
    """The name of the container, shortened to the longest valid name."""
    kind: ContainerKind
    """Whether the container is an app container, an init container or a sidecar."""
    quantities: Mapping[str, str]
    """The Kubernetes quantities, by resource."""


def _asked(pod: ApiPod) -> Iterator[_Asked]:
    """Yield the requests of containers in the order in which the kubelet starts the containers.

    A container gives a limit or a request of an extended resource, or both with the same quantity.
    """
    for each in pod.spec.init_containers:
        kind: ContainerKind = "sidecar" if each.restart_policy == "Always" else "init"
        yield _Asked(each.name[:_LONGEST_CONTAINER], kind, each.resources.requests | each.resources.limits)
    for each in pod.spec.containers:
        yield _Asked(each.name[:_LONGEST_CONTAINER], "app", each.resources.requests | each.resources.limits)


def _within_bounds(asked: Sequence[_Asked], annotations: Mapping[str, str]) -> tuple[list[_Asked], str | None]:
    """Return the requests for the kept resources of a far too large pod, and the exceeded bounds in words.

    Removing the other resources before any quantity is read bounds the work; the words are None within the bounds.
    """
    names = {name for each in asked for name in each.quantities if is_extended(name)}
    amounts = sum([len(names.intersection(each.quantities)) for each in asked])
    kept = kept_resources(names, held_resources(annotations))
    found = [
        _Asked(name, kind, {resource: quantities[resource] for resource in kept.intersection(quantities)})
        for name, kind, quantities in asked
        if not kept.isdisjoint(quantities)
    ]
    return found, too_large(len(asked), len(names), amounts)


@kept_while_used
def _container_request(name: str, kind: ContainerKind, asked: tuple[tuple[str, str], ...]) -> ContainerRequest:
    """Return the request of a container, one object for all replicas of a pod; raises QuantityError."""
    amounts = [(resource, amount) for resource, text in asked if is_extended(resource) and (amount := units(text))]
    return ContainerRequest(name, kind, tuple(sorted(amounts)))
