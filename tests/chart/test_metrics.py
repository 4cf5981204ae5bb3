"""How Prometheus comes to the daemons: a Service, a PodMonitor, and what the network policy lets in for them."""

import json
import re
from typing import Any

import pytest
import yaml

from generators import alerts_page
from tests.chart.reading import container, daemonset
from tests.chart.rendering import CHART, objects, templates

BOTH: dict[str, Any] = {"service": {"enabled": True}, "podMonitor": {"enabled": True}}
EXTENDER: dict[str, Any] = {"scheduler": {"enabled": True}}
PARTITIONER: dict[str, Any] = {"partitioning": {"enabled": True}}
CONTROLLERS: dict[str, Any] = {**EXTENDER, **PARTITIONER}
PROMETHEUS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def of_kind(kind: str, values: dict[str, Any]) -> Any:
    """Return the one object of this kind."""
    (found,) = (each for each in objects(values) if each["kind"] == kind)
    return found


def pods_found_by(selector: dict[str, str], values: dict[str, Any]) -> list[str]:
    """Return the names of the pods that carry these labels."""
    pods = {"test": next(each for each in objects(values) if each["kind"] == "Pod")["metadata"]}
    for part in ("node-daemon", "mps"):
        pods[part] = daemonset(values, part=part)["spec"]["template"]["metadata"]
    return [name for name, metadata in pods.items() if selector.items() <= metadata["labels"].items()]


def test_metrics_are_off_by_default() -> None:
    """Nobody has a Service, or needs the operator's CRD, without asking for it."""
    assert not {"Service", "PodMonitor"} & {each["kind"] for each in objects()}


@pytest.mark.parametrize("more", [{}, {"selectorLabelsOverride": {"app": "gpus"}}])
def test_every_daemon_is_found_and_no_other_pod(more: dict[str, Any]) -> None:
    """Both monitors ask the daemons of all nodes at their port, and neither MPS nor the pod of `helm test`."""
    values = {**BOTH, **more, "mps": {"enabled": True}, "httpPort": 9400}
    (port,) = container(values)["ports"]
    service = of_kind("Service", values)["spec"]
    assert pods_found_by(service["selector"], values) == ["node-daemon"]
    assert service["ports"] == [{"name": port["name"], "port": 9400, "targetPort": port["name"]}]
    monitor = of_kind("PodMonitor", values)["spec"]
    assert pods_found_by(monitor["selector"]["matchLabels"], values) == ["node-daemon"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"]
    assert endpoint["path"] == "/metrics"


def test_service_has_no_address() -> None:
    """Pods of the namespace get no GPUSHARE_SERVICE_HOST, and a daemon that is not ready is found, too."""
    made = of_kind("Service", {"service": {"enabled": True, "annotations": {"prometheus.io/scrape": "true"}}})
    assert made["spec"]["clusterIP"] == "None"
    assert made["spec"]["publishNotReadyAddresses"] is True
    assert made["metadata"]["annotations"] == {"prometheus.io/scrape": "true"}


def test_the_pod_monitor_has_the_requested_label_and_names_the_node() -> None:
    """Prometheus selects by that label."""
    plain = of_kind("PodMonitor", BOTH)
    (endpoint,) = plain["spec"]["podMetricsEndpoints"]
    assert "interval" not in endpoint
    assert endpoint["relabelings"] == [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}]
    told = of_kind("PodMonitor", {"podMonitor": {"enabled": True, "interval": "1m", "labels": {"release": "monitors"}}})
    assert told["metadata"]["labels"] == {**plain["metadata"]["labels"], "release": "monitors"}
    assert told["spec"]["podMetricsEndpoints"] == [{**endpoint, "interval": "1m"}]


def test_service_monitors_find_their_services_and_keep_the_labels_of_metrics() -> None:
    """They make the Services that they need, each finds one, and metrics of containers keep the pod that they name."""
    values = {"serviceMonitor": {"enabled": True, "interval": "1m", "labels": {"release": "m"}}, **CONTROLLERS}
    made = objects(values)
    services = [each for each in made if each["kind"] == "Service" and each["spec"].get("clusterIP") == "None"]
    monitors = [each for each in made if each["kind"] == "ServiceMonitor"]
    found = []
    for monitor in monitors:
        selector = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = (each for each in services if selector <= each["metadata"]["labels"].items())
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
        assert (endpoint["honorLabels"], endpoint["interval"]) == (True, "1m")
        assert endpoint["relabelings"][0]["targetLabel"] == "node"
        assert monitor["metadata"]["labels"]["release"] == "m"
        found.append(service["metadata"]["name"])
    assert len(set(found)) == 3


@pytest.mark.parametrize("kind", ["podMonitor", "serviceMonitor"])
def test_every_monitor_has_what_the_values_say(kind: str) -> None:
    """The monitor of each program has it; the label node, which the dashboard needs, is set before."""
    drop = {"sourceLabels": ["__name__"], "regex": "python_.*", "action": "drop"}
    cluster = {"targetLabel": "cluster", "replacement": "a"}
    given = {"scrapeTimeout": "9s", "honorLabels": False, "relabelings": [cluster], "metricRelabelings": [drop]}
    endpoints = endpoints_of(kind, {**CONTROLLERS, kind: {"enabled": True, **given}})
    assert len(endpoints) == 3
    for endpoint in endpoints:
        assert {key: endpoint[key] for key in given} == {
            **given,
            "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}, cluster],
        }


@pytest.mark.parametrize("kind", ["podMonitor", "serviceMonitor"])
def test_a_monitor_keeps_labels_where_no_value_says_otherwise(kind: str) -> None:
    """Also after `helm upgrade --reuse-values` from a chart without the value, and nothing else is set."""
    for endpoint in endpoints_of(kind, {kind: {"enabled": True, "honorLabels": None}}):
        assert endpoint["honorLabels"] is True
        assert not {"interval", "scrapeTimeout", "metricRelabelings"} & {*endpoint}


@pytest.mark.parametrize("kind", ["podMonitor", "serviceMonitor"])
def test_monitors_in_another_namespace_find_the_pods(kind: str) -> None:
    """A monitor looks into its own namespace only, unless it names others."""
    monitors = [
        each
        for each in objects({**CONTROLLERS, kind: {"enabled": True, "namespace": "monitoring"}})
        if each["kind"].lower() == kind.lower()
    ]
    assert {each["metadata"]["namespace"] for each in monitors} == {"monitoring"}
    assert [each["spec"]["namespaceSelector"] for each in monitors] == [{"matchNames": ["kube-system"]}] * 3
    assert "namespaceSelector" not in of_kind("PodMonitor", {"podMonitor": {"enabled": True}})["spec"]


def endpoints_of(kind: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the monitors of this kind have scraped."""
    monitors = [each["spec"] for each in objects(values) if each["kind"].lower() == kind.lower()]
    return [endpoint for each in monitors for endpoint in each.get("endpoints", each.get("podMetricsEndpoints"))]


def test_both_kinds_of_monitors_scrape_the_same_programs() -> None:
    """Whichever kind Prometheus selects, no program is missing."""
    kinds = {
        kind: {
            each["metadata"]["name"]
            for each in objects({value: {"enabled": True}, **CONTROLLERS})
            if each["kind"] == kind
        }
        for value, kind in (("podMonitor", "PodMonitor"), ("serviceMonitor", "ServiceMonitor"))
    }
    assert kinds["PodMonitor"] == kinds["ServiceMonitor"] == {"gpushare", "gpushare-extender", "gpushare-partitioner"}


def test_both_monitors_together_are_warned_of() -> None:
    """The notes of the installation say what it means that one Prometheus selects both."""
    monitors = {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}
    assert "scrapes each daemon twice" in templates(monitors)["NOTES.txt"]
    for one in monitors:
        assert "twice" not in templates({one: monitors[one]})["NOTES.txt"]


def test_the_label_of_the_dashboard_can_be_another() -> None:
    """A sidecar can be configured to select another value."""
    values = {"dashboard": {"enabled": True, "labels": {"grafana_dashboard": "gpus"}}}
    assert of_kind("ConfigMap", values)["metadata"]["labels"]["grafana_dashboard"] == "gpus"


@pytest.mark.parametrize("part", ["gpushare", "gpushare-extender", "gpushare-partitioner"])
def test_all_programs_are_found_without_the_operator(part: str) -> None:
    """The example of a scrape config keeps the port of each program that has metrics, and only that one."""
    page = (CHART.parent.parent / "docs/metrics.md").read_text()
    (example,) = re.findall(r"^```yaml\n(scrape_configs:.*?)^```", page, re.MULTILINE | re.DOTALL)
    rule = yaml.safe_load(example)["scrape_configs"][0]["relabel_configs"][0]
    (template,) = (
        each["spec"]["template"]
        for each in objects(CONTROLLERS)
        if each["kind"] in {"DaemonSet", "Deployment"} and each["metadata"]["name"] == part
    )
    name = template["metadata"]["labels"]["app.kubernetes.io/name"]
    ports = [port["name"] for each in template["spec"]["containers"] for port in each["ports"]]
    kept = [port for port in ports if re.fullmatch(rule["regex"], f"{name};{port}")]
    assert kept == (["http"] if part == "gpushare" else ["probes"])


def test_the_dashboard_is_found_by_its_label() -> None:
    """The sidecar of Grafana's chart looks for that; the dashboard is the file, whole."""
    assert not [each for each in objects() if each["kind"] == "ConfigMap"]
    values = {"dashboard": {"enabled": True, "labels": {"team": "a"}, "annotations": {"grafana_folder": "GPUs"}}}
    made = of_kind("ConfigMap", values)
    assert {"grafana_dashboard": "1", "team": "a"}.items() <= made["metadata"]["labels"].items()
    assert made["metadata"]["annotations"] == {"grafana_folder": "GPUs"}
    assert made["data"] == {"gpushare.json": (CHART / "files/dashboard.json").read_text()}


def linked(**values: Any) -> dict[str, Any]:
    """Return the dashboard that the chart makes of values beside those that turn it on."""
    dashboard = {"enabled": True, **values.pop("dashboard", {})}
    made = of_kind("ConfigMap", {"dashboard": dashboard, **values})
    found: dict[str, Any] = json.loads(made["data"]["gpushare.json"])
    return found


def test_panels_link_to_the_alerts_that_are_about_them() -> None:
    """Each alert that a description names has a link to its section; nothing else of the dashboard changes."""
    plain, page = linked(), "https://git.example.com/docs/alerts.md"
    made = linked(prometheusRule={"runbookUrl": page})
    assert [(each["title"], each["url"]) for each in made.pop("links")] == [("Alerts", page)]
    alerts = {each.name for each in alerts_page.alerts()}
    about: dict[str, str] = {}
    for panel in made["panels"]:
        links = {each["title"]: each["url"] for each in panel.pop("links", [])}
        assert links == {name: f"{page}#{name.lower()}" for name in links}
        about |= links
        assert set(links) == alerts & set(re.findall(r"\w+", panel.get("description", "")))
    assert made == plain
    assert "GpuFaulty" in about


def test_nodes_link_to_their_pages() -> None:
    """With the address of the pages: the name of a node in a table leads to the page of the node."""
    made = linked(dashboard={"webUrl": "https://gpus.example.com/"})
    assert [(each["title"], each["url"]) for each in made["links"]] == [
        ("Pages of gpushare", "https://gpus.example.com")
    ]
    (nodes,) = (each for each in made["panels"] if each["title"] == "All nodes")
    (links,) = (
        each["properties"] for each in nodes["fieldConfig"]["overrides"] if each["matcher"]["options"] == "Node"
    )
    assert links[0]["value"][0]["url"] == "https://gpus.example.com/nodes/${__value.text}"
    assert {"matcher", "properties"} == set(nodes["fieldConfig"]["overrides"][0])


@pytest.mark.parametrize(
    ("values", "ingress"),
    [
        ({}, []),
        ({"service": {"enabled": True}}, [{"ports": [{"port": "http"}]}]),
        ({"podMonitor": {"enabled": True}}, [{"ports": [{"port": "http"}]}]),
        (
            {"podMonitor": {"enabled": True}, "networkPolicy": {"enabled": True, "from": PROMETHEUS}},
            [{"ports": [{"port": "http"}], "from": PROMETHEUS}],
        ),
        (
            {"networkPolicy": {"enabled": True, "from": PROMETHEUS}},
            [{"ports": [{"port": "http"}], "from": PROMETHEUS}],
        ),
    ],
)
def test_the_network_policy_opens_the_port_of_the_metrics_alone(
    values: dict[str, Any], ingress: list[dict[str, Any]]
) -> None:
    """Only the port of the metrics is open, only where metrics are wanted, and only to whom it is said, if it is."""
    policy = of_kind("NetworkPolicy", {"networkPolicy": {"enabled": True}, **values})["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy.get("ingress", []) == ingress


@pytest.mark.parametrize("more", [{}, {"selectorLabelsOverride": {"app.kubernetes.io/name": "gpus"}}])
def test_network_policy_is_for_all_pods(more: dict[str, Any]) -> None:
    """Every pod of the release has it, whatever the labels are."""
    values = {**more, "mps": {"enabled": True}, "networkPolicy": {"enabled": True}}
    selector = of_kind("NetworkPolicy", values)["spec"]["podSelector"]["matchLabels"]
    assert pods_found_by(selector, values) == ["test", "node-daemon", "mps"]


def test_every_partitioner_is_found_at_its_probe_port() -> None:
    """PodMonitor, Service and network policy select its pods, and only their port for probes is open."""
    annotations = {"prometheus.io/port": "8080"}
    values = {
        "partitioning": {"enabled": True, "probePort": 9000},
        "podMonitor": {"enabled": True},
        "service": {"enabled": True, "annotations": annotations},
        "networkPolicy": {"enabled": True, "from": PROMETHEUS},
    }
    made = {each["kind"]: each for each in objects(values) if each["metadata"]["name"] == "gpushare-partitioner"}
    pod = made["Deployment"]["spec"]["template"]
    assert pod["spec"]["containers"][0]["ports"] == [{"name": "probes", "containerPort": 9000}]
    labels = pod["metadata"]["labels"].items()
    monitor, service, policy = (made[kind]["spec"] for kind in ("PodMonitor", "Service", "NetworkPolicy"))
    assert monitor["selector"]["matchLabels"].items() <= labels
    assert service["selector"].items() <= labels
    assert policy["podSelector"]["matchLabels"].items() <= labels
    assert [each["port"] for each in monitor["podMetricsEndpoints"]] == ["probes"]
    assert service["ports"] == [{"name": "probes", "port": 9000, "targetPort": "probes"}]
    assert made["Service"]["metadata"]["annotations"] == {"prometheus.io/port": "9000"}
    assert policy["ingress"] == [{"ports": [{"port": "probes"}], "from": PROMETHEUS}]
    kinds = {each["kind"] for each in objects({**PARTITIONER, "networkPolicy": {"enabled": True}})}
    assert not {"PodMonitor", "Service", "ServiceMonitor"} & kinds


def test_the_pages_are_scraped_where_others_are() -> None:
    """The monitors and the network policy know the port; the Service has it for Prometheus alone."""
    values = {"web": {"enabled": True, "insecureHttp": True, "probePort": 8099}}
    ports = [port["name"] for port in of_kind("Service", values)["spec"]["ports"]]
    assert ports == ["pages"]
    values |= {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}, "networkPolicy": {"enabled": True}}
    named = [each for each in objects(values) if each["metadata"]["name"] == "gpushare-web"]
    made = {each["kind"]: each["spec"] for each in named if "spec" in each}
    assert [port["name"] for port in made["Service"]["ports"]] == ["pages", "probes"]
    assert made["Service"]["ports"][1]["port"] == 8099
    assert [each["port"] for each in made["PodMonitor"]["podMetricsEndpoints"]] == ["probes"]
    assert [each["port"] for each in made["ServiceMonitor"]["endpoints"]] == ["probes"]
    assert [rule["ports"] for rule in made["NetworkPolicy"]["ingress"]] == [[{"port": "pages"}], [{"port": "probes"}]]


def test_the_pages_may_read_the_metrics_of_daemons_where_they_are_told_to() -> None:
    """Only pods with the pages reach the daemon's port, and only with web.daemonMetrics; the pages need no right."""
    values = {"web": {"enabled": True, "insecureHttp": True}, "networkPolicy": {"enabled": True}}
    reading = {**values, "web": {**values["web"], "daemonMetrics": True}}
    before, after = (named("NetworkPolicy", "gpushare", each)["spec"] for each in (values, reading))
    assert "ingress" not in before
    (rule,) = after["ingress"]
    assert rule["ports"] == [{"port": "http"}]
    (peer,) = rule["from"]
    pod = named("Deployment", "gpushare-web", reading)["spec"]["template"]
    assert peer["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert {"name": "DAEMON_METRICS", "value": "kube-system"} in pod["spec"]["containers"][0]["env"]
    assert named("ClusterRole", "gpushare-web", reading) == named("ClusterRole", "gpushare-web", values)


def named(kind: str, name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the rendered object of a kind and a name."""
    return next(each for each in objects(values) if (each["kind"], each["metadata"]["name"]) == (kind, name))
