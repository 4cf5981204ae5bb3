"""What a node shares and who holds what, as tables for people."""

from rich.table import Table
from rich.text import Text

from gpushare_plugin.inspect.report import NodeReport

_BAR_CELLS = 10


def gpu_table(node: NodeReport, *, uuids: bool = True) -> Table:
    """Return a table of the GPUs and how much of each is allocated; without `uuids` it fits 80 columns."""
    table = plain_table("GPU", "NAME", "MEMORY", "RESOURCE", "USED", "", *(["UUID"] if uuids else []))
    divided = {each.gpu.card for each in node.gpus if each.gpu.mig and each.resource}
    for each in node.gpus:
        gpu = each.gpu
        used = f"{each.used if node.uses_known else '?'}/{each.units}" if each.resource else ""
        cells = bar(each.used, each.units) if each.resource and node.uses_known else ""
        uuid = [gpu.uuid] if uuids else []
        resource = each.resource or ("MIG instances" if gpu.uuid in divided else "not offered")
        table.add_row(gpu.label, gpu.product, f"{gpu.memory_mib} MiB", resource, used, cells, *uuid)
    for card in node.inventory.failed:
        table.add_row(card.label, f"unresponsive: {card.reason}", "", "not offered", "", "", card.uuid or "")
    return table


def plain_table(*columns: str) -> Table:
    """Return an empty table without lines, whose cells break only where necessary."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def bar(used: int, total: int) -> Text:
    """Return a bar for `used` out of `total`: empty only at 0, full only at `total`."""
    filled = _BAR_CELLS * used // total if total else 0
    if used:
        filled = max(1, filled)
    return Text("█" * filled + "░" * (_BAR_CELLS - filled))


def use_table(node: NodeReport) -> Table:
    """Return a table of the containers that hold units, GPU by GPU."""
    table = plain_table("GPU", "NAMESPACE", "POD", "CONTAINER", "RESOURCE", "UNITS")
    for each in node.gpus:
        for use in each.uses:
            table.add_row(each.gpu.label, use.namespace, use.pod, use.container, each.resource or "", str(use.units))
    return table
