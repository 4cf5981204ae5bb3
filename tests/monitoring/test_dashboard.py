"""Tests of the dashboard: what each panel shows of a simulated cluster, by the real Prometheus, and how it is drawn."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from generators.dashboard import ROWS, Panel, dashboard
from generators.dashboard_picture import series_name
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.claim_state import ClaimState
from gpushare_plugin.core.effect import not_in_effect
from gpushare_plugin.core.gpu import FailedGpu, Inventory
from gpushare_plugin.core.prepared_claim import ClaimId, PreparedClaim, PreparedDevice
from gpushare_plugin.core.resource import Durations, Standing
from gpushare_plugin.core.snapshot import ConfigStanding
from gpushare_plugin.core.usage import ContainerUsage, GpuUsage, Process, Stowaway, Usage
from gpushare_plugin.observe.exposition import exposition, extender_exposition, partitioner_exposition
from gpushare_plugin.observe.metrics.extender import ExtenderCounts, ExtenderView
from gpushare_plugin.observe.metrics.node import View
from gpushare_plugin.observe.metrics.partitioner import PartitionerCounts, PartitionerView
from tests.monitoring.tools import as_grafana_asks, prometheus, promtool, result
from tests.nodes import a_gpu, a_mig_node, a_node
from tests.snapshots import snapshot
from tests.unit.sharing.settings import GPU_MEM, memory, time_slicing

GIB = 1024**3
EVERY = 15
"""Seconds between two scrapes."""
SCRAPES = 20
BOUNDS = (0.01, 0.1)
"""Seconds: the buckets of the kubelet's calls here."""


def ninety_nine(lower: float, upper: float) -> float:
    """Return what Prometheus says of calls that are all in the bucket between these bounds."""
    return lower + 0.99 * (upper - lower)


REPLICAS = "nvidia.com/gpu"
FIRST, SECOND = a_gpu(0).uuid, a_gpu(1).uuid
MIG = a_mig_node(("3g.20gb", "1g.5gb"))

Labels = Mapping[str, str]
Figures = dict[str, float]
"""What a panel shows, by the names of its series."""


def took(calls: int) -> Durations:
    """Return so many calls of some 50 ms each."""
    return Durations(BOUNDS, (0, calls, 0), 0.05 * calls)


def standing(scrape: int) -> Standing:
    """Return a resource for which the kubelet called once before each scrape, and was refused once."""
    calls = {("Allocate", "OK"): took(scrape)}
    return Standing(registered=True, allocations=scrape, refusals={"Allocate": scrape}, calls=calls)


def shared(scrape: int) -> View:
    """Return a node of two GPUs by memory; one is in use, also by who should not, and one is faulty."""
    trainer = ContainerUsage("team", "trainer", "main", "uid", FIRST, GPU_MEM, 16, 16 * GIB, 20 * GIB, 0.5, 1)
    trainer = replace(trainer, effect=not_in_effect("it escaped"))
    usage = Usage(
        (
            GpuUsage(FIRST, 40 * GIB, 30 * GIB, 0.75, (Process(3), Process(7)), stowaways=(Stowaway(FIRST, 7),)),
            GpuUsage(SECOND, 40 * GIB, 0, 0.0, ()),
        ),
        (trainer,),
        held={(GPU_MEM, FIRST): 16},
    )
    made = replace(
        snapshot(memory(), 40960, 40960),
        unhealthy={SECOND: "XID 79"},
        waiting={FIRST: "pods hold it"},
        standings={GPU_MEM: standing(scrape)},
        config=ConfigStanding("config.yaml", 1.0),
        usage=usage,
        isolations_in_use={FIRST: "hami-core", SECOND: "hami-core"},
    )
    errors = {"server": 2 * scrape, "conflict": 0}
    return View(made, container_metrics=True, xids={(SECOND, "79"): 2}, api_errors=errors)


def with_mig() -> View:
    """Return a node whose one card is divided into two MIG instances; a pod has one, and uses half of the card."""
    held = MIG.instances[0].uuid
    usage = Usage(
        (GpuUsage(MIG.cards[0].uuid, memory_used=20 * GIB), GpuUsage(held, memory_used=4 * GIB)),
        held={("nvidia.com/mig-3g.20gb", held): 1},
    )
    made = snapshot({}, inventory=MIG, flags={"migStrategy": "mixed"})
    return View(replace(made, usage=usage, config=ConfigStanding("mig.yaml", 1.0, refused=True)))


def unobserved() -> View:
    """Return a node of which nothing is known but what it offers; another GPU of it does not respond."""
    inventory = Inventory(a_node(40960).cards, failed=(FailedGpu(1, "GPU is lost"),))
    return View(snapshot(time_slicing({"name": REPLICAS, "replicas": 4}), inventory=inventory))


def by_claim(scrape: int) -> View:
    """Return a node that gives two GPUs by claim: two claims have shares of one; a call and a refusal each scrape."""
    made = snapshot(memory(unit="GiB", isolation="mps"), 40960, 40960, dra={})
    shares = (share(FIRST, 10240), share(FIRST, 20480), replace(share(SECOND, 0), admin_access=True))
    claims = ClaimState(
        "gpu.gpushare.io",
        tuple(PreparedClaim(ClaimId("team", str(number), str(number)), (each,)) for number, each in enumerate(shares)),
        trouble="a gate is off",
        calls={("NodePrepareResources", "OK"): took(scrape)},
        refusals={"no-room": scrape},
        slices_written=2 * scrape,
        slices_mended=scrape,
    )
    usage = Usage((GpuUsage(FIRST, 40 * GIB), GpuUsage(SECOND, 40 * GIB)))
    return View(replace(made, claims=claims, usage=usage))


def share(gpu: str, memory_mib: int) -> PreparedDevice:
    """Return a share of a GPU."""
    return PreparedDevice("gpu", "claims", gpu.lower(), gpu, "memory", memory_mib=memory_mib, shares=1)


def extender(scrape: int) -> tuple[ExtenderView, ExtenderCounts]:
    """Return an extender that placed three pods before each scrape, refused one, and has promised two."""
    counts = ExtenderCounts()
    counts.requests.labels("filter", "done").inc(3 * scrape)
    counts.requests.labels("bind", "refused").inc(scrape)
    counts.refusals.labels("no_room").inc(scrape)
    for _ in range(3 * scrape):
        counts.durations.labels("filter", "200").observe(0.05)
    return ExtenderView(leads=True, ready=True, nodes=3, promises=2, cache_age=5.0), counts


def partitioner(scrape: int) -> tuple[PartitionerView, PartitionerCounts]:
    """Return a partitioner that makes slices, takes some back, and has three pods wait."""
    counts = PartitionerCounts()
    counts.made.labels("10gb").inc(2 * scrape)
    counts.taken_back.labels("10gb").inc(scrape)
    counts.refusals.labels("no_room").inc(scrape)
    for _ in range(scrape):
        counts.waits.observe(0.3)
    return PartitionerView(leads=True, ready=True, waiting=3, longest_wait=42.0), counts


def scraped(scrape: int) -> Iterator[tuple[Labels, bytes]]:
    """Yield the pages of all programs at one scrape, each with the labels of who is scraped."""
    for node, view in (
        ("shared", shared(scrape)),
        ("mig", with_mig()),
        ("unobserved", unobserved()),
        ("claims", by_claim(scrape)),
    ):
        yield {"node": node, "instance": f"{node}:8080"}, exposition(view, "")[1]
    yield {"instance": "extender:8081"}, extender_exposition(*extender(scrape), "")[1]
    standby = ExtenderView(leads=False, ready=False, nodes=3, cache_age=1.0), ExtenderCounts()
    yield {"instance": "standby:8081"}, extender_exposition(*standby, "")[1]
    yield {"instance": "partitioner:8082"}, partitioner_exposition(*partitioner(scrape), "")[1]


def samples(end: float) -> Iterator[str]:
    """Yield what Prometheus has of all scrapes until `end`, in seconds since 1970, in the format of OpenMetrics."""
    for scrape in range(SCRAPES):
        at = end - EVERY * (SCRAPES - 1 - scrape)
        for of_target, page in scraped(scrape):
            for each in (sample for family in parse_text(page.decode()) for sample in family.samples):
                labels = ",".join(f"{key}={json.dumps(value)}" for key, value in {**of_target, **each.labels}.items())
                yield f"{each.name}{{{labels}}} {each.value} {at}"
    yield "# EOF"


ONCE = 1 / EVERY
"""Something that happens once between two scrapes, by the second."""
GPU_0, GPU_1, WHOLE, PART = "shared GPU 0", "shared GPU 1", "mig GPU 0", "mig GPU 0:0"
CLAIMED_0, CLAIMED_1 = "claims GPU 0", "claims GPU 1"
TRAINER = "team/trainer main GPU 0"
IN_USE = {GPU_MEM: 16 / 80, "nvidia.com/mig-3g.20gb": 1.0, "nvidia.com/mig-1g.5gb": 0.0}

EXPECTED: dict[tuple[str, str], Figures] = {
    ("Cluster", "GPUs"): {"": 6},
    ("Cluster", "GPUs that cannot be allocated"): {"": 1},
    ("Cluster", "GPUs that do not respond"): {"": 1},
    ("Cluster", "Containers over their limit"): {"": 1},
    ("Cluster", "Memory of GPUs in use"): {"": 50 / 120},
    ("Cluster", "Units held by pods"): IN_USE,
    ("Nodes", "Units held by pods"): {
        f"{'shared' if name == GPU_MEM else 'mig'} {name}": part for name, part in IN_USE.items()
    },
    ("Nodes", "Memory in use"): {"shared": 30 / 80, "mig": 20 / 40},
    ("Nodes", "Newest config is in effect"): {"shared": 1, "mig": 0},
    ("Nodes", "Registered with the kubelet"): {f"shared {GPU_MEM}": 1},
    ("Nodes", "Duration of the kubelet's calls (99 %)"): {"shared Allocate": ninety_nine(*BOUNDS)},
    ("Nodes", "Calls of the kubelet refused"): {f"shared {GPU_MEM} Allocate": ONCE},
    ("Nodes", "Errors of the API server"): {"shared server": 2 * ONCE, "shared conflict": 0},
    ("GPUs", "Memory in use"): {GPU_0: 30 * GIB, GPU_1: 0, WHOLE: 20 * GIB, PART: 4 * GIB},
    ("GPUs", "Utilization"): {GPU_0: 0.75, GPU_1: 0},
    ("GPUs", "Units held by pods"): {
        f"{GPU_0} {GPU_MEM}": 16,
        f"{GPU_1} {GPU_MEM}": 0,
        f"{PART} nvidia.com/mig-3g.20gb": 1,
        "mig GPU 0:1 nvidia.com/mig-1g.5gb": 0,
    },
    ("GPUs", "Why it cannot be allocated"): {f"{GPU_1} fault": 1},
    ("GPUs", "Errors by XID"): {f"{GPU_1} XID 79": 2},
    ("GPUs", "Processes"): {GPU_0: 2, GPU_1: 0},
    ("GPUs", "Processes out of place"): {GPU_0: 1, **dict.fromkeys((GPU_1, WHOLE, PART, CLAIMED_0, CLAIMED_1), 0)},
    ("GPUs", "Containers by whether their limit is in effect"): {f"{GPU_0} not_in_effect": 1},
    ("GPUs", "Waits for pods to end"): {
        GPU_0: 1,
        **dict.fromkeys((GPU_1, WHOLE, PART, "mig GPU 0:1", "unobserved GPU 0", CLAIMED_0, CLAIMED_1), 0),
    },
    ("Pods", "Memory in use"): {TRAINER: 20 * GIB},
    ("Pods", "Memory in use, of the limit"): {TRAINER: 1.25},
    ("Pods", "Utilization"): {TRAINER: 0.5},
    ("Claims", "GPUs by claim"): {"claims": 2},
    ("Claims", "Shares that prepared claims have"): {CLAIMED_0: 2, CLAIMED_1: 1},
    ("Claims", "Memory held by claims"): {CLAIMED_0: 30 / 40, CLAIMED_1: 0},
    ("Claims", "Calls of the kubelet for claims"): {"claims NodePrepareResources OK": ONCE},
    ("Claims", "Duration of calls for claims (99 %)"): {"claims NodePrepareResources": ninety_nine(*BOUNDS)},
    ("Claims", "Claims refused"): {"claims no-room": ONCE},
    ("Claims", "ResourceSlices are as they should be"): {"claims": 0},
    ("Claims", "ResourceSlices written"): {"claims": 2 * ONCE},
    ("Claims", "ResourceSlices mended"): {"claims": ONCE},
    ("Scheduler extender", "Requests"): {"filter done": 3 * ONCE, "bind refused": ONCE},
    ("Scheduler extender", "Duration of requests (99 %)"): {"filter": ninety_nine(0.025, 0.05)},
    ("Scheduler extender", "Pods refused"): {
        "no_room": ONCE,
        **dict.fromkeys(("unfit", "not_leading", "bind_failed"), 0),
    },
    ("Scheduler extender", "Pods with a promise that are not bound"): {"": 2},
    ("Scheduler extender", "Age of what is known of the cluster"): {"": 5},
    ("Scheduler extender", "Extenders that are ready"): {"": 1},
    ("Partitioner", "Slices made"): {"10gb": 2 * ONCE},
    ("Partitioner", "Slices taken back"): {"10gb": ONCE},
    ("Partitioner", "Pods for which none can be made"): {"no_room": ONCE},
    ("Partitioner", "From a pod to its slice (99 %)"): {"": ninety_nine(0.25, 0.5)},
    ("Partitioner", "Pods that wait for slices"): {"": 3},
    ("Partitioner", "Longest wait of a pod"): {"": 42},
}
"""What each panel shows of the cluster above, by its row and title."""


async def test_every_panel_shows_what_is_so(tmp_path: Path) -> None:
    """No GPU counts twice, also in MIG mode; a node of which nothing is known does not count as one without load."""
    end = float(int(time.time()))  # Prometheus keeps nothing that is old
    (tmp_path / "samples").write_text("\n".join(samples(end)) + "\n")
    promtool("tsdb", "create-blocks-from", "openmetrics", tmp_path / "samples", tmp_path / "data")
    shown: dict[tuple[str, str], Figures] = {}
    async with prometheus(tmp_path) as ask:
        for row, panel in ((row, panel) for row, panels in ROWS.items() for panel in panels):
            found = await result(ask, as_grafana_asks(panel.query), time=f"{end}")
            shown[row, panel.title] = {series_name(panel, each["metric"]): float(each["value"][1]) for each in found}
    assert shown.keys() == EXPECTED.keys()
    wrong = {key: (shown[key], right) for key, right in EXPECTED.items() if shown[key] != pytest.approx(right)}
    assert wrong == {}


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
PARTS = [(panel.title, field) for panel, field in FIELDS if panel.unit == "percentunit"]

OF_GRAFANA = {"steps": [{"color": "green", "value": None}, {"color": "red", "value": 80}]}
"""The colors of a panel that names none."""


def color(field: Mapping[str, Any], figure: float) -> str:
    """Return the color in which Grafana draws a number: that of the last step that it has reached."""
    steps = field.get("thresholds", OF_GRAFANA)["steps"]
    return str([step["color"] for step in steps if step["value"] is None or step["value"] <= figure][-1])


def test_each_panel_about_claims_says_what_it_shows() -> None:
    """In the words that Grafana shows beside its title."""
    said = {each["title"]: each.get("description", "") for each in json.loads(dashboard())["panels"]}
    assert [panel.title for panel in ROWS["Claims"] if len(said[panel.title]) < len(panel.title)] == []


@pytest.mark.parametrize(("title", "field"), COUNTS)
def test_panels_are_red_only_if_something_is_wrong(title: str, field: dict[str, Any]) -> None:
    """Thousands of healthy GPUs are no alarm; a single one that pods cannot get is."""
    good, bad = ("blue", "blue") if title == "GPUs" else ("green", "red")
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
