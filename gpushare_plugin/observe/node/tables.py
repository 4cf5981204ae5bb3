"""The offer and the holdings of a node, as tables and sentences for people.

Names are never broken or shortened: a table too wide for the terminal leaves columns out, or puts every value on a line
of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gpushare_plugin.base.text import some_of, visible
from gpushare_plugin.core.gpu import FailedGpu
from gpushare_plugin.observe.node.report import ClaimedDevice, GpuReport, NodeReport, Use, chosen_isolations

_BAR_CELLS = 10
_MOST_HOLDERS = 4
"""The most containers named in a sentence."""
_UNLIMITED = 1 << 16
"""The width in which a table is measured, in columns of text: more than any row needs."""

_Row = GpuReport | FailedGpu
"""The data of a row in a table of GPUs."""
_Cell = Callable[[_Row], RenderableType]
"""Returns the cell of a column for a row."""


def show(console: Console, node: NodeReport, *, wide: bool = False) -> None:
    """Print the GPUs, remarks, the containers that hold units, and claims; `wide` has every column."""
    hidden = print_fitted(console, gpu_tables(node, wide=wide))
    sentences = list(remarks(node))
    if hidden:
        sentences.append(f"The terminal is too narrow for {', '.join(hidden)}: widen the terminal, or use -o json.")
    if sentences:
        console.print()
    for sentence in sentences:
        console.print(Text(visible(sentence)), soft_wrap=True)
    headers, uses = use_rows(node, wide=wide)
    if uses:
        console.print()
        print_fitted(console, narrower(headers, uses))
    for sentence in _unknown_limits(node) if wide else ():
        console.print(Text(visible(sentence)), soft_wrap=True)
    headers, claims = claim_rows(node, wide=wide)
    if claims:
        console.print()
        print_fitted(console, narrower(headers, claims))


def gpu_tables(node: NodeReport, *, wide: bool = False) -> Iterator[Table]:
    """Yield tables of the GPUs, from the widest to the narrowest."""
    headers = ["GPU", "NAME", "MEMORY", "UNIT", "RESOURCE", "USED", "HEALTH", "STATE"]
    if wide:
        headers += ["IN USE", "BUSY", "MODE", "UUID"]
        headers += ["CDI DEVICE"] if any(gpu.cdi_device for gpu in node.gpus) else []
        return narrower(headers, _rows(node, headers))
    return narrower(headers, _rows(node, headers), ("MEMORY", "UNIT", "NAME"))


def usage_tables(node: NodeReport) -> Iterator[Table]:
    """Yield tables of the held units of every GPU, with a bar, from the widest to the narrowest."""
    headers = ["GPU", "NAME", "MEMORY", "RESOURCE", "USED", ""]
    return narrower(headers, _rows(node, headers), ("MEMORY", "NAME"))


def narrower(
    headers: Sequence[str], rows: Sequence[Sequence[RenderableType]], least: Sequence[str] = ()
) -> Iterator[Table]:
    """Yield a table with all columns, tables with ever fewer columns, and a table with a line for every value.

    `least` names the columns to leave out, the least important column first.
    """
    for count in range(len(least) + 1):
        kept = [number for number, header in enumerate(headers) if header not in least[:count]]
        yield _table([headers[number] for number in kept], [[row[number] for number in kept] for row in rows])
    yield _expanded(headers, rows)


def _rows(node: NodeReport, headers: Sequence[str]) -> list[list[RenderableType]]:
    cells = _cells(node)
    rows: Sequence[_Row] = (*node.gpus, *node.failed)
    return [[cells[header](row) for header in headers] for row in rows]


def _cells(node: NodeReport) -> Mapping[str, _Cell]:
    """Return, by header, the function that makes the cells of a column."""
    divided = {each.mig.parent for each in node.gpus if each.mig and each.resource}

    def of_gpu(cell: Callable[[GpuReport], RenderableType], failed: str = "") -> _Cell:
        return lambda row: cell(row) if isinstance(row, GpuReport) else failed

    def resource(gpu: GpuReport) -> str:
        return gpu.resource or ("MIG instances" if gpu.uuid in divided else "-")

    return {
        "GPU": lambda row: row.label,
        "NAME": of_gpu(lambda gpu: gpu.product or "-", "-"),
        "MEMORY": of_gpu(lambda gpu: _mib(gpu.memory_mib), "-"),
        "UNIT": of_gpu(lambda gpu: f"{gpu.unit_mib} MiB" if gpu.unit_mib else "-", "-"),
        "RESOURCE": of_gpu(resource, "-"),
        "USED": of_gpu(lambda gpu: _used(gpu) if gpu.resource else "-", "-"),
        "": of_gpu(lambda gpu: bar(gpu.used, gpu.units) if gpu.resource and gpu.used is not None else ""),
        "HEALTH": of_gpu(lambda gpu: gpu.health, "unhealthy"),
        "STATE": of_gpu(lambda gpu: gpu.state, "unresponsive"),
        "IN USE": of_gpu(lambda gpu: _mib(gpu.memory_used_mib), "-"),
        "BUSY": of_gpu(lambda gpu: _percent(gpu.utilization), "-"),
        "MODE": of_gpu(_mode, "-"),
        "UUID": lambda row: row.uuid or "-",
        "CDI DEVICE": of_gpu(lambda gpu: gpu.cdi_device or "-", "-"),
    }


def _used(gpu: GpuReport) -> str:
    return f"{'?' if gpu.used is None else gpu.used}/{gpu.units + gpu.retired}"


def _mib(memory: int | None) -> str:
    return "-" if memory is None else f"{memory} MiB"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"


def _mode(gpu: GpuReport) -> str:
    if not gpu.units:
        return "waiting" if gpu.waiting else "-"
    return f"{gpu.mode}" if gpu.isolation in {None, "none", gpu.mode} else f"{gpu.mode},{gpu.isolation}"


def remarks(node: NodeReport) -> Iterator[str]:
    """Yield sentences about the GPUs that need attention, the daemon's problems, and the node's warnings."""
    later = " once it no longer waits"
    yield from chosen_isolations(
        {
            gpu.label: (f"{gpu.isolation}{later if gpu.waiting else ''}", gpu.isolation_reasons)
            for gpu in node.gpus
            if gpu.isolation and (gpu.isolation_listed or gpu.isolation_reasons)
        }
    )
    yield from _about_gpus(node)
    for claim in node.claims or ():
        yield from _excesses_of(f"GPU {claim.gpu}", claim.uses)
    if node.resource_slices:
        yield f"Claims: {node.resource_slices}"
    for card in node.failed:
        yield f"GPU {card.label}: unresponsive: {card.reason}"
    for problem in node.problems:
        yield f"Not ready: {problem}"
    for notice in node.notices:
        yield f"Warning: {notice}"


def _about_gpus(node: NodeReport) -> Iterator[str]:
    for uuid in dict.fromkeys(gpu.uuid for gpu in node.gpus):
        reports = [gpu for gpu in node.gpus if gpu.uuid == uuid]
        gpu = reports[0]
        name = f"GPU {gpu.label}"
        if gpu.health == "unhealthy":
            yield f"{name}: unhealthy: {gpu.reason}"
        if gpu.cordon:
            yield f"{name}: {gpu.cordon}"
        if gpu.waiting:
            yield f"{name}: {gpu.waiting}"
        for each in reports:
            if each.retired:
                one = each.retired == 1
                units = "1 unit" if one else f"{each.retired} units"
                yield f"{name}: {units} of {each.resource} retired: no new pod gets {'it' if one else 'them'}"
        yield from _excesses(name, reports)


def _excesses(name: str, reports: Sequence[GpuReport]) -> Iterator[str]:
    """Yield a sentence for every container without or over its memory limit, and for every foreign process."""
    yield from _excesses_of(name, [use for each in reports for use in each.uses or ()])
    for process in reports[0].foreign_processes:
        used = "" if process.memory_used_mib is None else f", and uses {process.memory_used_mib} MiB"
        foreign = f"process {process.pid} ({process.program}) of {process.whose}"
        yield f"{name}: {foreign} holds no units and no claim of it{used}"


def _excesses_of(name: str, uses: Sequence[Use]) -> Iterator[str]:
    """Yield a sentence for every container without or over its memory limit on the GPU `name`."""
    for use in uses:
        if use.limit_effect and use.limit_effect.state == "not in effect":
            yield f"{name}: the limit of {_holder(use)} is not in effect: {use.limit_effect.reason}"
    for use in uses:
        if use.over_limit:
            yield f"{name}: {_holder(use)} uses {use.memory_used_mib} MiB, and may use {use.memory_limit_mib} MiB"


def _holder(use: Use) -> str:
    return f"{use.namespace}/{use.pod} ({use.container})" if use.container else f"{use.namespace}/{use.pod}"


def _unknown_limits(node: NodeReport) -> Iterator[str]:
    """Yield a sentence for each reason why it is unknown whether limits of containers are in effect."""
    holders: dict[str, list[str]] = {}
    for use in (use for gpu in node.gpus for use in gpu.uses or ()):
        if use.limit_effect and use.limit_effect.state == "unknown":
            named = holders.setdefault(use.limit_effect.reason or "nobody says why", [])
            named.append(_holder(use))
    for reason, named in holders.items():
        each = some_of(list(dict.fromkeys(named)), _MOST_HOLDERS)
        yield f"It is unknown whether the limit is in effect for {each}: {reason}"


def use_rows(node: NodeReport, *, wide: bool = False) -> tuple[Sequence[str], list[list[RenderableType]]]:
    """Return headers, and a row for every container with units, GPU by GPU; `wide` adds limit and use.

    Where an isolation limits containers, `wide` also adds whether the limit is enforced.
    """
    headers = ("GPU", "NAMESPACE", "POD", "CONTAINER", "RESOURCE", "UNITS")
    proven = wide and any(use.limit_effect for gpu in node.gpus for use in gpu.uses or ())
    rows: list[list[RenderableType]] = [
        [
            *(gpu.label, use.namespace, use.pod, use.container, gpu.resource or "-", str(use.units)),
            *((_mib(use.memory_limit_mib), _mib(use.memory_used_mib), _percent(use.utilization)) if wide else ()),
            *((use.limit_effect.words if use.limit_effect else "-",) if proven else ()),
        ]
        for gpu in node.gpus
        for use in gpu.uses or ()
    ]
    more = ("LIMIT", "IN USE", "BUSY") if wide else ()
    return (*headers, *more, *(("LIMIT IS",) if proven else ())), rows


def claim_rows(node: NodeReport, *, wide: bool = False) -> tuple[Sequence[str], list[list[RenderableType]]]:
    """Return headers, and a row for what each request of a claim has of each GPU; `wide` adds limits and use.

    Where an isolation limits containers, there is also whether the limits are enforced.
    """
    headers = ("GPU", "NAMESPACE", "CLAIM", "REQUEST", "PODS", "MEMORY", "SHARES", "COMPUTE", "ISOLATION", "STATE")
    proven = any(use.limit_effect for each in node.claims or () for use in each.uses)
    rows: list[list[RenderableType]] = [
        [
            *(each.gpu, each.namespace, each.claim, each.request, ", ".join(each.pods) or "-"),
            *(_mib(each.memory_mib), "-" if each.shares is None else str(each.shares)),
            "-" if each.compute_percent is None else f"{each.compute_percent} %",
            "admin access" if each.admin_access else each.isolation,
            each.state,
            *((_words(use.limit_effect.words if use.limit_effect else "-" for use in each.uses),) if proven else ()),
            *(_use_of(each) if wide else ()),
        ]
        for each in node.claims or ()
    ]
    more = ("LIMIT", "IN USE", "BUSY", "WAY", "UUID") if wide else ()
    return (*headers, *(("LIMIT IS",) if proven else ()), *more), rows


def _use_of(claim: ClaimedDevice) -> Sequence[str]:
    used = _words(_mib(use.memory_used_mib) for use in claim.uses)
    busy = _words(_percent(use.utilization) for use in claim.uses)
    limits = [
        *([] if claim.memory_limit_mib is None else [_mib(claim.memory_limit_mib)]),
        *([] if claim.compute_limit_percent is None else [f"{claim.compute_limit_percent} %"]),
    ]
    return ", ".join(limits) or "-", used, busy, claim.way, claim.uuid


def _words(words: Iterable[str]) -> str:
    """Return what is known of the containers of a claim, once where they are alike."""
    return ", ".join(dict.fromkeys(words)) or "-"


def bar(used: int, total: int) -> Text:
    """Return a bar for `used` out of `total`: empty only at 0, full only from `total` on."""
    filled = min(_BAR_CELLS, _BAR_CELLS * used // total) if total else 0
    if used:
        filled = max(1, filled)
    return Text("█" * filled + "░" * (_BAR_CELLS - filled))


def _table(headers: Sequence[str], rows: Iterable[Sequence[RenderableType]]) -> Table:
    """Return a table with unbroken cells."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, no_wrap=True, overflow="ignore")
    for row in rows:
        table.add_row(*map(_literal, row))
    return table


def _expanded(headers: Sequence[str], rows: Iterable[Sequence[RenderableType]]) -> Table:
    """Return a table with a line for every value, and an empty line after every row."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(no_wrap=True, overflow="ignore")
    for row in rows:
        for header, value in zip(headers, row, strict=True):
            table.add_row(header, _literal(value))
        table.add_row()
    return table


def _literal(cell: RenderableType) -> RenderableType:
    # A name in brackets must not become markup, and text from outside gpushare no control sequence.
    return Text(visible(cell)) if isinstance(cell, str) else cell


def print_fitted(console: Console, tables: Iterable[Table]) -> list[str]:
    """Print the first of `tables` that fits the console, or else the last table, with lines of any length.

    Returns the headers of the columns that only wider tables have; the last table has every value.
    """
    unbroken = console.options.update(max_width=_UNLIMITED)
    width = console.width
    needed = [(table, Measurement.get(console, unbroken, table).maximum) for table in tables]
    table, own = next((each for each in needed if each[1] <= width), needed[-1])
    console.width = max(width, own)
    console.print(table)
    console.width = width
    if table is needed[-1][0]:
        return []
    shown = {column.header for column in table.columns}
    return [str(column.header) for column in needed[0][0].columns if column.header not in shown]
