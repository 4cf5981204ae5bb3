"""The picture of the dashboard in docs/dashboard.md; `python -m generators.dashboard.picture` writes it.

It is no picture of Grafana: each panel's query is evaluated by Prometheus over what it has scraped from a simulated
cluster, and drawn here.
"""

import asyncio
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from generators.dashboard.panel import Panel, Query
from generators.dashboard.rows import ROWS
from generators.monitored import SECONDS, Ask, scraped
from generators.pages import DOCUMENTS
from gpushare_plugin.base.log.form import configure_log

PICTURE = DOCUMENTS / "pictures" / "dashboard.svg"

BLANK = "no data"
"""What a panel without any series says."""

_STEP = 5
"""Seconds between the points of a line."""
_COLUMN, _GRID, _GAP, _TITLE = 50, 24, 8, 30
_HEIGHTS = {"stat": 90, "gauge": 90, "table": 150}
_HEIGHT = 190
_MOST_ROWS, _CELL = 6, 145
_LEFT, _TOP, _LEGEND_LINE, _MOST_LINES = 54, 26, 14, 4
_COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#17becf", "#bcbd22")
_VARIABLES = {
    **dict.fromkeys(("$cluster", "$node", "$model", "$gpu", "$namespace"), ".*"),
    "$piece": "16",
    "$__rate_interval": "15s",
    "$__range": f"{SECONDS}s",
    "$__interval_ms": "1000",
    "$__interval": "1s",
}


class Line(NamedTuple):
    """A series of a panel: its name, and its values by the second."""

    name: str
    values: Mapping[float, float]


async def lines(ask: Ask, panel: Panel, end: float) -> list[Line]:
    """Return what the queries of a panel come to, over the time until `end`, in seconds since 1970."""
    start = end - SECONDS
    found = []
    for query in panel.queries:
        promql = query.promql
        for variable, value in _VARIABLES.items():
            promql = promql.replace(variable, value)
        answer = await ask("query_range", query=promql, start=f"{start}", end=f"{end}", step=f"{_STEP}")
        found += [
            Line(series_name(panel, query, each["metric"]), dict(_points(each["values"], start)))
            for each in answer["result"]
        ]
    return found


def series_name(panel: Panel, query: Query, labels: Mapping[str, str]) -> str:
    """Return what a panel calls a series; in a table the labels of its row, and the column."""
    if panel.kind == "table":
        row = " ".join(labels[label] for label in panel.by if labels.get(label) and label != "cluster")
        return f"{row} | {query.name}"
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), query.name)


def _points(values: Sequence[Any], start: float) -> Iterator[tuple[float, float]]:
    for at, value in values:
        if value != "NaN":
            yield at - start, float(value)


def drawn(rows: Mapping[str, Sequence[tuple[Panel, Sequence[Line]]]]) -> str:
    """Return the picture of these rows of panels."""
    parts, top = list[str](), _GAP
    for title, panels in rows.items():
        parts.append(f'<text x="{_GAP}" y="{top + 18}" class="row">{escape(title)}</text>')
        top += _TITLE
        column, height = 0, 0
        for panel, found in panels:
            if column + panel.width > _GRID:
                column, top, height = 0, top + height + _GAP, 0
            place = f"translate({_GAP + column * _COLUMN},{top})"
            parts.append(f'<g transform="{place}">{"".join(_panel(panel, found))}</g>')
            column, height = column + panel.width, max(height, _HEIGHTS.get(panel.kind, _HEIGHT))
        top += height + _GAP
    width = _GRID * _COLUMN + _GAP
    head = f'<svg viewBox="0 0 {width} {top}" xmlns="http://www.w3.org/2000/svg" role="img">'
    style = (
        "text{font-family:system-ui,sans-serif;font-size:11px;fill:#1f2328}.row{font-size:15px;font-weight:bold}"
        ".title{font-weight:bold}.value{font-size:24px}.axis{fill:#57606a;font-size:10px}"
        "polyline{fill:none;stroke-width:1.5}"
    )
    title = "<title>The panels of the dashboard, drawn from a simulated cluster</title>"
    paper = f'<rect width="{width}" height="{top}" fill="#f6f8fa"/>'
    return "\n".join([head, title, f"<style>{style}</style>", paper, *parts, "</svg>\n"])


def _panel(panel: Panel, found: Sequence[Line]) -> Iterator[str]:
    width, height = panel.width * _COLUMN - _GAP, _HEIGHTS.get(panel.kind, _HEIGHT)
    yield f'<rect width="{width}" height="{height}" rx="4" fill="#fff" stroke="#d0d7de"/>'
    yield f'<text x="8" y="17" class="title">{escape(panel.title)}</text>'
    known = [line for line in found if line.values]
    if not known:
        yield f'<text x="{width / 2:g}" y="{height / 2:g}" text-anchor="middle" class="axis">{BLANK}</text>'
        return
    match panel.kind:
        case "timeseries":
            yield from _curves(panel, known, width, height)
        case "table":
            yield from _table(panel, known, width)
        case "heatmap":
            yield from _cells(known, width, height)
        case _:
            yield from _numbers(panel, known, width)


def _numbers(panel: Panel, found: Sequence[Line], width: int) -> Iterator[str]:
    """Draw the last value of each series."""
    for number, line in enumerate(found):
        x = (2 * number + 1) * width / len(found) / 2
        value = line.values[max(line.values)]
        yield f'<text x="{x:g}" y="55" text-anchor="middle" class="value">{_amount(value, panel.unit)}</text>'
        yield f'<text x="{x:g}" y="76" text-anchor="middle" class="axis">{escape(line.name)}</text>'


def _curves(panel: Panel, found: Sequence[Line], width: int, height: int) -> Iterator[str]:
    shown = min(len(found), _MOST_LINES)
    bottom = height - 22 - _LEGEND_LINE * shown
    most = panel.most or max(max(line.values.values()) for line in found) or 1.0
    for part in (0.0, 0.5, 1.0):
        y = bottom - part * (bottom - _TOP)
        yield f'<path d="M{_LEFT} {y:g}H{width - 8}" stroke="#eaeef2"/>'
        amount = _amount(part * most, panel.unit)
        yield f'<text x="{_LEFT - 4}" y="{y + 4:g}" text-anchor="end" class="axis">{amount}</text>'
    for second in (0, SECONDS // 2, SECONDS):
        x = _LEFT + second / SECONDS * (width - 20 - _LEFT)
        yield f'<text x="{x:g}" y="{bottom + 14}" text-anchor="middle" class="axis">{second} s</text>'
    for number, line in enumerate(found):
        color = _COLORS[number % len(_COLORS)]
        points = _corners(
            (f"{_LEFT + second / SECONDS * (width - 20 - _LEFT):.0f}", f"{bottom - value / most * (bottom - _TOP):.0f}")
            for second, value in sorted(line.values.items())
        )
        yield f'<polyline points="{points}" stroke="{color}"/>'
        if number < shown:
            y = bottom + 14 + _LEGEND_LINE * (number + 1)
            more = f" and {len(found) - shown} more" if number == shown - 1 and len(found) > shown else ""
            yield f'<path d="M{_LEFT} {y - 4}h12" stroke="{color}" stroke-width="3"/>'
            yield f'<text x="{_LEFT + 16}" y="{y}" class="axis">{escape(line.name or panel.title)}{more}</text>'


def _table(panel: Panel, found: Sequence[Line], width: int) -> Iterator[str]:
    """Draw the last values of the first rows, without columns that no row has a value of."""
    rows: dict[str, dict[str, float]] = {}
    for line in found:
        row, _, column = line.name.partition(" | ")
        rows.setdefault(row, {})[column] = line.values[max(line.values)]
    shown = [query for query in panel.queries if query.name and any(query.name in row for row in rows.values())]
    places = {query.name: width - 8 - _CELL * number for number, query in enumerate(reversed(shown))}
    for query in shown:
        yield f'<text x="{places[query.name]}" y="36" text-anchor="end" class="axis">{escape(query.name)}</text>'
    named = {row: values for row, values in rows.items() if not shown or any(each.name in values for each in shown)}
    for number, (row, values) in enumerate([*named.items()][:_MOST_ROWS]):
        y = 56 + 16 * number
        more = f" and {len(named) - _MOST_ROWS} more" if number == _MOST_ROWS - 1 and len(named) > _MOST_ROWS else ""
        yield f'<text x="8" y="{y}" class="axis">{escape(row)}{more}</text>'
        for query in (each for each in shown if each.name in values):
            amount = _amount(values[query.name], query.unit)
            yield f'<text x="{places[query.name]}" y="{y}" text-anchor="end" class="axis">{amount}</text>'


def _cells(found: Sequence[Line], width: int, height: int) -> Iterator[str]:
    """Draw how many there are between two edges, the darker the more; equal cells that follow are one."""
    edges = sorted(found, key=lambda line: float(line.name))
    tall = (height - _TOP - 20) / len(edges)
    wide = (width - 8 - _LEFT) / (SECONDS // _STEP + 1)
    most = max(max(line.values.values()) for line in edges) or 1.0
    for number, line in enumerate(edges):
        y = height - 14 - tall * (number + 1)
        edge = _amount(float(line.name), "percentunit")
        yield f'<text x="{_LEFT - 4}" y="{y + 14:.0f}" text-anchor="end" class="axis">{edge}</text>'
        below = edges[number - 1].values if number else {}
        counts = [(at, value - below.get(at, 0.0)) for at, value in sorted(line.values.items())]
        for count, run in groupby(counts, key=lambda each: each[1]):
            times = [at for at, _ in run]
            if count:
                x = _LEFT + wide * times[0] / _STEP
                size = f'width="{wide * len(times):.0f}" height="{tall - 1:.0f}"'
                yield f'<rect x="{x:.0f}" y="{y:.0f}" {size} fill="#1f77b4" opacity="{count / most:.2f}"/>'


def _corners(points: Iterable[tuple[str, str]]) -> str:
    """Return a line through points as SVG has it, without points that a level line passes through anyway."""
    there = [*points]
    heights = [height for _, height in there]
    kept = (
        f"{x},{height}"
        for number, (x, height) in enumerate(there)
        if not 0 < number < len(there) - 1 or not heights[number - 1] == height == heights[number + 1]
    )
    return " ".join(kept)


def _amount(value: float, unit: str) -> str:
    """Return a value as Grafana shows its unit."""
    match unit:
        case "percentunit":
            return f"{100 * value:.0f} %"
        case "bytes":
            return f"{value / 2**30:.1f} GiB"
        case "s":
            return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.1f} ms"
        case "ops":
            return f"{value:.2g}/s"
        case _:
            return f"{value:.3g}"


async def picture() -> str:
    """Run the cluster and return the picture of what Prometheus has seen."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="gs-") as folder:
        async with scraped(Path(folder)) as ask:
            end = time.time()
            rows = {
                title: [(panel, await lines(ask, panel, end)) for panel in panels] for title, panels in ROWS.items()
            }
    return drawn(rows)


if __name__ == "__main__":
    configure_log("console", "error")
    PICTURE.write_text(asyncio.run(picture()))
