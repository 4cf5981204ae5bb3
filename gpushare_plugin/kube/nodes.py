"""Nodes of the API: the only conversion to the nodes that programs work with."""

from collections.abc import Mapping

from gpushare_plugin.base.structs import replace
from gpushare_plugin.kube import names
from gpushare_plugin.kube.objects import ApiNode
from gpushare_plugin.ledger.demand import CPU, MEMORY, counted
from gpushare_plugin.ledger.node import (
    GPU_COUNT,
    GPU_MEMORY,
    PLACEMENT_LABEL,
    Node,
    is_extended,
    plain_node,
    recorded_node,
    unreadable_node,
)
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, NodeRecord, RecordError
from gpushare_plugin.ledger.node_record import decode as decode_record
from gpushare_plugin.ledger.quantity import QuantityError, thousandths, units
from gpushare_plugin.slices.wanted import WANTED_SLICES, Wanted, WantedError, decode


def node_of(found: ApiNode, cordoned: str = "") -> Node:
    """Return a node with its offer, from its record or, without a record, from the plain capacity of Aliyun's plugin.

    `cordoned` is the list of GPUs in Aliyun's ConfigMap; on a node with a record, the daemon itself reads the
    ConfigMap. A node with an unreadable record offers nothing, because its plain capacity does not name the healthy
    GPUs.
    """
    return _offering(found, cordoned)[0]


def judged_node(found: ApiNode) -> Node:
    """Return a node with all known facts, for programs that judge or show nodes.

    An allocatable resource with an unreadable quantity counts as 0.
    """
    node, record = _offering(found)
    metadata, spec, status = found.metadata, found.spec, found.status
    wanted, problem = _wanted(record, metadata.annotations.get(WANTED_SLICES))
    return replace(
        node,
        allocatable={name: _counted(name, quantity) for name, quantity in status.allocatable.items()},
        uid=metadata.uid,
        version=metadata.resource_version,
        labels=metadata.labels,
        taints=spec.taints,
        unschedulable=spec.unschedulable,
        ready=all(each.status == "True" for each in status.conditions if each.type == "Ready"),
        address={each.type: each.address for each in status.addresses}.get("InternalIP", ""),
        record=record,
        wanted=wanted,
        wanted_unreadable=problem,
    )


def _offering(found: ApiNode, cordoned: str = "") -> tuple[Node, NodeRecord | None]:
    """Return a node with its offer, and its record, None for a missing or unreadable record."""
    metadata, status = found.metadata, found.status
    name, policy = metadata.name, metadata.labels.get(PLACEMENT_LABEL)
    text = metadata.annotations.get(GPUS_ANNOTATION)
    beside = {each: _counted(each, status.allocatable[each]) for each in (CPU, MEMORY) if each in status.allocatable}
    if text is None:
        capacity = _amounts(status.capacity)
        reasons = _cordons(name, metadata.annotations.get(names.UNHEALTHY_GPUS, ""), cordoned)
        plain = plain_node(name, capacity.get(GPU_MEMORY, 0), capacity.get(GPU_COUNT, 0), policy, reasons)
        return replace(plain, allocatable=beside), None
    try:
        record = decode_record(text)
    except RecordError as error:
        return replace(unreadable_node(name, str(error)), allocatable=beside), None
    return recorded_node(name, record, policy, beside | _amounts(status.allocatable)), record


def _wanted(record: NodeRecord | None, text: str | None) -> tuple[Wanted | None, str | None]:
    """Return the slices wanted on a partitioned node, or the reason why the annotation cannot be read."""
    if text is None or record is None or record.partitioning is None:
        return None, None
    try:
        return decode(text), None
    except WantedError as error:
        return None, str(error)


def _cordons(node: str, annotation: str, configmap: str) -> dict[str, str]:
    """Return the reasons for cordoned GPUs on a node of Aliyun's plugin, by index: the API has no UUIDs there."""
    there = f"ConfigMap {names.CORDON_NAMESPACE}/{names.cordon_configmap(node)}"
    lists = ((f"annotation {names.UNHEALTHY_GPUS}", annotation), (there, configmap))
    return {gpu: f"cordoned by {who}" for who, text in lists for gpu in names.cordoned_gpus(text)}


def _amounts(quantities: Mapping[str, str]) -> dict[str, int]:
    """Return the units of all extended resources of a node; a quantity that is no whole number is left out."""
    amounts = {}
    for name, quantity in quantities.items():
        if is_extended(name):
            try:
                amounts[name] = units(quantity)
            except QuantityError:
                continue
    return amounts


def _counted(resource: str, quantity: str) -> int:
    """Return a quantity in the numbers of kube-scheduler, 0 for an unreadable quantity."""
    try:
        return counted(resource, thousandths(quantity))
    except QuantityError:
        return 0
