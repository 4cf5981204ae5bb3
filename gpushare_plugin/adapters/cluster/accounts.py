"""Nodes of the API as the account of the cluster knows them."""

from collections.abc import Mapping
from functools import lru_cache

from gpushare_plugin.adapters.cluster import names
from gpushare_plugin.adapters.cluster.objects import ApiNode
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
from gpushare_plugin.model.account.scheduling.quantity import QuantityError, units

_LONGEST_RESOURCE = 317
"""Characters of names, as many as an API server takes; whoever reaches the extender's port can send any number."""


def account_node(node: ApiNode, cordoned: str = "") -> AccountNode:
    """Return what a node offers, by its record or, where it has none, its plain capacity as with Aliyun's plugin.

    `cordoned` is what Aliyun's ConfigMap lists; the daemon of a node with a record reads that itself. A record that
    cannot be read offers nothing: its plain capacity would not say which GPUs are healthy.
    """
    try:
        return node_with(node, node_record(node), cordoned)
    except RecordError as error:
        return unreadable_node(node.metadata.name, str(error))


def node_record(node: ApiNode) -> NodeRecord | None:
    """Return the record of a node, None where it has none; raises RecordError where it cannot be read."""
    record = node.metadata.annotations.get(GPUS_ANNOTATION)
    return None if record is None else decode(record)


def node_with(node: ApiNode, record: NodeRecord | None, cordoned: str = "") -> AccountNode:
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
