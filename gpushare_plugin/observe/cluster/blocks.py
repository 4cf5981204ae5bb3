"""A large cluster for people: the totals first, then a line for each node with a character for each of its GPUs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from gpushare_plugin.ledger.node import GPU_MEMORY
from gpushare_plugin.observe.cluster.columns import Headed, Style, Table
from gpushare_plugin.observe.cluster.report import ClusterReport, NodeUse, ResourceUse
from gpushare_plugin.observe.cluster.tables import MOST_REMARKS, all_states, amount_header, remarks
from gpushare_plugin.observe.cluster.totals import GpuOfNode, ModelTotal, by_model, cards, together

MOST_LINES = 40
"""The most lines of a table of nodes that a terminal is shown; instead of more, blocks are shown."""
_MOST_TOTALS = 20
"""The most rows of totals."""

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = ".123456#"
"""The same levels where a terminal has no UTF-8."""
_FAULTY, _CORDONED, _UNOFFERED = "!", "x", "-"


def blocks(report: ClusterReport, style: Style, waiting: int | None) -> Iterator[str]:
    """Yield the totals, the nodes and the problems of a cluster; `waiting` is the number of pods without a node."""
    of_nodes = [cards(node) for node in report.nodes]
    yield Headed(_counts(report.nodes, of_nodes, waiting))
    yield ""
    yield from _totals(report, style)
    yield ""
    yield from _nodes(report.nodes, of_nodes, style)
    levels = _BLOCKS if style.utf8 else _ASCII
    yield (
        f"{levels[0]} nothing of the GPU is allocated … {levels[-1]} all; {_FAULTY} faulty, or its node is not ready; "
        f"{_CORDONED} cordoned; {_UNOFFERED} in no resource"
    )
    yield from remarks(report, MOST_REMARKS)


def _counts(nodes: Sequence[NodeUse], of_nodes: Iterable[Sequence[GpuOfNode]], waiting: int | None) -> str:
    gpus = [card for of_node in of_nodes for card in of_node]
    not_ready, cordoned = sum(not node.ready for node in nodes), sum(node.cordoned for node in nodes)
    faulty, closed = sum(card.is_faulty for card in gpus), sum(card.is_cordoned for card in gpus)
    found = [
        f"Nodes: {len(nodes):,}{_of_these({'not ready': not_ready, 'cordoned': cordoned})}",
        f"GPUs: {len(gpus):,}{_of_these({'faulty': faulty, 'cordoned': closed})}",
        *([] if waiting is None else [f"Pods that wait for a node: {waiting:,}"]),
    ]
    return "; ".join(found)


def _of_these(numbers: Mapping[str, int]) -> str:
    found = ", ".join(f"{number:,} {what}" for what, number in numbers.items() if number)
    return f" ({found})" if found else ""


def _totals(report: ClusterReport, style: Style) -> Iterator[str]:
    rows = []
    for _, of_resource in groupby(by_model(report), lambda each: (each.resource, each.unit)):
        found = list(of_resource)
        rows += [_total(each, "on unknown GPUs" if each.model is None else each.model or "unknown") for each in found]
        rows += [_total(together(found), "all")] if len(found) > 1 else []
    headers = ["RESOURCE", "MODEL", "GPUS", "ALLOCATED/TOTAL", "LARGEST FREE"]
    yield from Table(headers, rows[:_MOST_TOTALS], ("GPUS",), headers).lines(style)
    if len(rows) > _MOST_TOTALS:
        yield f"… and {len(rows) - _MOST_TOTALS:,} more; --resource and --model choose among them"


def _total(of: ModelTotal, model: str) -> list[str]:
    percent = f" ({100 * of.allocated // of.units}%)" if of.units else ""
    amounts = f"{of.allocated:,}/{of.units:,} {of.unit}{percent}"
    return [of.resource, model, f"{of.gpus:,}", amounts, f"{of.largest_free:,} {of.unit}"]


def _nodes(nodes: Sequence[NodeUse], of_nodes: Iterable[Sequence[GpuOfNode]], style: Style) -> Iterator[str]:
    keys = dict.fromkeys(sorted(_key(use) for node in nodes for use in _uses(node)))
    headers = ["NAME", "GPUS", *(header for _, _, header in keys)]
    amounts = [{_key(use): f"{use.allocated}/{use.units}" for use in _uses(node)} for node in nodes]
    rows = [
        [node.name, _row(node, of_node, style), *(of_keys.get(key, "-") for key in keys)]
        for node, of_node, of_keys in zip(nodes, of_nodes, amounts, strict=True)
    ]
    found = [", ".join(all_states(node)) for node in nodes]
    if any(found):
        headers.append("STATE")
        rows = [[*row, state or "ok"] for row, state in zip(rows, found, strict=True)]
    optional = [*reversed(headers[3:]), *headers[2:3]]
    table = Table(headers, rows, optional, headers)
    least = table.without(optional)
    fits = style.width is None or max(map(len, least.lines(Style()))) <= style.width
    yield from table.lines(style) if fits else least.lines(Style())


def _uses(node: NodeUse) -> tuple[ResourceUse, ...]:
    return (*node.resources, *node.given_by_claim)


_Key = tuple[bool, str, str]
"""Whether a resource is other than the memory of GPUs, its name, and the header of its amounts."""


def _key(use: ResourceUse) -> _Key:
    other = use.resource != GPU_MEMORY
    return (other, use.resource, f"{use.resource}({use.unit})" if other else amount_header(use))


def _row(node: NodeUse, of_node: Iterable[GpuOfNode], style: Style) -> str:
    """Return a character for each GPU of a node."""
    return "".join(_character(node, card, _BLOCKS if style.utf8 else _ASCII) for card in of_node)


def _character(node: NodeUse, card: GpuOfNode, levels: str) -> str:
    if not node.ready or card.is_faulty:
        return _FAULTY
    if node.cordoned or card.is_cordoned:
        return _CORDONED
    return level(card.held, levels) if card.uses else _UNOFFERED


def level(held: float, levels: str) -> str:
    """Return the level of a held part: the first one only for nothing, the last one only for all."""
    if held <= 0:
        return levels[0]
    return levels[-1] if held >= 1 else levels[1 + int(held * (len(levels) - 2))]
