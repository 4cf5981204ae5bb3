"""The GPUs of a cluster that are given by claim, added to a report on units: each GPU has one or the other."""

from collections.abc import Iterator, Mapping, Sequence

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.text import some_of
from gpushare_plugin.claims.capacities import MEMORY, SHARES
from gpushare_plugin.claims.cluster import ClusterClaims, HeldGpu
from gpushare_plugin.observe.cluster.claims import claim_use
from gpushare_plugin.observe.cluster.report import ClusterReport, GpuUse, NodeUse, ResourceUse, UnofferedGpu

BY_CLAIM = "claims"
"""The kind of GPUs that are given by claim, where resources have the kinds of records."""

HELD_BY_CLAIMS = "held by claims"
"""Why nobody gets units of a GPU that claims have; the names of claims follow, after a colon."""

_BY_SHARES = frozenset({"replicas", "mps-replicas"})
"""The ways in which a GPU has a number of equal shares."""
_MOST_CLAIMS = 3


def with_claims(report: ClusterReport, claims: ClusterClaims) -> ClusterReport:
    """Return a report with the GPUs that are given by claim, and what claims have of the GPUs.

    A GPU that claims have has no free units, whatever its node offers: the GPU is about to change sides.
    """
    nodes = tuple(node_with_claims(node, claims.on_node(node.name)) for node in report.nodes)
    return replace(report, nodes=nodes, claims_unknown=claims.unknown or None)


def node_with_claims(node: NodeUse, held: Sequence[HeldGpu]) -> NodeUse:
    """Return a node with the GPUs that are given by claim, as `with_claims` does for a whole report."""
    if not held:
        return node
    claimed = {each.gpu.device.gpu: each.holders for each in held if each.counted}
    return replace(
        node,
        resources=tuple(_without_free(use, claimed) for use in node.resources),
        given_by_claim=tuple(_resources(held, {gpu.uuid: gpu for gpu in node.not_offered})),
    )


def _without_free(use: ResourceUse, claimed: Mapping[str, Sequence[str]]) -> ResourceUse:
    """Return a resource without free units of GPUs that claims have, which are given with the names of the claims."""
    if not any(gpu.uuid in claimed for gpu in use.gpus):
        return use
    gpus = (
        replace(gpu, free=0, reason=gpu.reason or f"{HELD_BY_CLAIMS}: {some_of(claimed[gpu.uuid], _MOST_CLAIMS)}")
        if gpu.uuid in claimed
        else gpu
        for gpu in use.gpus
    )
    return replace(use, gpus=tuple(gpus))


def _resources(held: Sequence[HeldGpu], known: Mapping[str, UnofferedGpu]) -> Iterator[ResourceUse]:
    """Yield the GPUs of each DRA driver, those with memory and those with equal shares apart.

    `known` is what the record of the node says of GPUs, by UUID.
    """
    groups: dict[tuple[str, str], list[GpuUse]] = {}
    for each in held:
        unit = "shares" if each.gpu.device.attributes.get("way") in _BY_SHARES else "MiB"
        groups.setdefault((each.gpu.driver, unit), []).append(_gpu(each, unit, known.get(each.gpu.device.gpu)))
    for (driver, unit), gpus in groups.items():
        in_order = tuple(sorted(gpus, key=lambda gpu: gpu.index))
        yield ResourceUse(resource=driver, kind=BY_CLAIM, unit=unit, gpus=in_order)


def _gpu(each: HeldGpu, unit: str, known: UnofferedGpu | None) -> GpuUse:
    device = each.gpu.device
    attributes = {name: str(value) for name, value in device.attributes.items()}
    capacity, size = (SHARES, 1) if unit == "shares" else (MEMORY, MIB)
    units = device.capacities[capacity].amount // size if capacity in device.capacities else 0
    used, reason = each.used(capacity) // size, _reason(each, known)
    return GpuUse(
        index=known.index if known is not None else -1,
        uuid=device.gpu,
        product=" MIG ".join(filter(None, (attributes.get("productName"), attributes.get("profile")))),
        mode=attributes.get("way"),
        units=units,
        allocated=used,
        free=0 if reason or _has_no_share(each) else max(0, units - used),
        over=max(0, used - units) if each.gpu.offered else 0,
        reason=reason,
        claims=tuple(claim_use(one, each) for one in each.held),
    )


def _reason(each: HeldGpu, known: UnofferedGpu | None) -> str | None:
    """Return why no claim can get the GPU; None where claims can."""
    if not each.gpu.offered:
        return "not offered any more: no ResourceSlice has it"
    if not each.taints:
        return None
    said = f": {known.reason}" if known is not None and known.reason else ""
    return f"tainted ({', '.join(each.taints)}){said}"


def _has_no_share(each: HeldGpu) -> bool:
    """Return whether shares are counted and all are taken, so that no claim gets the memory that is left."""
    shares = each.gpu.device.capacities.get(SHARES)
    return each.gpu.device.shared and shares is not None and each.used(SHARES) >= shares.amount
