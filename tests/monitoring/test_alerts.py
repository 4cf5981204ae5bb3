"""Tests of the rules in the chart: each alert fires when it should, and is explained; what is recorded is right."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import helm_python
import pytest
import yaml

from generators.alerts_page import Alert, alerts
from generators.dashboard.rows import ROWS
from generators.recorded import COST, PRICE, dcgm
from gpushare_plugin.observe.metrics.extender import EXTENDER_METRICS
from gpushare_plugin.observe.metrics.node import METRICS
from gpushare_plugin.observe.metrics.partitioner import PARTITIONER_METRICS
from gpushare_plugin.observe.metrics.web import WEB_METRICS
from tests.chart.rendering import CHART, objects
from tests.monitoring.tools import as_grafana_asks, promtool

FILE = CHART / "files/alerts.yaml"
PAGE = CHART.parent.parent / "docs/alerts.md"
GROUPS: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())["groups"]
RULES: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}

NODE = {"job": "g", "instance": "a:8080", "node": "n1"}
EXTENDER = {"job": "e", "instance": "b:8081"}
PARTITIONER = {"job": "p", "instance": "c:8081"}
GPU = {**NODE, "index": "0", "uuid": "GPU-0"}
OFFER = {**GPU, "resource": "r"}
WEEK = 7 * 24 * 60 * 60
"""Seconds; cases begin at the time 0."""
GOOD = "0x5"
"""Minutes 0 to 5."""


class Case(NamedTuple):
    """When an alert fires: series from minute 0 on, a minute when it does not fire yet, and one when it does."""

    alert: str
    series: dict[str, str]
    quiet: int
    fires: int
    labels: dict[str, str]


def series(name: str, labels: dict[str, str], **more: str) -> str:
    """Return a series as Prometheus writes it."""
    inner = ",".join(f'{key}="{value}"' for key, value in {**labels, **more}.items())
    return f"{name}{{{inner}}}"


def gauge(  # noqa: PLR0913 - what a case is made of
    alert: str, name: str, labels: dict[str, str], bad: str, minutes: int, *, good: str = GOOD
) -> Case:
    """Return the case of a gauge that is bad from minute 6 on, and of an alert that waits for some minutes."""
    values = f"{good} {bad}x{minutes + 5}"
    return Case(alert, {series(name, labels): values}, 5 + minutes, 7 + minutes, labels)


def errors(alert: str, name: str, labels: dict[str, str]) -> Case:
    """Return the case of one error a minute from minute 11 on, beside errors that are none."""
    fired = {**labels, "reason": "server"}
    rising, conflict = "0x10 1+1x60", "0+9x60"
    made = {series(name, fired): rising, series(name, labels, reason="conflict"): conflict}
    return Case(alert, made, 20, 30, fired)


CASES = [
    gauge("GpuFaulty", "gpushare_gpu_unhealthy", {**GPU, "reason": "fault"}, "1", 5),
    gauge("GpuUnresponsive", "gpushare_gpus_unresponsive", NODE, "2", 5),
    gauge("GpuNotServedByMps", "gpushare_gpu_unhealthy", {**GPU, "reason": "mps"}, "1", 10),
    gauge("GpuDriverLimitsNotSet", "gpushare_gpu_unhealthy", {**GPU, "reason": "limits"}, "1", 10),
    Case(  # beside a GPU that never had the first isolation
        "GpuIsolationNotFirst",
        {
            series("gpushare_gpu_isolation", GPU, isolation="driver", wanted="driver"): "1x5 stale",
            series("gpushare_gpu_isolation", GPU, isolation="none", wanted="driver"): "_x6 0x15",
            series("gpushare_gpu_isolation", {**GPU, "uuid": "GPU-1"}, isolation="none", wanted="driver"): "0x20",
        },
        15,
        17,
        {**GPU, "isolation": "none", "wanted": "driver"},
    ),
    gauge("GpuWaiting", "gpushare_gpu_waiting", GPU, "1", 60),
    gauge("GpuOverused", "gpushare_gpu_containers_over_limit", GPU, "1", 10),
    gauge("GpuClaimsUnpublished", "gpushare_resource_slices_published", NODE, "0", 10, good="1x5"),
    gauge("GpuForeignProcess", "gpushare_gpu_foreign_processes", GPU, "3", 10),
    gauge("GpuUnitsDrifted", "gpushare_gpu_units_drifted", OFFER, "4", 10),
    gauge("GpuLimitNotInEffect", "gpushare_gpu_container_limits", {**GPU, "state": "not_in_effect"}, "1", 1),
    gauge("GpuUsageOld", "gpushare_usage_age_seconds", NODE, "121", 5, good="120x5"),
    Case(
        "GpushareDaemonDown",
        {
            series("up", NODE): "1x5 0x20",
            series("gpushare_build_info", NODE, version="1"): "1x5 stale",
            series("up", {"job": "other", "instance": "c:1"}): "0x20",
        },
        10,
        12,
        NODE,
    ),
    Case("GpushareAbsent", {series("gpushare_build_info", NODE, version="1"): "1x5 stale"}, 15, 17, {}),
    gauge("GpuResourceNotRegistered", "gpushare_resource_registered", {**NODE, "resource": "r"}, "0", 5, good="1x5"),
    Case(
        "GpushareRefusals",
        {series("gpushare_refusals_total", NODE, resource="r", call="Allocate"): "0x5 1x20"},
        5,
        7,
        {**NODE, "resource": "r", "call": "Allocate"},
    ),
    gauge("GpushareConfigRejected", "gpushare_config_last_reload_successful", NODE, "0", 5, good="1x5"),
    errors("GpushareApiErrors", "gpushare_api_errors_total", NODE),
    Case(
        "GpushareExtenderDown",
        {series("up", EXTENDER): "1x5 0x20", series("gpushare_extender_leads", EXTENDER): "0x5 stale"},
        10,
        12,
        EXTENDER,
    ),
    Case("GpushareExtenderAbsent", {series("gpushare_extender_leads", EXTENDER): "1x5 stale"}, 15, 17, {}),
    Case(
        "GpushareExtenderNotReady",
        {
            series("gpushare_extender_ready", EXTENDER): "1x5 0x20",
            series("gpushare_extender_ready", {**EXTENDER, "instance": "d:8081"}): "0x30",
        },
        10,
        12,
        {"job": "e"},
    ),
    gauge("GpushareExtenderCacheOld", "gpushare_extender_cache_age_seconds", EXTENDER, "601", 5, good="600x5"),
    gauge(
        "GpushareExtenderCertificateEnds",
        "gpushare_extender_certificate_expiration_timestamp_seconds",
        EXTENDER,
        str(WEEK),
        10,
        good=f"{WEEK + 6 * 60}x5",
    ),
    Case(
        "GpushareExtenderRefusals",
        {
            series("gpushare_extender_refusals_total", EXTENDER, reason="bind_failed"): "0x10 1+1x60",
            series("gpushare_extender_refusals_total", EXTENDER, reason="no_room"): "0+9x60",
        },
        16,
        25,
        {"job": "e", "reason": "bind_failed"},
    ),
    gauge("GpushareExtenderPauses", "gpushare_extender_longest_pause_seconds", EXTENDER, "2.1", 5, good="2x5"),
    gauge("GpusharePartitionerPauses", "gpushare_partitioner_longest_pause_seconds", PARTITIONER, "9", 5),
    errors("GpushareExtenderApiErrors", "gpushare_extender_api_errors_total", EXTENDER),
    Case(
        "GpusharePartitionerDown",
        {series("up", PARTITIONER): "1x5 0x20", series("gpushare_partitioner_leads", PARTITIONER): "0x5 stale"},
        10,
        12,
        PARTITIONER,
    ),
    Case("GpusharePartitionerAbsent", {series("gpushare_partitioner_leads", PARTITIONER): "1x5 stale"}, 15, 17, {}),
    Case(
        "GpusharePartitionerNotReady",
        {
            series("gpushare_partitioner_ready", PARTITIONER): "1x5 0x20",
            series("gpushare_partitioner_ready", {**PARTITIONER, "instance": "d:8081"}): "0x30",
        },
        10,
        12,
        {"job": "p"},
    ),
    Case(
        "GpushareSlicesNotWritten",
        {
            series("gpushare_partitioner_nodes_unwritten", PARTITIONER): "0x5 2x20",
            series("gpushare_partitioner_nodes_unwritten", {**PARTITIONER, "instance": "d:8081"}): "0x30",
        },
        10,
        12,
        {"job": "p"},
    ),
    Case(
        "GpushareSliceAwaited",
        {
            series("gpushare_partitioner_longest_wait_seconds", PARTITIONER): "900x5 901x20",
            series("gpushare_partitioner_longest_wait_seconds", {**PARTITIONER, "instance": "d:8081"}): "0x30",
        },
        10,
        12,
        {"job": "p"},
    ),
]


def scenario(case: Case) -> dict[str, Any]:
    """Return a case as `promtool test rules` reads it."""
    fired = {"exp_labels": {**case.labels, "severity": RULES[case.alert]["labels"]["severity"]}}
    return {
        "name": case.alert,
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{case.quiet}m", "alertname": case.alert, "exp_alerts": []},
            {"eval_time": f"{case.fires}m", "alertname": case.alert, "exp_alerts": [fired]},
        ],
    }


def healthy() -> dict[str, Any]:
    """Return a node and an extender for two hours, with errors that are none."""
    values = {
        series("up", NODE): "1x120",
        series("up", EXTENDER): "1x120",
        series("gpushare_build_info", NODE, version="1"): "1x120",
        series("gpushare_gpu_unhealthy", GPU, reason="fault"): "0x120",
        series("gpushare_gpu_unhealthy", GPU, reason="cordon"): "1x120",
        series("gpushare_gpu_unhealthy", GPU, reason="mps"): "0x9 1x8 0x100",
        series("gpushare_gpus_unresponsive", NODE): "0x120",
        series("gpushare_gpu_waiting", GPU): "0x20 1x58 0x40",
        series("gpushare_gpu_isolation", GPU, isolation="driver", wanted="driver"): "1x120",
        series("gpushare_gpu_containers_over_limit", GPU): "0x20 1x8 0x90",
        series("gpushare_gpu_container_limits", GPU, state="not_in_effect"): "0x120",
        series("gpushare_gpu_container_limits", GPU, state="unknown"): "1x120",
        series("gpushare_gpu_foreign_processes", GPU): "0x20 2x8 0x91",
        series("gpushare_gpu_units_drifted", OFFER): "0x120",
        series("gpushare_usage_age_seconds", NODE): "9x120",
        series("gpushare_resource_registered", NODE, resource="r"): "1x9 0x3 1x110",
        series("gpushare_refusals_total", NODE, resource="r", call="Allocate"): "7x120",
        series("gpushare_config_last_reload_successful", NODE): "1x120",
        series("gpushare_resource_slices_published", NODE): "1x120",
        series("gpushare_api_errors_total", NODE, reason="unanswered"): "0x20 3x100",
        series("gpushare_extender_leads", EXTENDER): "1x120",
        series("up", PARTITIONER): "1x120",
        series("gpushare_partitioner_leads", PARTITIONER): "1x120",
        series("gpushare_partitioner_ready", PARTITIONER): "1x120",
        series("gpushare_partitioner_nodes_unwritten", PARTITIONER): "0x20 1x4 0x100",
        series("gpushare_partitioner_longest_wait_seconds", PARTITIONER): "600x120",
        series("gpushare_extender_ready", EXTENDER): "1x120",
        series("gpushare_extender_refusals_total", EXTENDER, reason="no_room"): "0+9x120",
        series("gpushare_extender_refusals_total", EXTENDER, reason="bind_failed"): "0x20 3x99",
        series("gpushare_extender_api_errors_total", EXTENDER, reason="conflict"): "0+2x120",
        series("gpushare_extender_api_errors_total", EXTENDER, reason="unanswered"): "0x20 3x99",
        series("gpushare_extender_cache_age_seconds", EXTENDER): "240x120",
        series("gpushare_extender_longest_pause_seconds", EXTENDER): "0.3x60 4x2 0.3x60",
        series("gpushare_partitioner_longest_pause_seconds", PARTITIONER): "0.3x30 12x3 0.3x90",
        series("gpushare_extender_certificate_expiration_timestamp_seconds", EXTENDER): f"{WEEK + 2 * 60 * 60}x120",
    }
    quiet = [
        {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": []}
        for alert in RULES
        for minute in range(5, 121, 5)
    ]
    made = [{"series": name, "values": each} for name, each in values.items()]
    return {"name": "healthy", "interval": "1m", "input_series": made, "alert_rule_test": quiet}


def play(folder: Path, groups: list[dict[str, Any]], scenarios: list[dict[str, Any]]) -> None:
    """Have Prometheus' own tool play scenarios with these rules; fails the test where an alert is another."""
    # What is fired is compared whole, and the texts are for people.
    bare = [{**group, "rules": [_bare(rule) for rule in group["rules"]]} for group in groups]
    (folder / "alerts.yaml").write_text(yaml.safe_dump({"groups": bare}))
    (folder / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["alerts.yaml"], "tests": scenarios}))
    assert "SUCCESS" in promtool("test", "rules", folder / "tests.yaml")


def test_every_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    """Prometheus' own tool plays each case, and two hours of a healthy node, on which no alert fires."""
    assert sorted(case.alert for case in CASES) == sorted(RULES)
    play(tmp_path, GROUPS, [*map(scenario, CASES), healthy()])


def test_healthy_parts_have_a_series_of_every_metric_that_rules_ask_for() -> None:
    """An alert on a metric of which a healthy cluster has no series would be quiet there whatever the rule says."""
    there = {each["series"].partition("{")[0] for each in healthy()["input_series"]}
    asked = {name for rule in RULES.values() for name in re.findall(r"\bgpushare_\w+", rule["expr"])}
    assert asked - there == set()


def _bare(rule: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in rule.items() if key != "annotations"}


def test_the_rules_are_valid() -> None:
    """`promtool check rules` takes them, with all their texts."""
    assert f"{len(RULES)} rules found" in promtool("check", "rules", FILE)


def of_chart(**values: Any) -> dict[str, Any]:
    """Return the PrometheusRule of the chart with values below `prometheusRule`."""
    made = objects({"prometheusRule": {"enabled": True, **values}})
    (rule,) = (each for each in made if each["kind"] == "PrometheusRule")
    return rule


def rules_of_chart(**values: Any) -> dict[str, dict[str, Any]]:
    """Return the alerts in it by their names."""
    return {rule["alert"]: rule for group in of_chart(**values)["spec"]["groups"] for rule in group["rules"]}


def test_the_chart_has_the_rules_on_request_only() -> None:
    """The PrometheusRule has the rules of the file as they are; Prometheus selects it by namespace and labels."""
    assert not [each for each in objects() if each["kind"] == "PrometheusRule"]
    rule = of_chart(labels={"release": "monitors"}, namespace="monitoring")
    assert rule["spec"]["groups"] == GROUPS
    assert rule["metadata"]["labels"]["release"] == "monitors"
    assert rule["metadata"]["namespace"] == "monitoring"
    assert of_chart()["metadata"]["namespace"] == "kube-system"


def test_single_alerts_can_be_left_out() -> None:
    """The others stay as they are; a group without alerts is left out, too."""
    of_partitioner = {name: True for name in RULES if name.startswith(("GpusharePartitioner", "GpushareSlice"))}
    made = of_chart(disabled={**of_partitioner, "GpuWaiting": True, "GpuFaulty": False})["spec"]["groups"]
    left = {rule["alert"]: rule for group in made for rule in group["rules"]}
    assert left == {name: rule for name, rule in RULES.items() if name not in {*of_partitioner, "GpuWaiting"}}
    assert [group["name"] for group in made] == ["gpushare-gpus", "gpushare-daemon", "gpushare-extender"]


def test_all_alerts_can_have_more_labels_and_annotations(tmp_path: Path) -> None:
    """They come beside the chart's own; the link to the page comes with its address alone; Prometheus takes them."""
    added = {"team": "gpus", "dashboard": "https://grafana.example.com/d/gpushare?var-node={{ $labels.node }}"}
    page = "https://git.example.com/docs/alerts.md"
    rules = rules_of_chart(additionalRuleLabels=added, additionalRuleAnnotations=added, runbookUrl=page)
    for name, rule in RULES.items():
        assert rules[name]["labels"] == {**rule["labels"], **added}
        link = {"runbook_url": f"{page}#{name.lower()}"}
        assert rules[name]["annotations"] == {**rule["annotations"], **added, **link}
        assert rules[name]["expr"] == rule["expr"]
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [*rules.values()]}]}))
    assert f"{len(RULES)} rules found" in promtool("check", "rules", tmp_path / "alerts.yaml")


def test_a_single_alert_can_have_another_severity_time_and_threshold(tmp_path: Path) -> None:
    """It fires by these, with the labels of all alerts; its own severity comes before that of all."""
    values = {
        "customRules": {
            "GpuUsageOld": {"severity": "page", "for": "1m", "threshold": 300},
            "GpushareExtenderCertificateEnds": {"threshold": WEEK / 7},
            "GpushareRefusals": {"for": "1m"},
        },
        "additionalRuleLabels": {"severity": "info", "team": "gpus"},
    }
    quiet = {"series": series("gpushare_usage_age_seconds", NODE), "values": "300x5 301x20"}
    ends = {
        "series": series("gpushare_extender_certificate_expiration_timestamp_seconds", EXTENDER),
        "values": f"{WEEK / 7 + 6 * 60}x40",
    }
    usage = {"exp_labels": {**NODE, "severity": "page", "team": "gpus"}}
    certificate = {"exp_labels": {**EXTENDER, "severity": "info", "team": "gpus"}}
    asked = [
        {"eval_time": "6m", "alertname": "GpuUsageOld", "exp_alerts": []},
        {"eval_time": "7m", "alertname": "GpuUsageOld", "exp_alerts": [usage]},
        {"eval_time": "16m", "alertname": "GpushareExtenderCertificateEnds", "exp_alerts": []},
        {"eval_time": "17m", "alertname": "GpushareExtenderCertificateEnds", "exp_alerts": [certificate]},
    ]
    told = {"name": "told", "interval": "1m", "input_series": [quiet, ends], "alert_rule_test": asked}
    play(tmp_path, of_chart(**values)["spec"]["groups"], [told])
    assert rules_of_chart(**values)["GpushareRefusals"]["for"] == "1m"


def test_the_example_of_the_page_does_what_it_says() -> None:
    """The chart takes the values that the page shows, and the alerts are as their comments say."""
    (example,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    rules = rules_of_chart(**yaml.safe_load(example)["prometheusRule"])
    assert RULES.keys() - rules.keys() == {"GpuForeignProcess"}
    assert (rules["GpuFaulty"]["labels"]["severity"], rules["GpuFaulty"]["for"]) == ("page", "1m")
    assert rules["GpushareExtenderCertificateEnds"]["expr"].endswith(" - time() < 86400")
    assert {rule["labels"]["team"] for rule in rules.values()} == {"gpus"}


WITH_THRESHOLD = [each for each in alerts() if each.threshold]


def far(alert: Alert) -> float:
    """Return a threshold that no series of the cases reaches."""
    return 0 if " < " in alert.condition else 1_000_000


def test_every_threshold_can_be_another(tmp_path: Path) -> None:
    """What makes an alert fire with its own threshold does not with a far one; 0 is a threshold, too."""
    thresholds = {each.name: {"threshold": far(each)} for each in WITH_THRESHOLD}
    cases = [scenario(case) for case in CASES if case.alert in thresholds]
    for case in cases:
        case["alert_rule_test"] = [{**each, "exp_alerts": []} for each in case["alert_rule_test"]]
    play(tmp_path, of_chart(customRules=thresholds)["spec"]["groups"], cases)
    assert len(cases) == len(thresholds) > 10


@pytest.mark.parametrize("alert", [each.name for each in alerts() if not each.threshold])
def test_an_alert_that_compares_with_no_number_takes_no_threshold(alert: str) -> None:
    """That a GPU is faulty has no degrees; the message names the alert and what to do."""
    with pytest.raises(helm_python.HelmError, match=rf"customRules\.{alert}\.threshold is set, but .*: remove the"):
        of_chart(customRules={alert: {"threshold": 2}})


@pytest.mark.parametrize("place", ["customRules", "disabled"])
def test_an_alert_that_does_not_exist_is_no_silent_mistake(place: str) -> None:
    """A misspelt name is rejected with the names that there are."""
    value = {"customRules": {"for": "1m"}, "disabled": True}[place]
    with pytest.raises(
        helm_python.HelmError, match=rf"{place} names GpuFalty, but .* name one of .*GpuFaulty, GpuForeign"
    ):
        of_chart(**{place: {"GpuFalty": value}})


@pytest.mark.parametrize("alert", RULES)
def test_every_alert_is_explained(alert: str) -> None:
    """The page has a section for it, to which its annotation leads, with severity, meaning and what to do."""
    rule = RULES[alert]
    assert rule["annotations"]["runbook"] == f"docs/alerts.md#{alert.lower()}"
    assert rule["annotations"]["description"].endswith(".")
    (text,) = re.findall(rf"^## {alert}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    begin = f"**{rule['labels']['severity'].capitalize()}, {rule.get('for', 'at once')}.** "
    assert " ".join(text.split()).startswith(begin + rule["annotations"]["description"])
    assert "**Do:**" in text


@pytest.mark.parametrize(
    "query",
    [
        *(rule["expr"] for rule in RULES.values()),
        *(query.promql for panels in ROWS.values() for panel in panels for query in panel.queries),
    ],
)
def test_alerts_and_panels_are_made_of_metrics_that_exist(query: str) -> None:
    """What no program serves would never fire, and a panel of it would stay blank."""
    served = {
        metric.name for metrics in (METRICS, EXTENDER_METRICS, PARTITIONER_METRICS, WEB_METRICS) for metric in metrics
    }
    named = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"gpushare_\w+", query)}
    assert named <= served


def test_units_held_of_a_faulty_gpu_stay_a_part_of_what_is_offered(tmp_path: Path) -> None:
    """Pods keep the units of a GPU that has a fault; the panels show no more than all units, and never nothing."""
    units, used, allocatable = (
        {
            f'gpushare_gpu_units{more}{{node="n1",resource="r",uuid="GPU-{gpu}"}}': value
            for gpu, value in enumerate(each)
        }
        for more, each in (("", "44"), ("_used", "42"), ("_allocatable", "00"))
    )
    known = {f'gpushare_gpu_info{{node="n1",uuid="GPU-{gpu}"}}': "1" for gpu in range(2)}
    of_all = [
        as_grafana_asks(panel.queries[0].promql)
        for panels in ROWS.values()
        for panel in panels
        if panel.title == "Units held by pods" and panel.unit == "percentunit"
    ]
    cases = [
        {"expr": query, "eval_time": "1m", "exp_samples": [{"labels": labels, "value": 0.75}]}
        for query, labels in zip(of_all, ('{resource="r"}', '{node="n1", resource="r"}'), strict=True)
    ]
    all_ = {**known, **units, **used, **allocatable}
    series_ = [{"series": name, "values": f"{value}x3"} for name, value in all_.items()]
    tests = {"tests": [{"interval": "1m", "input_series": series_, "promql_expr_test": cases}]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests))
    assert "SUCCESS" in promtool("test", "rules", tmp_path / "tests.yaml")


# ---------------------------------------------------------------------- what is recorded


def recorded_by_chart(**values: Any) -> list[dict[str, Any]]:
    """Return the groups of recording rules in the PrometheusRule, which come after those of alerts."""
    of_all = objects({"prometheusRule": {"enabled": True, **values}, "usage": {"containerMetrics": True}})
    (rule,) = (each for each in of_all if each["kind"] == "PrometheusRule")
    groups: list[dict[str, Any]] = rule["spec"]["groups"]
    assert groups[: len(GROUPS)] == GROUPS
    return groups[len(GROUPS) :]


def test_nothing_is_recorded_by_default() -> None:
    """Costs take prices, and dcgm-exporter may be there itself."""
    assert recorded_by_chart() == []
    assert recorded_by_chart(prices={}, dcgmNames=False) == []


def test_dcgm_exporters_names_are_recorded_on_request(tmp_path: Path) -> None:
    """The chart has the rules of the file; `promtool` takes their names, although they are in capitals."""
    (group,) = recorded_by_chart(dcgmNames=True)
    assert {rule["record"] for rule in group["rules"]} == {name for name, _ in dcgm()}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [group]}))
    assert "3 rules found" in promtool("check", "rules", tmp_path / "rules.yaml")


def test_prices_make_costs(tmp_path: Path) -> None:
    """A namespace costs the part of a GPU that it holds, at the price of its model; without a price nothing."""
    groups = recorded_by_chart(prices={"A": 3.2, "B 40GB": 1})
    made = {
        series("gpushare_gpu_info", GPU, product="A"): "1x5",
        series("gpushare_gpu_info", {**GPU, "uuid": "GPU-1"}, product="C"): "1x5",
        series("gpushare_gpu_memory_bytes", GPU): "40x5",
        series("gpushare_gpu_memory_bytes", {**GPU, "uuid": "GPU-1", "index": "1"}): "40x5",
        series("gpushare_gpu_units", OFFER): "4x5",
        series("gpushare_gpu_units", {**OFFER, "uuid": "GPU-1"}): "4x5",
        series("gpushare_container_units", OFFER, namespace="team", pod="p", container="c"): "1x5",
        series("gpushare_container_units", {**OFFER, "uuid": "GPU-1"}, namespace="team", pod="p", container="c"): "1x5",
    }
    hourly = [
        {"labels": series(COST, {"node": "n1", "uuid": "GPU-0", "namespace": "team", "product": "A"}), "value": 0.8}
    ]
    prices = [
        {"labels": series(PRICE, {"product": name}), "value": price} for name, price in (("A", 3.2), ("B 40GB", 1))
    ]
    asked = [
        {"expr": name, "eval_time": "2m", "exp_samples": samples} for name, samples in ((COST, hourly), (PRICE, prices))
    ]
    told = [{"series": name, "values": values} for name, values in made.items()]
    cases = [{"interval": "1m", "input_series": told, "promql_expr_test": asked}]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": cases}))
    assert "SUCCESS" in promtool("test", "rules", tmp_path / "tests.yaml")
