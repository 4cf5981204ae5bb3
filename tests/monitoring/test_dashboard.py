"""Tests of the dashboard: what each panel shows of a simulated cluster, by the real Prometheus, and how it is drawn."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from generators.dashboard.grafana import dashboard
from generators.dashboard.panel import Panel
from generators.dashboard.picture import series_name
from generators.dashboard.promql import MOST_LINES
from generators.dashboard.rows import ROWS
from generators.recorded import dcgm
from tests.monitoring.figures import EXPECTED, Figures
from tests.monitoring.simulated_cluster import (
    A100,
    CLUSTER,
    CROWD,
    EVERY,
    FIRST,
)
from tests.monitoring.tools import (
    VARIABLES,
    Simulated,
    as_grafana_asks,
    result,
)


async def shown(simulated: Simulated, panel: Panel, **chosen: str) -> Figures:
    """Return what a panel shows, at the end of the time, of what is chosen."""
    figures: Figures = {}
    for query in panel.queries:
        for each in await result(simulated.ask, as_grafana_asks(query.promql, **chosen), time=f"{simulated.end}"):
            figures[series_name(panel, query, each["metric"])] = float(each["value"][1])
    return figures


PANELS = [(row, panel) for row, panels in ROWS.items() for panel in panels]


@pytest.mark.asyncio(loop_scope="module")
async def test_every_panel_shows_what_is_so(simulated: Simulated) -> None:
    """No GPU counts twice, also in MIG mode; a node of which nothing is known does not count as one without load."""
    figures = {(row, panel.title): await shown(simulated, panel, cluster=CLUSTER, piece="20") for row, panel in PANELS}
    assert figures.keys() == EXPECTED.keys()
    wrong = {key: (figures[key], right) for key, right in EXPECTED.items() if figures[key] != pytest.approx(right)}
    assert wrong == {}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("row", "panel"), PANELS)
async def test_every_panel_honours_the_variables(simulated: Simulated, row: str, panel: Panel) -> None:
    """Where nothing is what was chosen, there is nothing to show; extender and partitioner are of a cluster alone."""
    of_cluster = row in {"Scheduler extender", "Partitioner"}
    of_pods = row in {"Namespaces", "Pods"}
    for variable in VARIABLES[:1] if of_cluster else VARIABLES if of_pods else VARIABLES[:-1]:
        figures = await shown(simulated, panel, **{variable: "none"})
        assert not any(figures.values()), (variable, figures)
        assert await shown(simulated, panel) != figures


@pytest.mark.asyncio(loop_scope="module")
async def test_a_model_has_its_mig_instances(simulated: Simulated) -> None:
    """The choice of a model, a node or a GPU leaves what is of it; a node is of the models of its GPUs."""
    instances = panel_called("MIG instances")
    assert await shown(simulated, instances, cluster=CLUSTER, model="NVIDIA A100-SXM4-40GB") == {"": 2}
    assert await shown(simulated, instances, cluster=CLUSTER, model="NVIDIA L4") == {"": 0}
    gpus, errors = panel_called("GPUs"), panel_called("Errors of the API server")
    assert await shown(simulated, gpus, cluster=CLUSTER, model="NVIDIA L4") == {"": 2}
    assert await shown(simulated, gpus, cluster=CLUSTER, node="shared", gpu=FIRST) == {"": 1}
    assert await shown(simulated, errors, cluster=CLUSTER, model="NVIDIA L4") == {}
    assert len(await shown(simulated, errors, cluster=CLUSTER, gpu=FIRST)) == 2


def panel_called(title: str) -> Panel:
    """Return the only panel of a title."""
    (panel,) = (panel for _, panel in PANELS if panel.title == title)
    return panel


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("row", "panel"), [(row, panel) for row, panel in PANELS if panel.kind == "timeseries"])
async def test_no_panel_draws_more_lines_than_people_tell_apart(simulated: Simulated, row: str, panel: Panel) -> None:
    """Of a cluster of many nodes, models, teams and sizes 20 lines at most are drawn over all of the time."""
    promql = as_grafana_asks(panel.queries[0].promql, cluster=CROWD)
    span = {"start": f"{simulated.end - 2 * EVERY}", "end": f"{simulated.end}", "step": f"{EVERY}"}
    answer = await simulated.ask("query_range", query=promql, **span)
    drawn = len(answer["data"]["result"])
    assert drawn <= MOST_LINES
    if row != "Scheduler extender":
        assert drawn, "nothing was drawn, so that nothing was tested"


@pytest.mark.asyncio(loop_scope="module")
async def test_boards_for_dcgm_exporter_find_its_names_and_labels(simulated: Simulated) -> None:
    """A GPU has its series, and each container on it another one; of MIG instances there is none."""
    series = {
        (name, each["metric"]["Hostname"], each["metric"]["gpu"], each["metric"].get("pod", "")): each
        for name, promql in dcgm()
        for each in await result(simulated.ask, promql, time=f"{simulated.end}")
        if each["metric"]["cluster"] == CLUSTER
    }
    gpu = {
        "cluster": CLUSTER,
        "instance": "shared:8080",
        "gpu": "0",
        "device": "nvidia0",
        "UUID": FIRST,
        "modelName": A100,
        "Hostname": "shared",
        "hostname": "shared",
    }
    holder = {"namespace": "team", "pod": "trainer", "container": "main"}
    assert series["DCGM_FI_DEV_FB_USED", "shared", "0", ""]["metric"] == gpu
    exported = {f"exported_{label}": value for label, value in holder.items()}
    assert series["DCGM_FI_DEV_FB_USED", "shared", "0", "trainer"]["metric"] == gpu | holder | exported
    assert {key[1:]: float(each["value"][1]) for key, each in series.items() if key[0] == "DCGM_FI_DEV_FB_FREE"} == {
        ("shared", "0", ""): 10 * 1024,
        ("shared", "1", ""): 40 * 1024,
        ("mig", "0", ""): 20 * 1024,
        ("mps", "0", ""): 30 * 1024,
        ("mps", "1", ""): 40 * 1024,
        ("turns", "0", ""): 18 * 1024,
        ("turns", "1", ""): 24 * 1024,
    }
    used = {key[1:]: float(each["value"][1]) for key, each in series.items() if key[0] == "DCGM_FI_DEV_FB_USED"}
    assert used == {
        ("shared", "0", ""): 30 * 1024,
        ("shared", "0", "trainer"): 20 * 1024,
        ("shared", "1", ""): 0,
        ("mps", "0", ""): 10 * 1024,
        ("mps", "0", "sleeper"): 10 * 1024,
        ("mps", "1", ""): 0,
        ("turns", "0", ""): 6 * 1024,
        ("turns", "0", "notebook"): 6 * 1024,
        ("turns", "1", ""): 0,
        ("mig", "0", ""): 20 * 1024,
        ("claims", "0", "limited"): 2 * 1024,
        ("claims", "0", "unlimited"): 1024,
    }
    busy = {key[1:]: float(each["value"][1]) for key, each in series.items() if key[0] == "DCGM_FI_DEV_GPU_UTIL"}
    assert {key: value for key, value in busy.items() if value} == {
        ("shared", "0", ""): 75,
        ("shared", "0", "trainer"): 50,
        ("turns", "0", ""): 25,
        ("turns", "0", "notebook"): 25,
        ("claims", "0", "limited"): 25,
        ("claims", "0", "unlimited"): 25,
    }


# ---------------------------------------------------------------------- as Grafana draws it

FIELDS: list[tuple[Panel, dict[str, Any]]] = list(
    zip(
        (panel for panels in ROWS.values() for panel in panels),
        (each["fieldConfig"]["defaults"] for each in json.loads(dashboard())["panels"] if each["type"] != "row"),
        strict=True,
    )
)
"""Each panel, with the range and the colors that Grafana is told."""
COUNTS = [(panel.title, field) for panel, field in FIELDS if panel.kind == "stat"]
GAUGES = [(panel.title, field) for panel, field in FIELDS if panel.kind == "gauge"]
PARTS = [(panel.title, field) for panel, field in FIELDS if panel.unit == "percentunit" and panel.kind != "heatmap"]
WRONG = {
    "GPUs that cannot be allocated",
    "GPUs that do not respond",
    "Containers over their limit",
    "GPUs that MPS does not serve",
    "Faulty GPUs",
}
"""What is no good in any number."""

OF_GRAFANA = {"steps": [{"color": "green", "value": None}, {"color": "red", "value": 80}]}
"""The colors of a panel that names none."""


def color(field: Mapping[str, Any], figure: float) -> str:
    """Return the color in which Grafana draws a number: that of the last step that it has reached."""
    steps = field.get("thresholds", OF_GRAFANA)["steps"]
    return str([step["color"] for step in steps if step["value"] is None or step["value"] <= figure][-1])


@pytest.mark.parametrize(("row", "panel"), PANELS)
def test_each_panel_says_what_it_shows(row: str, panel: Panel) -> None:
    """In sentences that Grafana shows beside the title, and no other panel has."""
    assert panel.description.endswith(".")
    assert [each.title for _, each in PANELS if each.description == panel.description] == [panel.title], row


@pytest.mark.parametrize(("title", "field"), COUNTS)
def test_panels_are_red_only_if_something_is_wrong(title: str, field: dict[str, Any]) -> None:
    """Thousands of healthy GPUs are no alarm; a single one that pods cannot get is."""
    good, bad = ("green", "red") if title in WRONG else ("blue", "blue")
    assert [color(field, figure) for figure in (0, 1, 79, 80, 2400)] == [good, bad, bad, bad, bad]


@pytest.mark.parametrize(("title", "field"), PARTS)
def test_a_part_is_drawn_as_a_part_of_all(title: str, field: dict[str, Any]) -> None:
    """What is 42 % full does not look full. Only of its limit a container can use more than all."""
    assert field["min"] == 0
    assert field.get("max") == (None if title == "Memory in use, of the limit" else 1)


@pytest.mark.parametrize(("title", "field"), GAUGES)
def test_a_gauge_has_one_color(title: str, field: dict[str, Any]) -> None:
    """GPUs that are in use are what they are there for: no part is good or bad."""
    assert {color(field, figure) for figure in (0.0, 0.42, 1.0)} == {"blue"}, title
