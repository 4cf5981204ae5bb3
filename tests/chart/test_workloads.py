"""Values that every program of the chart has: of its object, of its pods and of its container; and objects of users."""

from typing import Any

import helm_python
import pytest

from tests.chart.rendering import objects, templates
from tests.chart.test_chart import CONFIG, POD, SPREAD

PLACES: dict[str, list[str]] = {
    "node-daemon": [],
    "mps": ["mps"],
    "mig": ["partitioning", "mig"],
    "driver-limits": ["driverLimits"],
    "extender": ["scheduler"],
    "kube-scheduler": ["scheduler", "kubeScheduler"],
    "partitioner": ["partitioning"],
    "cleanup": ["cleanup"],
    "doctor": ["doctor"],
    "test": ["helmTest"],
}
"""Component -> where the values of the program are."""

ALL: dict[str, Any] = {
    "cluster": {"followPods": True},
    "doctor": {"nodes": ["node-a"]},
    "driverLimits": {"enabled": True},
    "mps": {"enabled": True},
    "partitioning": {"enabled": True, "mig": {"enabled": True}},
    "scheduler": {"enabled": True, "kubeScheduler": {"enabled": True}},
}
"""Values with which every program runs."""

DEPLOYED = {"extender", "kube-scheduler", "partitioner"}


def given(component: str, said: dict[str, Any], base: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return values with which every program runs, and which say something of one of them."""

    def below(values: dict[str, Any], place: list[str]) -> dict[str, Any]:
        if not place:
            return {**values, **said}
        return {**values, place[0]: below(values.get(place[0], {}), place[1:])}

    return below(ALL if base is None else base, PLACES[component])


def workloads(values: dict[str, Any]) -> dict[str, Any]:
    """Return the objects that make pods, and the pod of `helm test`, by the component of their pods."""
    made = [each for each in objects(values) if each["kind"] in {"DaemonSet", "Deployment", "Job", "Pod"}]
    return {template(each)["metadata"]["labels"]["app.kubernetes.io/component"]: each for each in made}


def template(workload: Any) -> Any:
    """Return the object's template of pods; a pod is its own."""
    return workload if workload["kind"] == "Pod" else workload["spec"]["template"]


def variables(workload: Any) -> list[Any]:
    """Return the environment of the one container."""
    (container,) = template(workload)["spec"]["containers"]
    found: list[Any] = container.get("env", [])
    return found


def test_the_programs_of_the_tests_are_those_of_the_chart() -> None:
    """Whoever adds a program to the chart finds these tests."""
    assert set(workloads(ALL)) == set(PLACES)


@pytest.mark.parametrize("component", PLACES)
def test_values_of_a_program_reach_its_pods_and_no_others(component: str) -> None:
    """Labels, annotations, variables and name servers are those of the values of the program."""
    said = {**POD, "podLabels": {"part": "this"}, "podAnnotations": {"part": "this"}}
    before, after = workloads(ALL), workloads(given(component, said))
    pod = template(after[component])
    assert pod["metadata"]["labels"]["part"] == "this"
    assert pod["metadata"]["annotations"]["part"] == "this"
    assert {key: pod["spec"][key] for key in ("dnsPolicy", "dnsConfig")} == {
        key: POD[key] for key in ("dnsPolicy", "dnsConfig")
    }
    assert variables(after[component])[-1] == {"name": "TZ", "value": "UTC"}
    for other in set(PLACES) - {component} if component != "node-daemon" else ():
        assert after[other] == before[other], other


def test_labels_at_the_top_are_those_of_all_pods_and_annotations_those_of_nodes_with_gpus() -> None:
    """What a program says itself comes before."""
    values = given("mps", {"podAnnotations": {"a": "mine"}, "podLabels": {"a": "mine"}})
    made = workloads({**values, "podAnnotations": {"a": "1", "b": "2"}, "podLabels": {"a": "1", "b": "2"}})
    for component, workload in made.items():
        metadata = template(workload)["metadata"]
        first = "mine" if component == "mps" else "1"
        assert metadata["labels"].items() >= {"a": first, "b": "2"}.items(), component
        annotated = component in {"node-daemon", "mps", "mig", "driver-limits"}
        assert ({"a": first, "b": "2"}.items() <= metadata.get("annotations", {}).items()) is annotated, component


@pytest.mark.parametrize("component", sorted(set(PLACES) - {"test"}))
def test_annotations_of_a_workload_are_those_of_its_object(component: str) -> None:
    """Tools that act on DaemonSets, Deployments or Jobs find them there, and not in the pods."""
    made = workloads(given(component, {"annotations": {"reload": "yes"}}))
    assert made[component]["metadata"]["annotations"]["reload"] == "yes"
    assert "reload" not in template(made[component])["metadata"].get("annotations", {})
    assert [other for other, each in made.items() if "reload" in each["metadata"].get("annotations", {})] == [component]


@pytest.mark.parametrize("component", sorted(DEPLOYED))
def test_pods_of_a_deployment_are_spread_by_request(component: str) -> None:
    """A constraint without a selector counts the pods of the Deployment; one that has a selector keeps it."""
    own = {**SPREAD[0], "labelSelector": {"matchLabels": {"team": "gpu"}}}
    owner = "extender" if component == "kube-scheduler" else component
    made = workloads(given(owner, {"topologySpreadConstraints": [*SPREAD, own]}))[component]
    first, second = made["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert first == {**SPREAD[0], "labelSelector": made["spec"]["selector"]}
    assert second == own


@pytest.mark.parametrize("component", ["cleanup", "doctor", "test"])
def test_resources_of_a_hook_come_over_those_of_the_chart(component: str) -> None:
    """A quota still finds every quantity, and the share of the test pod stays."""

    def resources(values: dict[str, Any]) -> Any:
        (container,) = template(workloads(values)[component])["spec"]["containers"]
        return container["resources"]

    before, after = resources(ALL), resources(given(component, {"resources": {"limits": {"memory": "1Gi"}}}))
    assert after == {**before, "limits": {**before["limits"], "memory": "1Gi"}}


def sentence(values: dict[str, Any]) -> str:
    """Return what the chart says when it refuses the values."""
    with pytest.raises(helm_python.HelmRenderError) as refusal:
        objects(values)
    return str(refusal.value)


@pytest.mark.parametrize("component", PLACES)
def test_values_of_a_program_cannot_take_the_place_of_the_charts(component: str) -> None:
    """Selectors, hooks and variables stay those of the chart; the sentence names the value."""
    place = "".join(f"{each}." for each in PLACES[component])
    made = template(workloads(ALL)[component])
    if component != "node-daemon":
        said = sentence(given(component, {"podLabels": {"app.kubernetes.io/component": "mine"}}))
        assert (
            f"{place}podLabels sets app.kubernetes.io/component to mine, but the chart itself sets it to {component}"
        ) in said
    for own in made["metadata"].get("annotations", {}):
        assert f"{place}podAnnotations sets {own} to x, but" in sentence(
            given(component, {"podAnnotations": {own: "x"}})
        )
    for own in {each["name"] for each in variables(workloads(ALL)[component])} - RUNTIME:
        said = sentence(given(component, {"extraEnv": [{"name": own, "value": "x"}]}))
        assert f"{place}extraEnv sets {own}, which the chart sets itself: remove it there" in said
    twice = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    assert f"{place}extraEnv sets A twice: remove one of them" in sentence(given(component, {"extraEnv": twice}))
    assert f"{place}dnsPolicy is None, but {place}dnsConfig has no nameservers" in sentence(
        given(component, {"dnsPolicy": "None"})
    )


RUNTIME = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
"""Variables for NVIDIA's runtime, which values can set otherwise."""


@pytest.mark.parametrize("component", ["node-daemon", "mps", "mig"])
def test_what_the_runtime_gives_a_container_can_be_set(component: str) -> None:
    """A toolkit that needs another variable gets it, once; all others stay."""
    said = {"extraEnv": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}
    before, after = (workloads(values)[component] for values in (ALL, given(component, said)))
    kept = [each for each in variables(before) if each["name"] != "NVIDIA_VISIBLE_DEVICES"]
    assert variables(after) == kept + said["extraEnv"]


def test_the_hooks_of_the_cleanup_stay_hooks() -> None:
    """The account and the rights of the Job get its annotations, too, and none can undo the hook."""
    made = objects({"cleanup": {"annotations": {"a": "b"}}})
    hooks = [each["metadata"]["annotations"] for each in made if each["metadata"]["name"] == "gpushare-cleanup"]
    assert len(hooks) == 6
    assert all(each["a"] == "b" and each["helm.sh/hook"] == "post-delete" for each in hooks)
    said = sentence({"cleanup": {"annotations": {"helm.sh/hook": "pre-delete"}}})
    assert "cleanup.annotations sets helm.sh/hook to pre-delete, but the chart itself sets it to post-delete" in said


def test_labels_at_the_top_that_the_chart_sets_are_named_in_the_notes() -> None:
    """They have no effect, as ever: selectors could not change."""
    values = {"podLabels": {"app.kubernetes.io/name": "mine", "team": "gpu"}}
    assert workloads(values)["node-daemon"] == workloads({"podLabels": {"team": "gpu"}})["node-daemon"]
    notes = " ".join(templates(values)["NOTES.txt"].split())
    assert "podLabels sets app.kubernetes.io/name, which has no effect" in notes
    assert "has no effect" not in templates({"podLabels": {"team": "gpu"}})["NOTES.txt"]


def test_name_servers_are_found_in_the_network_of_the_node() -> None:
    """With hostNetwork the daemon resolves names of the cluster, unless the value says otherwise."""
    assert "dnsPolicy" not in template(workloads({})["node-daemon"])["spec"]
    for values, policy in (({}, "ClusterFirstWithHostNet"), ({"dnsPolicy": "Default"}, "Default")):
        spec = template(workloads({"hostNetwork": True, **values})["node-daemon"])["spec"]
        assert spec["dnsPolicy"] == policy


def test_objects_of_users_are_made_with_the_charts() -> None:
    """Given as a mapping or as text, with Helm's templates in them."""
    text = 'apiVersion: v1\nkind: Secret\nmetadata:\n  name: {{ include "gpushare.fullname" . }}-text\n'
    mapping = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-map"}}
    made = {(each["kind"], each["metadata"]["name"]) for each in objects({"extraObjects": [text, mapping]}, "mine")}
    assert made >= {("Secret", "mine-gpushare-text"), ("ConfigMap", "mine-map")}
    assert len(made) == len(objects({}, "mine")) + 2


def test_objects_of_users_can_have_a_condition() -> None:
    """Nothing is made of a text that is empty without its templates, and no other object is missing."""
    text = "{{ if .Values.mps.enabled }}\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\n{{ end }}\n"
    assert objects({"extraObjects": [text]}) == objects()
    made = objects({"extraObjects": [text], "mps": {"enabled": True}})
    assert "a" in {each["metadata"]["name"] for each in made if each["kind"] == "Secret"}


def test_braces_of_other_templates_can_be_written() -> None:
    """The text of an alert has templates of its own, as the comment in values.yaml says."""
    alert = {"summary": 'GPU {{ "{{" }} $labels.uuid }} is full'}
    given = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": alert}
    (made,) = (each for each in objects({"extraObjects": [given]}) if each["kind"] == "ConfigMap")
    assert made["data"] == {"summary": "GPU {{ $labels.uuid }} is full"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"apiVersion": "v1", "kind": "ConfigMap"},
        "kind: [",
        "a sentence",
        {"kind": "ConfigMap", "metadata": {"name": "a"}, "config": CONFIG},
    ],
    ids=str,
)
def test_what_is_no_object_is_refused(wrong: object) -> None:
    """The sentence says which item it is; the API server would not."""
    fine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    assert "extraObjects[1] is not one object with apiVersion, kind and metadata.name, but " in sentence(
        {"extraObjects": [fine, wrong]}
    )


@pytest.mark.parametrize("component", sorted({*DEPLOYED, "cleanup", "test"}))
def test_what_needs_nothing_of_a_node_runs_under_the_restricted_profile(component: str) -> None:
    """Each control of it (kubernetes.io/docs/concepts/security/pod-security-standards, version 1.36) is met."""
    spec = template(workloads(ALL)[component])["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & {key for key, each in spec.items() if each}
    assert {kind for volume in spec.get("volumes", []) for kind in volume} <= {
        "name",
        "configMap",
        "projected",
        "secret",
    }
    for container in spec["containers"]:
        assert not [port for port in container.get("ports", []) if "hostPort" in port]
        context = container["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] != 0
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"privileged", "procMount", "seLinuxOptions"} & context.keys()


def test_a_quota_that_demands_limits_can_be_met() -> None:
    """Every container can be given requests and limits of processors and memory; hooks have them anyway."""
    asked = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    values = ALL
    for component in PLACES:
        values = given(component, {"resources": asked}, values)
    for component, workload in workloads(values).items():
        (container,) = template(workload)["spec"]["containers"]
        for kind, amounts in asked.items():
            assert container["resources"][kind].items() >= amounts.items(), component
