"""Tables of the slices of partitioned nodes, and of the pods waiting for slices."""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise

from gpushare_plugin.observe.cluster.columns import Headed, Style, Table
from gpushare_plugin.observe.cluster.report import ClusterReport, KeptFor, NodeUse, SliceUse, WaitingUse

_MOST_WAITING = 20
"""The most waiting pods in the table without `detailed`."""

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def slices(report: ClusterReport, style: Style, now: datetime, *, detailed: bool = False) -> Iterator[str]:
    """Yield a table of slices and a table of waiting pods, each where there are some.

    The table of slices has a row for each size on a node or, with `detailed`, on a GPU. `now` is an aware time.
    """
    nodes = [node for node in report.nodes if node.partitioning is not None]
    if nodes:
        yield ""
        yield Headed("Slices of partitioned nodes:")
        yield from (_by_gpu(nodes, now).lines(style) if detailed else _by_node(nodes).lines(style))
    if report.waiting:
        yield ""
        yield Headed("Pods that wait for slices:")
        shown = report.waiting if detailed else report.waiting[:_MOST_WAITING]
        yield from Table(
            ["NAME", "NAMESPACE", "SLICES", "WAITS", "WHERE"],
            [
                [each.pod, each.namespace, ", ".join(each.resources), age(each.since, now), kept_where(each, now)]
                for each in shown
            ],
        ).lines(style)
        if len(shown) < len(report.waiting):
            yield f"… and {len(report.waiting) - len(shown):,} more; -d shows all"


def _by_node(nodes: list[NodeUse]) -> Table:
    """Return a row for each size on a node, and a row for each node without slices."""
    indexes = sorted({each.index for node in nodes for each in node.slices})
    rows = []
    for node in nodes:
        sizes: dict[str, dict[int, SliceUse]] = {}
        for each in node.slices:
            sizes.setdefault(each.name, {})[each.index] = each
        for name, gpus in sizes.items() or [("none", {})]:
            cells = [_counts(gpus[index]) if index in gpus else "-" for index in indexes]
            rows.append([node.name, name, *cells, str(sum(len(each.kept) for each in gpus.values()))])
    after = ["KEPT"]
    headers = ["NAME", "SLICE", *(f"GPU{index}(Held/Idle/Wanted)" for index in indexes), *after]
    return Table(headers, rows, (), ["NAME", "SLICE", *(f"GPU{index}" for index in indexes), *after])


def _counts(use: SliceUse) -> str:
    return f"{use.held}/{use.idle}/{use.wanted}"


def _by_gpu(nodes: list[NodeUse], now: datetime) -> Table:
    rows = [
        [
            *(node.name, f"GPU{each.index}", each.name, str(each.held), str(each.idle), str(each.wanted)),
            _counted(_kept(kept, now) for kept in each.kept) or "-",
        ]
        for node in nodes
        for each in node.slices
    ]
    rows += [[node.name, "-", "none", "0", "0", "0", "-"] for node in nodes if not node.slices]
    return Table(["NAME", "GPU", "SLICE", "HELD", "IDLE", "WANTED", "KEPT FOR"], rows)


def _kept(kept: KeptFor, now: datetime) -> str:
    return f"{'/'.join(filter(None, (kept.namespace, kept.pod)))} ({age(kept.since, now)})"


def kept_where(pod: WaitingUse, now: datetime) -> str:
    """Return where slices are kept for a pod, in words."""
    if pod.node is None or pod.kept_since is None:
        return "nowhere; gpushare explain says why"
    doing = "offered to it" if pod.offered else "being made"
    gpus = _counted(f"GPU{index}" for index in pod.gpus)
    return f"{pod.node} {gpus}: {doing}, kept for {age(pod.kept_since, now)}"


def _counted(texts: Iterable[str]) -> str:
    """Return the distinct texts, separated by commas, with the count of repeated texts."""
    return ", ".join(f"{text} x{count}" if count > 1 else text for text, count in Counter(texts).items())


def age(since: datetime, now: datetime) -> str:
    """Return the time from `since` to `now` in its largest unit and the next one, like kubectl: `2d3h`, `5m`.

    A time in the future is `0s`.
    """
    seconds = max(0, int((now - since).total_seconds()))
    for (unit, length), (smaller, part) in pairwise(_UNITS):
        if seconds >= length:
            rest = seconds % length // part
            return f"{seconds // length}{unit}" + (f"{rest}{smaller}" if rest else "")
    return f"{seconds}s"
