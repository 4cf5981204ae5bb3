"""Tests of the dashboard with Grafana's own packages; `make check-dashboard` installs these and runs the tests.

`make test` skips them: the packages and what they need are 200 MB from the npm registry.
"""

import asyncio
import json
import os
import re
import shutil
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from generators.dashboard.grafana import dashboard
from generators.dashboard.panel import Panel
from generators.dashboard.rows import ROWS
from tests.monitoring.figures import EXPECTED
from tests.monitoring.simulated_cluster import CLUSTER
from tests.monitoring.tools import Simulated, as_grafana_asks, result

FOLDER = os.environ.get("GRAFANA_PACKAGES", "")
"""Where npm has installed the packages."""
HERE = Path(__file__).parent / "grafana"
pytestmark = pytest.mark.skipif(not FOLDER, reason="Grafana's own packages check the dashboard: make check-dashboard")

DASHBOARD: dict[str, Any] = json.loads(dashboard())
OF_PANELS = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
PANELS = [(row, panel) for row, panels in ROWS.items() for panel in panels]
TABLES = [(row, panel, made) for (row, panel), made in zip(PANELS, OF_PANELS, strict=True) if panel.kind == "table"]
SHOWN = {
    "bytes": (1.5 * 1024**3, "1.50 GiB"),
    "percentunit": (0.425, "42.5%"),
    "s": (0.05, "50 ms"),
    "ops": (2, "2 ops/s"),
    "none": (3, "3"),
    "short": (1500, "1.50 K"),
}
"""Numbers as people see them, by unit."""


async def run(*command: str | Path, given: bytes = b"") -> bytes:
    """Return what a program prints in the folder of the packages; fails where it does not end with 0."""
    program = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=FOLDER)
    said, wrong = await program.communicate(given)
    assert program.returncode == 0, (said + wrong).decode()
    return said


async def drawn(panels: Sequence[Any]) -> dict[str, Any]:
    """Return what Grafana makes of panels with their answers, and of numbers with units."""
    script = Path(FOLDER) / "drawn.cjs"
    shutil.copy(HERE / script.name, script)
    units = {unit: number for unit, (number, _) in SHOWN.items()}
    made: dict[str, Any] = json.loads(
        await run("node", script, given=json.dumps({"panels": panels, "units": units}).encode())
    )
    return made


async def test_the_dashboard_has_the_types_of_grafana() -> None:
    """No field of the dashboard, of a panel or of its options is misspelt or of another type, says TypeScript."""
    panels = [{key: part for key, part in each.items() if key not in {"options", "targets"}} for each in OF_PANELS]
    rows = [each for each in DASHBOARD["panels"] if each["type"] == "row"]
    options = [(each["type"], each["options"]) for each in OF_PANELS if "options" in each]
    text = [
        "import type { DashboardJson, OptionsJson, PanelJson, RowJson } from './types';",
        f"export const whole: DashboardJson = {json.dumps(DASHBOARD | {'panels': []})};",
        *(f"export const panel{number}: PanelJson = {json.dumps(each)};" for number, each in enumerate(panels)),
        *(f"export const row{number}: RowJson = {json.dumps(each)};" for number, each in enumerate(rows)),
        *(
            f"export const options{number}: OptionsJson['{kind}'] = {json.dumps(each)};"
            for number, (kind, each) in enumerate(options)
        ),
    ]
    shutil.copy(HERE / "types.d.ts", FOLDER)
    (Path(FOLDER) / "dashboard.ts").write_text("\n".join(text))
    strict = ("--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext")
    await run("node_modules/.bin/tsc", *strict, "dashboard.ts")


async def test_grafana_knows_the_units() -> None:
    """Every unit is one of Grafana's, which shows numbers as meant."""
    made = await drawn([])
    assert made["units"] == {unit: text for unit, (_, text) in SHOWN.items()}
    named = {panel.unit for _, panel in PANELS} | {query.unit for _, panel in PANELS for query in panel.queries}
    assert named - {""} == SHOWN.keys()
    assert named - {""} <= set(made["known"])


@pytest.mark.asyncio(loop_scope="module")
async def test_grafana_makes_one_table_of_all_queries(simulated: Simulated) -> None:
    """It has the headings that are meant, a row for what belongs together, and the figures in its cells."""
    asked = [
        {"transformations": made["transformations"], "frames": await frames(simulated, panel)}
        for _, panel, made in TABLES
    ]
    for (row, panel, _), (found,) in zip(TABLES, (await drawn(asked))["tables"], strict=True):
        columns = [query.name for query in panel.queries if query.name]
        assert found["columns"] == [*panel.by.values(), *columns], panel.title
        expected = EXPECTED[row, panel.title]
        rows = [dict(zip(found["columns"], each, strict=True)) for each in found["rows"]]
        seen = {_name(panel, each, column): each[column] for each in rows for column in columns}
        figures = {name: value for name, value in seen.items() if value is not None}
        assert figures == pytest.approx({name: value for name, value in expected.items() if not name.endswith(" | ")})
        labels = {name for name in expected if len(columns) == len(panel.queries) or name.endswith(" | ")}
        assert len(rows) == len({name.partition(" | ")[0] for name in labels}), panel.title


def _name(panel: Panel, cells: dict[str, Any], column: str) -> str:
    """Return the name of a cell in the figures: with the labels that its query has."""
    (promql,) = (query.promql for query in panel.queries if query.name == column)
    (by, *_) = re.findall(r"by \(([^)]*)\)", promql)
    labels = [label for label in panel.by if label in by.split(", ") and label != "cluster"]
    return f"{' '.join(str(cells[panel.by[label]]) for label in labels)} | {column}"


async def frames(simulated: Simulated, panel: Panel) -> list[dict[str, Any]]:
    """Return the answers as Grafana's data source for Prometheus has those in the format of tables.

    A frame of a query has the time, a field for each label of any series, sorted, and the values, called by the query
    (`transformDFToTable` of @grafana/prometheus).
    """
    made = []
    for number, query in enumerate(panel.queries):
        ref = chr(ord("A") + number)
        promql = as_grafana_asks(query.promql, cluster=CLUSTER, piece="20")
        found = await result(simulated.ask, promql, time=f"{simulated.end}")
        labels = sorted({label for each in found for label in each["metric"]})
        value = f"Value #{ref}" if len(panel.queries) > 1 else "Value"
        fields = [
            {"name": "Time", "type": "time", "values": [1000 * each["value"][0] for each in found]},
            *(
                {"name": name, "type": "string", "values": [each["metric"].get(name, "") for each in found]}
                for name in labels
            ),
            {"name": value, "type": "number", "values": [float(each["value"][1]) for each in found]},
        ]
        made.append({"refId": ref, "fields": fields})
    return made
