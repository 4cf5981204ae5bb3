"""The scheduler part of the chart: the extender, what kube-scheduler is told, and a kube-scheduler of its own."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import HelmError

from gpushare_plugin.cli.commands.cluster.extender import command
from gpushare_plugin.core.policies import POLICIES
from gpushare_plugin.extender.binder import BinderTiming
from gpushare_plugin.extender.service import ExtenderSettings
from gpushare_plugin.extender.tls.own import OwnCertificateSettings
from tests.chart.reading import environment
from tests.chart.rendering import CHART, EXAMPLE_VALUES, ROOT, merged, objects, templates, yaml_of
from tests.chart.test_chart import EVERYTHING as EVERY_VALUE
from tests.chart.test_chart import KUBERNETES
from tests.chart.validity import check

ON: dict[str, Any] = {"scheduler": {"enabled": True}}
OWN: dict[str, Any] = {"scheduler": {"enabled": True, "kubeScheduler": {"enabled": True}}}
TLS = {"secretName": "server", "clientSecretName": "client"}
EVERYTHING = {**EVERY_VALUE, "fullnameOverride": "", "nameOverride": ""}


def one(values: dict[str, Any], kind: str, name: str = "gpushare-extender") -> Any:
    """Return the object of this kind and name."""
    (found,) = (each for each in objects(values) if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def pod(values: dict[str, Any], name: str = "gpushare-extender") -> Any:
    """Return the pod of a Deployment."""
    return one(values, "Deployment", name)["spec"]["template"]["spec"]


def configuration(values: dict[str, Any]) -> Any:
    """Return the KubeSchedulerConfiguration."""
    return yaml.safe_load(one(values, "ConfigMap", "gpushare-kube-scheduler")["data"]["scheduler.yaml"])


def extender(values: dict[str, Any]) -> Any:
    """Return what kube-scheduler is told of the extender."""
    (found,) = configuration(values)["extenders"]
    return found


def set_variables(values: dict[str, Any]) -> dict[str, Any]:
    """Return the environment of the extender's container."""
    (only,) = pod(values)["containers"]
    return {each["name"]: each.get("value") or each["valueFrom"]["fieldRef"]["fieldPath"] for each in only["env"]}


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", [ON, OWN, EVERYTHING], ids=["extender", "own scheduler", "every value"])
def test_objects_are_valid(values: dict[str, Any], version: str) -> None:
    """Old and new API servers know every field of the objects."""
    for each in objects(values):
        check(each, version)


def test_the_extender_is_off_by_default() -> None:
    """Nothing of the extender is there, and the daemons have no right on pods."""
    assert not [each for each in objects() if each["kind"] in {"Deployment", "PodDisruptionBudget"}]
    assert "FOLLOW_PODS" not in environment()


def test_every_variable_is_an_option() -> None:
    """What the chart sets is what the command knows, so a misspelt one cannot go unnoticed."""
    known = {each.envvar for each in command.params}
    for values in (ON, OWN, {"scheduler": {**ON["scheduler"], "tls": TLS}}):
        assert set(set_variables(values)) <= known
    given = set_variables({"scheduler": {**ON["scheduler"], "tls": TLS}})
    assert given["TLS_CLIENT_AUTHORITY"] == "/etc/gpushare/tls/ca.crt"
    assert given["LEASE_NAMESPACE"] == "metadata.namespace"


def test_the_extender_binds_only_pods_of_the_charts_kube_scheduler() -> None:
    """The extender knows the profiles that the chart makes; those of the control plane are not known here."""
    (profile,) = configuration(OWN)["profiles"]
    assert set_variables(OWN)["SCHEDULER_NAMES"] == profile["schedulerName"]
    assert "SCHEDULER_NAMES" not in set_variables(ON)


def test_the_extender_makes_the_certificates_for_the_charts_kube_scheduler() -> None:
    """By default kube-scheduler waits for its Secret, and the extender may write that one and its own alone."""
    own = set_variables(OWN)["TLS_SECRET"]
    client = OwnCertificateSettings(own, "host").client
    (tls,) = (each for each in pod(OWN, "gpushare-kube-scheduler")["volumes"] if each["name"] == "tls")
    secrets = [source["secret"] for source in tls["projected"]["sources"]]
    assert {(each["name"], each.get("optional", False)) for each in secrets} == {(client, False)}
    paths = {item["path"] for each in secrets for item in each["items"]}
    told = extender(OWN)
    assert {f"/etc/gpushare/tls/{path}" for path in paths} == {
        told["tlsConfig"][file] for file in ("caFile", "certFile", "keyFile")
    }
    assert (told["enableHTTPS"], told["urlPrefix"]) == (True, "https://gpushare-extender.kube-system.svc:32766")
    rules = [rule for rule in one(OWN, "Role")["rules"] if rule["resources"] == ["secrets"]]
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in rules] == [
        (["create"], None),
        (["get", "update"], [own, client]),
    ]
    assert not [each for each in objects(OWN) if each["kind"] == "Secret"]


@pytest.mark.parametrize("off", ["off", False])
def test_https_can_be_off(off: str | bool) -> None:  # noqa: FBT001 - YAML reads `off` as false, --set as a text
    """The notes then say what any program in the cluster can do; with certificates they do not."""
    values = {"scheduler": {**OWN["scheduler"], "tls": off}}
    assert extender(values)["urlPrefix"].startswith("http://")
    assert "TLS_SECRET" not in set_variables(values)
    assert not [rule for rule in one(values, "Role")["rules"] if rule["resources"] == ["secrets"]]
    warning = "The extender does not verify who asks it"
    assert warning in templates(values)["NOTES.txt"]
    assert warning in templates(ON)["NOTES.txt"]
    assert warning not in templates(OWN)["NOTES.txt"]
    assert warning not in templates({"scheduler": {**ON["scheduler"], "tls": TLS}})["NOTES.txt"]


def test_policies_are_those_of_the_extender() -> None:
    """The schema of the values knows the same ones."""
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    assert schema["properties"]["scheduler"]["properties"]["placement"]["enum"] == list(POLICIES)


def test_the_service_leaves_its_endpoint_to_the_extender() -> None:
    """Without a selector no controller of Kubernetes writes its endpoints; the leader does, in a slice of its name."""
    service = one(ON, "Service")
    assert "selector" not in service["spec"]
    assert set_variables(ON)["SERVICE_NAME"] == service["metadata"]["name"]
    ports = {each["name"]: each["port"] for each in service["spec"]["ports"]}
    assert set_variables(ON)["LISTEN_ADDRESS"] == f":{ports['extender']}"
    rules = one(ON, "Role")["rules"]
    assert [[service["metadata"]["name"]]] == [
        rule["resourceNames"] for rule in rules if rule["resources"] == ["endpointslices"] and "resourceNames" in rule
    ]


def test_openshift_lets_the_extender_write_addresses_of_pods() -> None:
    """There, whoever writes the addresses of pods into an EndpointSlice needs one more right."""
    rules = [rule for rule in one(ON, "Role")["rules"] if "endpointslices/restricted" in rule["resources"]]
    assert [(rule["apiGroups"], rule["verbs"]) for rule in rules] == [(["discovery.k8s.io"], ["create"])]


def test_the_right_to_renew_is_for_the_lease_of_the_extender() -> None:
    """The command uses that Lease."""
    (name,) = {
        name
        for rule in one(ON, "Role")["rules"]
        if rule["resources"] == ["leases"]
        for name in rule.get("resourceNames", [])
    }
    assert name == ExtenderSettings(address=":0", namespace="a").lease


def test_a_node_can_be_drained() -> None:
    """One pod of each Deployment may go at a time, and both run on different nodes where that is possible."""
    for name in ("gpushare-extender", "gpushare-kube-scheduler"):
        deployment, budget = one(OWN, "Deployment", name)["spec"], one(OWN, "PodDisruptionBudget", name)["spec"]
        assert deployment["replicas"] == 2
        assert budget["maxUnavailable"] == 1
        assert budget["selector"] == deployment["selector"]
        (term,) = pod(OWN, name)["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert term["podAffinityTerm"]["labelSelector"] == deployment["selector"]
    single = {"scheduler": {"enabled": True, "replicas": 1}}
    assert not [each for each in objects(single) if each["kind"] == "PodDisruptionBudget"]


def test_pods_have_no_privilege() -> None:
    """They run as nobody, write nothing, and only the extender's has its own certificate's key."""
    for name in ("gpushare-extender", "gpushare-kube-scheduler"):
        (only,) = pod(OWN, name)["containers"]
        assert only["securityContext"]["runAsNonRoot"] is True
        assert only["securityContext"]["readOnlyRootFilesystem"] is True
        assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    values = {"scheduler": {**OWN["scheduler"], "tls": {"secretName": "server", "clientSecretName": ""}}}
    (tls,) = (each for each in pod(values, "gpushare-kube-scheduler")["volumes"] if each["name"] == "tls")
    assert tls["projected"]["sources"] == [
        {"secret": {"name": "server", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    ]


def test_kube_scheduler_sends_names_and_waits_longer_than_a_binding_takes() -> None:
    """No pod with a share is placed without the extender."""
    told = extender(ON)
    assert {key: told[f"{key}Verb"] for key in ("filter", "prioritize", "preempt", "bind")} == {
        key: key for key in ("filter", "prioritize", "preempt", "bind")
    }
    assert told["nodeCacheCapable"] is True
    assert told["ignorable"] is False
    assert float(told["httpTimeout"].removesuffix("s")) > BinderTiming().binding
    assert told["managedResources"] == [
        {"name": name, "ignoredByScheduler": False} for name in ("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage")
    ]


def test_resources_come_from_every_config() -> None:
    """Shared ones under the names that pods use, and whole GPUs, which the extender keeps apart from shared ones."""
    slices = {
        "version": "v1",
        "sharing": {"mps": {"sizes": [{"devices": "all", "slices": [{"size": "10gb", "count": 2}]}]}},
    }
    turns = {
        "version": "v1",
        "resources": {"gpus": [{"pattern": "*A100*", "name": "a100"}]},
        "sharing": {"timeSlicing": {"renameByDefault": True, "resources": [{"name": "gpu", "replicas": 2}]}},
    }
    values = {**ON, "config": {"map": {"default": slices, "turns": turns}}, "mps": {"enabled": True}}
    names = {each["name"] for each in extender(values)["managedResources"]}
    assert names >= {"nvidia.com/gpu-10gb", "nvidia.com/gpu.shared", "nvidia.com/a100", "nvidia.com/gpu"}
    assert extender(EVERYTHING)["managedResources"] == [{"name": "example.com/gpu", "ignoredByScheduler": False}]


@pytest.mark.parametrize(
    ("service", "address"),
    [
        ({"clusterIP": "10.96.0.9"}, "http://10.96.0.9:32766"),
        ({"clusterIP": "fd00::9"}, "http://[fd00::9]:32766"),
        ({"nodePort": 32766}, "http://127.0.0.1:32766"),
        ({}, "http://gpushare-extender.kube-system.svc:32766"),
    ],
)
def test_the_address_of_the_extender_works_in_the_network_of_the_host(service: dict[str, Any], address: str) -> None:
    """kube-scheduler of the control plane is there, and uses the address that the service was given."""
    assert extender({"scheduler": {"enabled": True, "service": service}})["urlPrefix"] == address


def test_a_scheduler_of_its_own_has_a_lease_a_name_and_rights() -> None:
    """The rights are kube-scheduler's own."""
    told = configuration(OWN)
    assert told["profiles"] == [{"schedulerName": "gpushare-scheduler"}]
    assert told["leaderElection"]["resourceName"] == "gpushare-kube-scheduler"
    bound = {
        (each["kind"], each["roleRef"]["name"])
        for each in objects(OWN)
        if each["kind"].endswith("RoleBinding") and each["subjects"][0]["name"] == "gpushare-kube-scheduler"
    }
    assert bound == {
        ("ClusterRoleBinding", "system:kube-scheduler"),
        ("ClusterRoleBinding", "system:volume-scheduler"),
        ("RoleBinding", "extension-apiserver-authentication-reader"),
        ("RoleBinding", "gpushare-kube-scheduler-lease"),
    }
    (only,) = pod(OWN, "gpushare-kube-scheduler")["containers"]
    assert re.fullmatch(r"registry\.k8s\.io/kube-scheduler:v1\.\d+\.\d+", only["image"])
    (only,) = pod(EVERYTHING, "gpushare-kube-scheduler")["containers"]
    assert only["image"] == "mirror.example.com/scheduler:v1.30.1"


def test_kube_scheduler_restarts_with_another_configuration() -> None:
    """kube-scheduler reads its configuration only once."""
    heavier = {"scheduler": {**OWN["scheduler"], "weight": 9}}
    before, after = (
        one(values, "Deployment", "gpushare-kube-scheduler")["spec"]["template"]["metadata"]["annotations"]
        for values in (OWN, heavier)
    )
    assert before != after


def test_notes_say_that_kube_scheduler_of_the_control_plane_has_to_be_restarted() -> None:
    """kube-scheduler reads its configuration when it starts, and nothing restarts a static pod whose file changes."""
    assert "restart kube-scheduler" in templates(ON)["NOTES.txt"]
    assert "restart kube-scheduler" not in templates(OWN)["NOTES.txt"]


def test_the_name_in_the_certificate_is_asked_for_whatever_the_address_is() -> None:
    """Clients prove who they are where they can."""
    told = extender({"scheduler": {"enabled": True, "tls": TLS, "service": {"clusterIP": "10.96.0.9"}}})
    assert told["urlPrefix"] == "https://10.96.0.9:32766"
    assert told["enableHTTPS"] is True
    assert told["tlsConfig"] == {
        "serverName": "gpushare-extender.kube-system.svc",
        "caFile": "/etc/kubernetes/gpushare/ca.crt",
        "certFile": "/etc/kubernetes/gpushare/tls.crt",
        "keyFile": "/etc/kubernetes/gpushare/tls.key",
    }


@pytest.mark.parametrize(
    ("values", "follows"),
    [
        (ON, True),
        ({}, False),
        ({**ON, "cluster": {"followPods": False}}, False),
        ({"cluster": {"followPods": True}}, True),
    ],
)
def test_daemons_follow_their_pods(values: dict[str, Any], follows: bool) -> None:  # noqa: FBT001 - what is expected
    """They do with the extender, or on request; they have rights on pods exactly then."""
    assert (environment(values).get("FOLLOW_PODS") == "true") is follows
    rules = one(values, "ClusterRole", "gpushare")["rules"]
    verbs = {resource: rule["verbs"] for rule in rules for resource in rule["resources"] if "pods" in resource}
    assert verbs == ({"pods": ["list", "watch"], "pods/status": ["patch"]} if follows else {})


def test_the_extender_is_reached_by_kube_scheduler_or_listed_addresses() -> None:
    """Without either, everyone reaches it: a host has no labels."""

    def ingress(values: dict[str, Any]) -> Any:
        made = one({**values, "networkPolicy": {"enabled": True, **values.get("networkPolicy", {})}}, "NetworkPolicy")
        (rule,) = made["spec"]["ingress"]
        assert rule["ports"] == [{"port": "extender"}]
        return rule.get("from")

    (peer,) = ingress(OWN)
    assert peer["podSelector"] == one(OWN, "Deployment", "gpushare-kube-scheduler")["spec"]["selector"]
    block = [{"ipBlock": {"cidr": "192.0.2.1/32"}}]
    assert ingress({**ON, "networkPolicy": {"schedulers": block}}) == block
    assert ingress(ON) is None


@pytest.mark.parametrize(
    ("values", "nodes", "names"),
    [
        ({}, None, None),
        ({"cordonConfigMaps": True}, "*", []),
        ({"cordonNodes": ["a-1", "a-2"]}, "a-1,a-2", ["unhealthy-gpu-a-1", "unhealthy-gpu-a-2"]),
    ],
)
def test_config_maps_that_cordon_are_read_on_request(
    values: dict[str, Any], nodes: str | None, names: list[str] | None
) -> None:
    """The extender may read none, those of kube-system, or those that are named, and tries just what it may."""
    made = {"scheduler": {"enabled": True, **values}}
    assert set_variables(made).get("CORDON_NODES") == nodes
    roles = [
        each for each in objects(made) if each["kind"] == "Role" and each["metadata"]["namespace"] == "kube-system"
    ]
    rules = [rule for role in roles for rule in role["rules"] if rule["resources"] == ["configmaps"]]
    assert [rule.get("resourceNames", []) for rule in rules] == ([] if names is None else [names])


def metrics(kind: str, values: dict[str, Any]) -> list[Any]:
    """Return those objects of a kind that find the extender's pods."""
    labels = one(values, "Deployment")["spec"]["selector"]["matchLabels"]
    found = [each for each in objects(values) if each["kind"] == kind]
    selectors = [(each, each["spec"].get("selector") or {}) for each in found]
    return [each for each, selector in selectors if selector.get("matchLabels", selector) == labels]


def test_extenders_are_scraped_as_daemons_are() -> None:
    """The same two values make a Service and a PodMonitor for the port of their probes, each of all extenders."""
    assert not metrics("PodMonitor", ON)
    assert not metrics("Service", ON)
    wanted = {"enabled": True, "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"}}
    values = {
        "scheduler": {"enabled": True, "probePort": 1235},
        "service": wanted,
        "podMonitor": {"enabled": True, "interval": "1m", "labels": {"release": "monitors"}},
    }
    (service,), (monitor,) = metrics("Service", values), metrics("PodMonitor", values)
    (only,) = pod(values)["containers"]
    assert {"name": "probes", "containerPort": 1235} in only["ports"]
    assert service["spec"]["ports"] == [{"name": "probes", "port": 1235, "targetPort": "probes"}]
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert service["metadata"]["annotations"] == {"prometheus.io/scrape": "true", "prometheus.io/port": "1235"}
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"], endpoint["interval"]) == ("probes", "/metrics", "1m")
    assert monitor["metadata"]["labels"]["release"] == "monitors"


def test_the_network_policy_lets_prometheus_in() -> None:
    """Who may scrape the daemons may scrape the extenders, at the port of their probes; by default nobody may."""

    def rules(**values: Any) -> list[Any]:
        made = {**ON, **values, "networkPolicy": {"enabled": True, **values.get("networkPolicy", {})}}
        found: list[Any] = one(made, "NetworkPolicy")["spec"].get("ingress", [])
        return [rule for rule in found if rule["ports"] == [{"port": "probes"}]]

    prometheus = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    assert rules() == []
    assert rules(podMonitor={"enabled": True}) == [{"ports": [{"port": "probes"}]}]
    assert rules(networkPolicy={"from": prometheus}) == [{"ports": [{"port": "probes"}], "from": prometheus}]


@pytest.mark.parametrize("name", ["scheduler.yaml", "own-scheduler.yaml"])
def test_examples_are_those_of_the_documents(name: str) -> None:
    """Each is named where it is explained."""
    assert f"examples/values/{name}" in (CHART.parent.parent / "docs/scheduling.md").read_text()
    assert yaml_of(EXAMPLE_VALUES / name)["scheduler"]["enabled"] is True


def test_the_recommended_values_go_with_a_managed_control_plane() -> None:
    """The address for a kube-scheduler of the control plane is left out: it is outside the range of many clouds."""
    values = yaml_of(EXAMPLE_VALUES / "recommended.yaml")
    assert "clusterIP" in one(values, "Service")["spec"]
    values = merged(values, yaml_of(EXAMPLE_VALUES / "own-scheduler.yaml"))
    assert "clusterIP" not in one(values, "Service")["spec"]
    assert extender(values)["urlPrefix"] == "https://gpushare-extender.kube-system.svc:32766"
    assert pod(values, "gpushare-kube-scheduler")


def test_the_pod_of_helm_test_has_the_scheduler_of_pods_with_a_share() -> None:
    """Another scheduler would place the pod by the sum of a node, and take units that are promised."""
    assert one(OWN, "Pod", "gpushare-test")["spec"]["schedulerName"] == "gpushare-scheduler"
    assert "schedulerName" not in one(ON, "Pod", "gpushare-test")["spec"]
    assert one(EVERYTHING, "Pod", "gpushare-test")["spec"]["schedulerName"] == "mine"


def test_files_are_where_the_configuration_expects_them() -> None:
    """The chart's kube-scheduler mounts what its configuration names."""
    values = {"scheduler": {**OWN["scheduler"], "tls": TLS}}
    (only,) = pod(values, "gpushare-kube-scheduler")["containers"]
    mounts = {each["mountPath"] for each in only["volumeMounts"]}
    tls = extender(values)["tlsConfig"]
    assert {str(Path(tls[key]).parent) for key in ("caFile", "certFile", "keyFile")} <= mounts
    assert "--config=/etc/gpushare/scheduler/scheduler.yaml" in only["command"]


def test_notes_say_what_is_left_to_do() -> None:
    """The notes have the configuration for the control plane, or the name for pods, and warn of the right on pods."""
    notes = templates(ON)["NOTES.txt"]
    assert "get configmap gpushare-kube-scheduler -o jsonpath='{.data.scheduler\\.yaml}'" in notes
    assert "set scheduler.service.clusterIP" in notes
    assert "cluster.admissionPolicy limits\nthem" in notes
    assert "spec: {schedulerName: gpushare-scheduler}" in templates(OWN)["NOTES.txt"]
    safe = {"scheduler": {"enabled": True, "service": {"nodePort": 32766}}, "cluster": {"admissionPolicy": True}}
    assert "clusterIP" not in templates(safe)["NOTES.txt"]
    assert "admissionPolicy" not in templates(safe)["NOTES.txt"]
    assert "extender" not in templates()["NOTES.txt"]
    assert "kubectl -n kube-system exec deploy/gpushare-extender -- gpushare inspect\n" in notes


@pytest.mark.parametrize("values", [ON, OWN], ids=["extender", "own scheduler"])
def test_packing_scores_pods_without_gpus_by_a_second_entry(values: dict[str, Any]) -> None:
    """The entry only scores, as heavily as the first, and the same extender answers; nothing else is asked of it."""
    packing = {"scheduler": {**values["scheduler"], "placement": "packing", "packing": {"exact": True}}}
    first, second = configuration(packing)["extenders"]
    assert first == extender(values)
    assert second.pop("prioritizeVerb") == "prioritize-others"
    assert (second.pop("ignorable"), second.pop("httpTimeout")) == (True, "1s")
    assert second == {key: first[key] for key in second}
    assert {"urlPrefix", "weight", "nodeCacheCapable"} <= second.keys() < first.keys()
    assert not {"filterVerb", "preemptVerb", "bindVerb", "managedResources"} & second.keys()
    assert (set_variables(packing)["PLACEMENT"], set_variables(packing)["PACKING_EXACT"]) == ("packing", "true")
    assert "PACKING_EXACT" not in set_variables(values)


def test_the_best_nodes_alone_are_for_packing() -> None:
    """The chart refuses the value where another policy would ignore it."""
    with pytest.raises(HelmError, match=r"exact is true, but scheduler\.placement is binpack"):
        templates({"scheduler": {**ON["scheduler"], "packing": {"exact": True}}})


@pytest.mark.parametrize("values", [ON, OWN, EVERYTHING], ids=["extender", "own scheduler", "every value"])
def test_kube_scheduler_asks_about_every_node(values: dict[str, Any]) -> None:
    """A pod may fit on the GPUs of one node only, which need not be in a sample."""
    assert configuration(values)["percentageOfNodesToScore"] == 100


def test_every_documented_configuration_asks_about_every_node() -> None:
    """Whoever copies one from a page or an example gets the setting with it."""
    pages = [path for folder in ("docs", "examples", "charts") for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = {path: path.read_text() for path in (ROOT / "README.md", *pages) if path.suffix in {".md", ".yaml", ".tpl"}}
    parts = [
        (path.relative_to(ROOT), part)
        for path, text in texts.items()
        for part in re.split(r"^(?:```.*|---.*)$", text, flags=re.MULTILINE)
        if "kind: KubeSchedulerConfiguration" in part and "{{" not in part
    ]
    assert {str(path) for path, _ in parts} >= {"docs/scheduling.md"}
    assert [path for path, part in parts if "percentageOfNodesToScore: 100" not in part] == []
