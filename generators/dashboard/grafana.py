"""The dashboard as Grafana imports it."""

import json
from collections.abc import Iterator
from typing import Any

from generators.dashboard.panel import STATUS, Panel
from generators.dashboard.rows import ROWS
from generators.pages import DOCUMENTS

FILE = DOCUMENTS.parent / "charts/gpushare/files/dashboard.json"

_WIDTH = 24
"""Columns of Grafana's grid."""
_HEIGHT = 7
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SERVED = "gpushare_gpu_info"
"""The metric that the choices of variables are from."""
_OF_NODES = 'cluster=~"$cluster", node=~"$node"'


def dashboard() -> str:
    """Return the dashboard as Grafana imports it."""
    return (
        json.dumps(
            {
                "title": "gpushare",
                "uid": "gpushare",
                "tags": ["gpu"],
                "schemaVersion": 39,
                "refresh": "30s",
                "time": {"from": "now-3h", "to": "now"},
                "templating": {"list": list(_variables())},
                "panels": _panels(),
            },
            indent=1,
        )
        + "\n"
    )


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus"}
    yield _variable("cluster", f"label_values({_SERVED}, cluster)")
    yield _variable("node", f'label_values({_SERVED}{{cluster=~"$cluster"}}, node)')
    # A MIG instance is of the model of its GPU.
    yield _variable("model", f"label_values({_SERVED}{{{_OF_NODES}}}, product)", "/^(.*?)(?: MIG .*)?$/")
    chosen = f'{_SERVED}{{{_OF_NODES}, product=~"$model( MIG .*)?"}}'
    named = f'query_result(label_join({chosen}, "name", " GPU ", "node", "index"))'
    yield {**_variable("gpu", named, '/[{,]name="(?<text>[^"]+)".*uuid="(?<value>[^"]+)"/'), "label": "GPU"}
    yield _variable("namespace", f"label_values(gpushare_container_units{{{_OF_NODES}}}, namespace)")
    size = {"text": "16", "value": "16"}
    label = "size of a pod, GiB"
    yield {"name": "piece", "label": label, "type": "textbox", "query": "16", "current": size, "options": [size]}


def _variable(name: str, query: str, regex: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "regex": regex,
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    y = 0
    for title, panels in ROWS.items():
        made.append(
            {"type": "row", "title": title, "id": len(made) + 1, "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1}}
        )
        y, x = y + 1, 0
        for panel in panels:
            if x + panel.width > _WIDTH:
                x, y = 0, y + _HEIGHT
            made.append(_panel(panel, len(made) + 1, {"x": x, "y": y, "w": panel.width, "h": _HEIGHT}))
            x += panel.width
        y += _HEIGHT
    return made


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "id": number,
        "gridPos": place,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": _field(panel), "overrides": _overrides(panel)},
        **_options(panel),
        "targets": [_target(panel, number) for number in range(len(panel.queries))],
    }


def _target(panel: Panel, number: int) -> dict[str, Any]:
    query = panel.queries[number]
    target = {"refId": _ref(number), "expr": query.promql}
    match panel.kind:
        case "table":
            return {**target, "format": "table", "instant": True}
        case "heatmap":
            return {**target, "format": "heatmap", "legendFormat": query.name}
        case _:
            return {**target, "legendFormat": query.name}


def _ref(number: int) -> str:
    return chr(ord("A") + number)


def _column(panel: Panel, number: int) -> str:
    """Return what Grafana calls the values of a query of a table."""
    return f"Value #{_ref(number)}" if len(panel.queries) > 1 else "Value"


def _field(panel: Panel) -> dict[str, Any]:
    """Return unit, range and colors of a panel; where colors are left to Grafana, 80 and more is red."""
    if panel.kind == "table":
        return {"custom": {"filterable": True}}
    if panel.kind == "heatmap":
        return {}
    steps: list[dict[str, str | float | None]] = [{"color": "blue", "value": None}]
    if panel.wrong_from is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.wrong_from}]
    return {
        "unit": panel.unit,
        "min": 0,
        **({} if panel.most is None else {"max": panel.most}),
        **({"thresholds": {"mode": "absolute", "steps": steps}} if panel.kind in STATUS else {}),
    }


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """Return the units of the columns of a table."""
    return [
        {"matcher": {"id": "byName", "options": query.name}, "properties": [{"id": "unit", "value": query.unit}]}
        for query in panel.queries
        if query.unit
    ]


def _options(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case "table":
            return {"options": {"showHeader": True}, "transformations": _columns(panel)}
        case "heatmap":
            axis = {"unit": panel.unit, "reverse": False}
            color = {"mode": "scheme", "scheme": "Blues", "steps": 64}
            return {"options": {"calculate": False, "yAxis": axis, "color": color}}
        case _:
            return {}


def _columns(panel: Panel) -> list[dict[str, Any]]:
    """Return how Grafana makes one table of all queries: labels come first, and each query is a column."""
    columns = {_column(panel, number): query.name for number, query in enumerate(panel.queries)}
    headings = {**panel.by, **{column: name for column, name in columns.items() if name}}
    hidden = ["Time", *(column for column, name in columns.items() if not name)]
    organized = {
        "excludeByName": dict.fromkeys(hidden, True),
        "indexByName": {name: place for place, name in enumerate(headings)},
        "renameByName": headings,
    }
    return [{"id": "merge", "options": {}}, {"id": "organize", "options": organized}]
