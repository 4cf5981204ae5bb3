"""A table of the claims that have GPUs given by claim."""

from collections.abc import Iterator
from typing import NamedTuple

from gpushare_plugin.base.text import some_of
from gpushare_plugin.observe.cluster.claims import ClaimUse
from gpushare_plugin.observe.cluster.columns import Headed, Style, Table
from gpushare_plugin.observe.cluster.report import ClusterReport, GpuUse, NodeUse

_MOST_CLAIMS = 20
"""The most claims in the table without `detailed`."""
_MOST_PODS = 3
"""The most pods named in a row without `detailed`."""


class _Row(NamedTuple):
    """What a claim has of a GPU of a node."""

    node: NodeUse
    """The node."""
    gpu: GpuUse
    """The GPU."""
    use: ClaimUse
    """What the claim has."""


def claims(report: ClusterReport, style: Style, *, detailed: bool = False) -> Iterator[str]:
    """Yield a table with a row for each GPU of each claim; nothing where no claim has a GPU.

    Without `detailed`, the table has few rows.
    """
    found = [
        _Row(node, gpu, use)
        for node in report.nodes
        for each in node.given_by_claim
        for gpu in each.gpus
        for use in gpu.claims
    ]
    if not found:
        return
    shown = found if detailed else found[:_MOST_CLAIMS]
    yield ""
    yield Headed("GPUs and shares by claim:")
    yield from _table(shown, detailed=detailed).lines(style)
    if len(shown) < len(found):
        yield f"… and {len(found) - len(shown):,} more; -d shows all"


def _table(rows: list[_Row], *, detailed: bool) -> Table:
    headers = ["NAME", "GPU", "NAMESPACE", "CLAIM", "REQUEST", "PODS", "MEMORY", "SHARES", "COMPUTE", "LIMIT", "STATE"]
    said = any(use.limit_effect for _, _, use in rows)
    cells = [
        [
            *(node.name, str(gpu.index) if gpu.index >= 0 else "?", use.namespace, use.claim, use.request),
            ", ".join(use.pods) or "-" if detailed else some_of(use.pods, _MOST_PODS) or "-",
            *(_amount(use.memory_mib, " MiB"), _amount(use.shares, ""), _amount(use.compute_percent, " %")),
            *(_limit(use), use.state),
            *([use.limit_effect.state if use.limit_effect else "-"] if said else []),
        ]
        for node, gpu, use in rows
    ]
    return Table([*headers, *(["LIMIT IS"] if said else [])], cells)


def _amount(amount: int | None, unit: str) -> str:
    return "-" if amount is None else f"{amount}{unit}"


def _limit(use: ClaimUse) -> str:
    """Return what limits the containers of a claim, and by which isolation; `-` where that is not known yet."""
    if use.admin_access:
        return "admin access"
    if use.isolation is None:
        return "-"
    limits = [
        *([] if use.memory_limit_mib is None else [f"{use.memory_limit_mib} MiB"]),
        *([] if use.compute_limit_percent is None else [f"{use.compute_limit_percent} %"]),
    ]
    return f"{use.isolation} ({', '.join(limits)})" if limits and use.isolation != "none" else use.isolation
