"""Pods and nodes of the API as the account of the cluster knows them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from gpushare_plugin.adapters.cluster import names
from gpushare_plugin.adapters.cluster.objects import Node, Owner, Pod, PodStatus
from gpushare_plugin.foundation.structs import kept_while_used
from gpushare_plugin.model.account.annotations import claims, held_resources, pod_request
from gpushare_plugin.model.account.node import (
    GPU_COUNT,
    GPU_MEMORY,
    PLACEMENT_LABEL,
    AccountNode,
    plain_node,
    recorded_node,
    unreadable_node,
)
from gpushare_plugin.model.account.node_record import GPUS_ANNOTATION, NodeRecord, RecordError, decode
from gpushare_plugin.model.account.pod import AccountPod, has_ended
from gpushare_plugin.model.account.request import (
    MOST_CONTAINERS,
    MOST_READ,
    ContainerKind,
    ContainerRequest,
    PodRequest,
    kept_resources,
    too_large,
)
from gpushare_plugin.model.account.scheduling.quantity import QuantityError, units

_LONGEST_UID = 64
"""Characters of the UID of an owner that is believed: Kubernetes' have 36, and anybody may name an owner."""
_LONGEST_RESOURCE = 317
_LONGEST_CONTAINER = 63
"""Characters of names, as many as an API server takes; whoever reaches the extender's port can send any number."""


def account_pod(pod: Pod) -> AccountPod:
    """Return what the account needs to know of a pod; nothing that a pod can hold is an error."""
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    request = request_of(pod)
    node = spec.node_name or None
    claimed = claims(metadata.annotations, request, node)
    return AccountPod(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        request=request,
        node=node,
        owner=_controller(metadata.owner_references),
        priority=spec.priority or 0,
        ended=has_ended(status.phase, lambda: _runs(status)),
        ending=metadata.deletion_timestamp is not None,
        nominated=status.nominated_node_name or None,
        allocation=claimed.allocation,
        promise=claimed.promise,
        indexes=claimed.indexes,
    )


def created(pod: Pod) -> datetime:
    """Return when a pod was created; a time that cannot be read counts as now, which makes the pod the youngest."""
    try:
        found = datetime.fromisoformat(pod.metadata.creation_timestamp or "")
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    except ValueError:
        return datetime.now(UTC)


# Plain loops here and below: a large cluster has tens of thousands of pods.
def _controller(owners: Iterable[Owner]) -> str | None:
    """Return the UID of the controller among the owners of a pod, None where it has none that makes sense."""
    for owner in owners:
        if owner.controller:
            return owner.uid if len(owner.uid) <= _LONGEST_UID else None
    return None


def _runs(status: PodStatus) -> bool:
    """Return whether a status shows a container that runs."""
    for statuses in (status.container_statuses, status.init_container_statuses):
        for each in statuses:
            if each.state.running is not None:
                return True
    return False


def asks(pod: Pod) -> bool:
    """Return whether a pod asks for any extended resource, be it in a quantity that makes no sense."""
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


def request_of(pod: Pod) -> PodRequest:
    """Return what a pod asks for; a quantity that no API server takes is a problem of the request."""
    metadata, problem = pod.metadata, None
    asked = list(_asked(pod))
    if len(asked) > MOST_CONTAINERS or sum([len(each.quantities) for each in asked]) > MOST_READ:
        asked, problem = _within_bounds(asked, metadata.annotations)
    try:
        containers = tuple([_container_request(name, kind, tuple(found.items())) for name, kind, found in asked])
    except QuantityError as error:
        return replace(pod_request((), metadata.annotations, metadata.labels), problem=str(error))
    return pod_request(containers, metadata.annotations, metadata.labels, problem)


def account_node(node: Node, cordoned: str = "") -> AccountNode:
    """Return what a node offers, by its record or, where it has none, its plain capacity as with Aliyun's plugin.

    `cordoned` is what Aliyun's ConfigMap lists; the daemon of a node with a record reads that itself. A record that
    cannot be read offers nothing: its plain capacity would not say which GPUs are healthy.
    """
    try:
        return node_with(node, node_record(node), cordoned)
    except RecordError as error:
        return unreadable_node(node.metadata.name, str(error))


def node_record(node: Node) -> NodeRecord | None:
    """Return the record of a node, None where it has none; raises RecordError where it cannot be read."""
    record = node.metadata.annotations.get(GPUS_ANNOTATION)
    return None if record is None else decode(record)


def node_with(node: Node, record: NodeRecord | None, cordoned: str = "") -> AccountNode:
    """Return what a node offers, given its record, or None where it has none; `cordoned` as for `account_node`."""
    name, policy = node.metadata.name, node.metadata.labels.get(PLACEMENT_LABEL)
    if record is None:
        capacity = _amounts(node.status.capacity)
        reasons = _cordons(name, node.metadata.annotations.get(names.UNHEALTHY_GPUS, ""), cordoned)
        return plain_node(name, capacity.get(GPU_MEMORY, 0), capacity.get(GPU_COUNT, 0), policy, reasons)
    return recorded_node(name, record, policy, _amounts(node.status.allocatable))


def _cordons(node: str, annotation: str, configmap: str) -> dict[str, str]:
    """Return who cordons which GPUs of a node of Aliyun's plugin, by index: a UUID belongs to no GPU there."""
    there = f"ConfigMap {names.CORDON_NAMESPACE}/{names.cordon_configmap(node)}"
    lists = ((f"annotation {names.UNHEALTHY_GPUS}", annotation), (there, configmap))
    return {gpu: f"cordoned by {who}" for who, text in lists for gpu in names.cordoned_gpus(text)}


class _Asked(NamedTuple):
    """What a container asks for, as it is written."""

    name: str
    kind: ContainerKind
    quantities: Mapping[str, str]


def _asked(pod: Pod) -> Iterator[_Asked]:
    """Yield what containers ask for, in the order in which the kubelet starts them.

    Limits and requests of an extended resource are equal where both are given; either may be left out.
    """
    for each in pod.spec.init_containers:
        kind: ContainerKind = "sidecar" if each.restart_policy == "Always" else "init"
        yield _Asked(each.name[:_LONGEST_CONTAINER], kind, each.resources.requests | each.resources.limits)
    for each in pod.spec.containers:
        yield _Asked(each.name[:_LONGEST_CONTAINER], "app", each.resources.requests | each.resources.limits)


def _within_bounds(asked: Sequence[_Asked], annotations: Mapping[str, str]) -> tuple[list[_Asked], str | None]:
    """Return what is kept of far too many containers or amounts, before any is read, and what is too much."""
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
    """Return what a container asks for, made once for all replicas of a pod; raises QuantityError."""
    amounts = [(resource, amount) for resource, text in asked if is_extended(resource) and (amount := units(text))]
    return ContainerRequest(name, kind, tuple(sorted(amounts)))


def _amounts(quantities: Mapping[str, str]) -> dict[str, int]:
    """Return the units of each extended resource of a node; one that is no whole number is left out."""
    amounts = {}
    for name, quantity in quantities.items():
        if is_extended(name):
            try:
                amounts[name] = units(quantity)
            except QuantityError:
                continue
    return amounts


def is_extended(resource: str) -> bool:
    """Return whether a resource is an extended one: of a domain that is not Kubernetes' own."""
    return len(resource) <= _LONGEST_RESOURCE and _is_extended(resource)


@lru_cache(maxsize=1024)
def _is_extended(resource: str) -> bool:
    domain, slash, _ = resource.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")
