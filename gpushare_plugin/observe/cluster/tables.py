"""The GPUs of a cluster for people, in the columns of `kubectl inspect gpushare`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gpushare_plugin.base.text import some_of
from gpushare_plugin.core.effect import worst_state
from gpushare_plugin.ledger.node import GPU_MEMORY
from gpushare_plugin.observe.cluster.columns import Headed, Style, Table
from gpushare_plugin.observe.cluster.report import (
    CORDONS_NOT_READ,
    ClusterReport,
    GpuUse,
    NodeUse,
    PodUse,
    ResourceUse,
)

_BAR_CELLS = 10
MOST_REMARKS = 20
"""The most sentences below the summary."""
FAULTS = ("unhealthy", "over capacity", "limit not in effect", "tainted")
"""The beginnings of the states of a GPU that are faults; other states are of people's making, or pass."""
_MOST_GPUS = 3
"""The most GPUs named with a state."""

_KINDS = {
    "": "not offered any more",
    "gpus": "whole GPUs",
    "cores": "percent of a GPU's compute",
    "memory": "memory",
    "replicas": "replicas",
    "slices": "slices",
    "claims": "GPUs given by claim",
}


class _Shared(NamedTuple):
    """A resource of a node."""

    node: NodeUse
    """The node."""
    use: ResourceUse
    """The use of the resource on the node."""


def summary(report: ClusterReport, style: Style) -> Iterator[str]:
    """Yield the tables of `by_node`, and a sentence for each problem."""
    yield from by_node(report, style)
    yield from remarks(report, MOST_REMARKS)


def by_node(report: ClusterReport, style: Style) -> Iterator[str]:
    """Yield a table per resource and unit, with a row per node; memory comes first, in the form of Aliyun's tool."""
    groups: dict[tuple[bool, str, str, str], list[_Shared]] = {}
    for node in report.nodes:
        for use in (*node.resources, *node.given_by_claim):
            key = (use.resource != GPU_MEMORY, use.resource, use.kind, use.unit)
            groups.setdefault(key, []).append(_Shared(node, use))
    for number, (_, group) in enumerate(sorted(groups.items())):
        if number:
            yield ""
        yield from _summary(group, style, titled=number > 0 or group[0].use.resource != GPU_MEMORY)


def _summary(group: Sequence[_Shared], style: Style, *, titled: bool) -> Iterator[str]:
    use = group[0].use
    if titled:
        yield Headed(f"{use.resource}: {_KINDS.get(use.kind, use.kind)}")
    indexes = _indexes(use for _, use in group)
    found = [", ".join(states(node, use)) for node, use in group]
    headers = ["NAME", "IPADDRESS", *(f"{_gpu_name(index)}(Allocated/Total)" for index in indexes)]
    columns: list[tuple[str, list[str]]] = [
        (amount_header(use), [f"{each.allocated}/{each.units}" for _, each in group])
    ]
    if any(each.pending for _, each in group):
        columns.insert(0, ("PENDING(Allocated)", [str(each.pending) for _, each in group]))
    if any(each.promised for _, each in group):
        columns.append(("PROMISED", [str(each.promised) for _, each in group]))
    if any(found):
        columns.append(("STATE", [state or "ok" for state in found]))
    if style.bars:
        columns.append(("", [bar(each.allocated, each.units) for _, each in group]))
    rows = [
        [node.name, node.address or "unknown", *_cells(each, indexes), *(cells[number] for _, cells in columns)]
        for number, (node, each) in enumerate(group)
    ]
    after = [header for header, _ in columns]
    short = ["NAME", "IPADDRESS", *map(_gpu_name, indexes), *after]
    lines = list(Table([*headers, *after], rows, ("", "IPADDRESS"), short).lines(style))
    yield from lines
    yield "-" * min(max(map(len, lines[1:])), style.width or 120)
    allocated, units = sum(each.allocated for _, each in group), sum(each.units for _, each in group)
    yield f"Allocated/Total {_amount(use)} In Cluster:"
    yield f"{allocated}/{units} ({_percent(allocated, units)})"


def wide(report: ClusterReport, style: Style) -> Iterator[str]:
    """Yield a table with a row for each GPU in each resource, and every remark."""
    headers = [
        "NAME",
        "IPADDRESS",
        "GPU",
        "PRODUCT",
        "RESOURCE",
        "UNIT",
        "MODE",
        "ALLOCATED",
        "TOTAL",
        "FREE",
        "PROMISED",
    ]
    headers += ["PENDING", "STATE", "UUID"]
    rows = [
        [
            *(node.name, node.address or "unknown", _index(gpu.index), gpu.product or "-", use.resource, use.unit),
            *(gpu.mode or "-", str(gpu.allocated), str(gpu.units), str(gpu.free), str(gpu.promised), str(gpu.unplaced)),
            *(", ".join((*_node_states(node), *gpu_states(gpu))) or "ok", gpu.uuid),
        ]
        for node in report.nodes
        for use in (*node.resources, *node.given_by_claim)
        for gpu in use.gpus
    ]
    rows += [
        [
            node.name,
            node.address or "unknown",
            _index(gpu.index),
            gpu.product or "-",
            *("-",) * 8,
            "by claim" if gpu.by_claim else "not offered",
            gpu.uuid,
        ]
        for node in report.nodes
        for gpu in node.not_offered
        if not any(gpu.uuid == each.uuid for use in node.given_by_claim for each in use.gpus)
    ]
    if style.bars:
        headers.append("")
        gpus = [gpu for node in report.nodes for use in (*node.resources, *node.given_by_claim) for gpu in use.gpus]
        bars = [bar(gpu.allocated, gpu.units) for gpu in gpus] + [""] * (len(rows) - len(gpus))
        rows = [[*row, cells] for row, cells in zip(rows, bars, strict=True)]
    if rows:
        yield from Table(headers, rows).lines(style._replace(width=None))
    yield from remarks(report, None)


def details(report: ClusterReport, style: Style) -> Iterator[str]:
    """Yield a table for each resource of each node, with the units of each pod on each GPU."""
    allocated: dict[tuple[str, str], int] = {}
    units: dict[tuple[str, str], int] = {}
    for node in report.nodes:
        for use in node.resources:
            yield from _details(node, use, style)
            key = (amount_header(use), "" if use.resource == GPU_MEMORY else f" of {use.resource}")
            allocated[key] = allocated.get(key, 0) + use.allocated
            units[key] = units.get(key, 0) + use.units
        for use in node.given_by_claim:
            key = (amount_header(use), f" of {use.resource}")
            allocated[key] = allocated.get(key, 0) + use.allocated
            units[key] = units.get(key, 0) + use.units
    for key in sorted(units, key=lambda key: (key[1], key[0])):
        total = f"{allocated[key]}/{units[key]} ({_percent(allocated[key], units[key])})"
        yield f"Allocated/Total {''.join(key)} In Cluster:  {total}"
    yield from remarks(report, None)


def _details(node: NodeUse, use: ResourceUse, style: Style) -> Iterator[str]:
    indexes = _indexes([use])
    pods = _pods(use)
    yield Headed("NAME:", f"       {node.name}")
    yield Headed("IPADDRESS:", f"  {node.address or 'unknown'}")
    if use.resource != GPU_MEMORY:
        yield Headed("RESOURCE:", f"   {use.resource} ({_KINDS.get(use.kind, use.kind)})")
    if found := ", ".join(states(node, use)):
        yield Headed("STATE:", f"      {found}")
    yield ""
    headers = ["NAME", "NAMESPACE", *(f"{_gpu_name(index)}(Allocated)" for index in indexes)]
    columns: list[tuple[str, list[str]]] = []
    if use.pending:
        columns.append(("PENDING(Allocated)", [str(_units(uses, None)) for uses in pods.values()]))
    if any(state != "allocated" for uses in pods.values() for state in _pod_states(uses)):
        columns.append(("STATE", [", ".join(_pod_states(uses)) for uses in pods.values()]))
    if any(use.limits for uses in pods.values() for _, use in uses):
        columns.append(("LIMITS", [_limits(uses) for uses in pods.values()]))
    rows = [
        [name, namespace, *(str(_units(uses, index)) for index in indexes), *(cells[number] for _, cells in columns)]
        for number, ((namespace, name), uses) in enumerate(pods.items())
    ]
    lines = list(Table([*headers, *(header for header, _ in columns)], rows).lines(style))
    yield from lines
    yield f"Allocated({use.unit}) :  {use.allocated} ({_percent(use.allocated, use.units)})"
    yield f"Total({use.unit}) :      {use.units}"
    yield "-" * min(max(map(len, lines), default=40), style.width or 120)
    yield ""


_Uses = list[tuple[int | None, PodUse]]
"""The units of a pod, each with the index of its GPU, or None for an unknown GPU."""


def _pods(use: ResourceUse) -> dict[tuple[str, str], _Uses]:
    """Return the units of each pod, by namespace and name."""
    pods: dict[tuple[str, str], _Uses] = {}
    for gpu in use.gpus:
        for each in gpu.pods:
            pods.setdefault((each.namespace, each.pod), []).append((gpu.index, each))
    for each in use.unplaced:
        pods.setdefault((each.namespace, each.pod), []).append((None, each))
    return pods


def _units(uses: _Uses, index: int | None) -> int:
    return sum(use.units for where, use in uses if where == index)


def _pod_states(uses: _Uses) -> list[str]:
    found = {"on an unknown GPU" if use.state == "unplaced" else str(use.state) for _, use in uses}
    return [*sorted(found), *(["drift"] if any(use.drift for _, use in uses) else [])]


def _limits(uses: _Uses) -> str:
    """Return whether all limits of a pod are in effect: the gravest state; `-` where the node does not say."""
    found = [limit.state for _, use in uses for limit in use.limits]
    return worst_state(found) if found else "-"


def states(node: NodeUse, use: ResourceUse) -> Iterator[str]:
    """Yield each problem of a node and a resource of the node, in a few words."""
    yield from _node_states(node)
    for state in dict.fromkeys(state for gpu in use.gpus for state in gpu_states(gpu)):
        gpus = list(dict.fromkeys(_gpu_name(gpu.index) for gpu in use.gpus if state in gpu_states(gpu)))
        yield f"{some_of(gpus, _MOST_GPUS)} {state}"
    if use.pending:
        yield f"{use.pending} on unknown GPUs"


def all_states(node: NodeUse) -> list[str]:
    """Return each problem of a node, of its resources and of its GPUs, in a few words."""
    found = [*_node_states(node)]
    found += [state for use in (*node.resources, *node.given_by_claim) for state in states(node, use)]
    unoffered = [_gpu_name(gpu.index) for gpu in node.not_offered if gpu.reason]
    return [*dict.fromkeys(found), *([f"{some_of(unoffered, _MOST_GPUS)} not offered"] if unoffered else [])]


def _node_states(node: NodeUse) -> Iterator[str]:
    if not node.ready:
        yield "not ready"
    if node.cordoned:
        yield "cordoned"


def gpu_states(gpu: GpuUse) -> list[str]:
    """Return each problem of a GPU, in a few words."""
    found = []
    if gpu.reason is not None:
        found.append("cordoned" if "cordoned" in gpu.reason else gpu.reason.partition(":")[0])
    if gpu.over:
        found.append("over capacity")
    if gpu.drifted:
        found.append("drift")
    if _is_escaped(gpu):
        found.append("limit not in effect")
    return found


def is_fault(state: str) -> bool:
    """Return whether a state of a GPU is a fault."""
    return state.startswith(FAULTS)


def _is_escaped(gpu: GpuUse) -> bool:
    """Return whether the limit of a container on the GPU is not in effect."""
    states = [limit.state for each in gpu.pods for limit in each.limits]
    return "not in effect" in (*states, *(each.limit_effect.state for each in gpu.claims if each.limit_effect))


def remarks(report: ClusterReport, most: int | None) -> Iterator[str]:
    """Yield a sentence for each problem of the nodes, at most `most`; None for all."""
    remarks = list(dict.fromkeys(remark for node in report.nodes for remark in _of_node(node)))
    without_record = any(use.gpus for node in report.nodes if not node.recorded for use in node.resources)
    if report.claims_unknown:
        remarks.insert(0, f"Claims are not shown: {report.claims_unknown}")
    if remarks or without_record:
        yield ""
    if without_record:
        yield CORDONS_NOT_READ
    yield from remarks[:most]
    if most is not None and len(remarks) > most:
        yield f"… and {len(remarks) - most:,} more; -o wide shows all"


def _of_node(node: NodeUse) -> Iterator[str]:
    yield from (f"{node.name}: the node is {state}: no new pod gets its GPUs" for state in _node_states(node))
    for use in (*node.resources, *node.given_by_claim):
        yield from (f"{node.name}: {sentence}" for gpu in use.gpus for sentence in _of_gpu(gpu, use))
        yield from (
            f"{node.name}: {each.namespace}/{each.pod} has {each.units} {use.unit} of {use.resource} on an unknown "
            "GPU: they count against each"
            for each in use.unplaced
        )
    yield from (
        f"{node.name}: {_gpu_name(gpu.index)}: not offered: {gpu.reason}" for gpu in node.not_offered if gpu.reason
    )
    yield from (f"{node.name}: {notice}" for notice in node.notices)


def _of_gpu(gpu: GpuUse, use: ResourceUse) -> Iterator[str]:
    name = _gpu_name(gpu.index)
    if gpu.reason is not None:
        yield f"{name}: {gpu.reason}"
    if gpu.over:
        yield f"{name}: over capacity: pods have {gpu.over} {use.unit} of {use.resource} more than it has"
    for each in gpu.pods:
        if each.drift:
            yield f"{name}: drift: {each.namespace}/{each.pod} was promised other units of {use.resource}"
        for limit in each.limits:
            if limit.state == "not in effect":
                of = f"container {limit.container}" if limit.container else "the containers"
                yield f"{name}: the limit of {of} of {each.namespace}/{each.pod} is {limit.effect}"
    for claim in gpu.claims:
        if claim.limit_effect and claim.limit_effect.state == "not in effect":
            yield f"{name}: the limit of claim {claim.label} is not in effect: {claim.limit_effect.reason}"


def bar(used: int, total: int) -> str:
    """Return a bar for `used` out of `total`: empty only at 0, full only at `total`."""
    filled = min(_BAR_CELLS, _BAR_CELLS * used // total) if total else 0
    filled = max(1, filled) if used else 0
    return "█" * filled + "░" * (_BAR_CELLS - filled)


def _indexes(uses: Iterable[ResourceUse]) -> list[int]:
    return sorted({gpu.index for use in uses for gpu in use.gpus}, key=lambda index: (index < 0, index))


def _cells(use: ResourceUse, indexes: Sequence[int]) -> list[str]:
    """Return the cell of each GPU of a node; the MIG instances of a card add up."""
    found: dict[int, list[int]] = {}
    for gpu in use.gpus:
        of_card = found.setdefault(gpu.index, [0, 0])
        of_card[0] += gpu.allocated
        of_card[1] += gpu.units
    return ["{}/{}".format(*found[index]) if index in found else "-" for index in indexes]


def _index(index: int) -> str:
    return str(index) if index >= 0 else "?"


def _gpu_name(index: int) -> str:
    """Return the name of a GPU for people: `GPU?` for a GPU that the node does not list any more."""
    return f"GPU{index}" if index >= 0 else "GPU?"


def _amount(use: ResourceUse) -> str:
    return "GPU Memory" if use.resource == GPU_MEMORY else use.resource


def amount_header(use: ResourceUse) -> str:
    """Return the header of a column of amounts, with the unit."""
    return f"{'GPU Memory' if use.unit.endswith('iB') else 'Units'}({use.unit})"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part // whole}%" if whole else "0%"
