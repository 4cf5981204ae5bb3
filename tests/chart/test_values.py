"""Values that are fields of objects or of the daemon's container, and where MPS runs."""

from typing import Any

import pytest

from tests.chart.reading import container, daemonset, environment, pod
from tests.chart.rendering import EXAMPLE_VALUES, objects, yaml_of
from tests.chart.test_chart import EVERYTHING, KUBERNETES
from tests.chart.validity import check

DIGEST = f"sha256:{'0' * 63}1"


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({"global": {"imageRegistry": "mirror.example.com/"}}, "mirror.example.com/gpushare:"),
        (
            {"global": {"imageRegistry": "mirror.example.com/a"}, "image": {"repository": "team/gpushare"}},
            "mirror.example.com/a/team/gpushare:",
        ),
        (
            {"global": {"imageRegistry": "mirror"}, "image": {"repository": "registry.example.com/team/gpushare"}},
            "mirror/team/gpushare:",
        ),
        ({"global": {"imageRegistry": "mirror"}, "image": {"repository": "localhost:5000/gpus"}}, "mirror/gpus:"),
        ({"global": {"imageRegistry": None}, "image": {"repository": "localhost/gpus"}}, "localhost/gpus:"),
        ({"image": {"digest": DIGEST}}, f"gpushare@{DIGEST}"),
        ({"image": {"digest": DIGEST, "tag": "v9"}}, f"gpushare:v9@{DIGEST}"),
    ],
)
def test_a_registry_and_a_digest_hold_for_every_pod(values: dict[str, Any], image: str) -> None:
    """A registry of all charts takes the place of the repository's own, and a digest that of the tag, in every pod."""
    values = {**values, "mps": {"enabled": True}}
    made = objects(values)
    found = {
        each["image"]
        for spec in [
            each["spec"] if each["kind"] == "Pod" else each["spec"].get("template", {}).get("spec")
            for each in made
            if "spec" in each
        ]
        if spec
        for each in spec["containers"]
    }
    assert len(found) == 1
    assert found.pop().startswith(image)


def test_common_labels_are_everywhere() -> None:
    """Every object and every pod has them; no selector has, so they can change, and they change no label of ours."""
    values = {**EVERYTHING, "commonLabels": {"team": "gpu", "app.kubernetes.io/name": "other"}, "podLabels": {}}
    made = objects(values)
    for each in made:
        assert each["metadata"]["labels"]["team"] == "gpu", each["kind"]
        assert each["metadata"]["labels"]["app.kubernetes.io/name"] == "shares"
        if each["kind"] in {"DaemonSet", "Job"}:
            assert each["spec"]["template"]["metadata"]["labels"]["team"] == "gpu"
            assert "team" not in each["spec"].get("selector", {}).get("matchLabels", {})


def test_extra_fields_reach_the_daemon() -> None:
    """What is added comes after what the chart sets; arguments, volumes and mounts in the daemon's pod only."""
    given = container(EVERYTHING)
    assert given["args"] == ["run", "--kubelet-is-fine"]
    assert given["env"][-1] == {"name": "TZ", "value": "UTC"}
    assert given["volumeMounts"][-1] == {"name": "more", "mountPath": "/more"}
    assert pod(EVERYTHING)["volumes"][-1] == {"name": "more", "emptyDir": {}}
    assert container(EVERYTHING, "mps")["args"] == ["mps"]
    assert "more" not in {each["name"] for each in pod(EVERYTHING, "mps")["volumes"]}


def test_service_account_has_annotations() -> None:
    """Cloud providers give rights by annotations of it."""
    values = {"serviceAccount": {"annotations": {"example.com/role": "gpus"}}}
    found = (each["metadata"] for each in objects(values) if each["kind"] == "ServiceAccount")
    assert next(each for each in found if each["name"] == "gpushare")["annotations"] == {"example.com/role": "gpus"}


def test_revisions_are_kept_on_request() -> None:
    """Kubernetes decides how many revisions it keeps, unless the value does; 0 is a number, too."""
    values: dict[str, Any] = {"mps": {"enabled": True}}
    for part in ("node-daemon", "mps"):
        assert "revisionHistoryLimit" not in daemonset(values, part=part)["spec"]
        assert daemonset({**values, "revisionHistoryLimit": 0}, part=part)["spec"]["revisionHistoryLimit"] == 0


def test_runtime_class_is_created_on_request() -> None:
    """It has the name that the pods ask for, and the handler that NVIDIA's toolkit calls the same."""
    (made,) = (
        each
        for each in objects({"runtimeClassName": "nvidia", "createRuntimeClass": True})
        if each["kind"] == "RuntimeClass"
    )
    assert (made["metadata"]["name"], made["handler"]) == ("nvidia", "nvidia")
    for version in KUBERNETES:
        check(made, version)


@pytest.mark.parametrize(
    ("cluster", "read", "names"),
    [
        ({}, "false", None),
        ({"cordonConfigMaps": True}, "true", []),
        ({"cordonNodes": ["gpu-1"]}, "true", ["unhealthy-gpu-gpu-1"]),
    ],
)
def test_config_maps_are_read_on_request(cluster: dict[str, Any], read: str, names: list[str] | None) -> None:
    """The daemon may read no ConfigMap, all of them, or those that are named, and tries just what it may."""
    values = {"cluster": cluster}
    assert environment(values)["CORDON_CONFIGMAP"] == read
    rules = [rule for each in objects(values) if each["kind"] == "Role" for rule in each["rules"]]
    of_config_maps = [rule for rule in rules if "configmaps" in rule["resources"]]
    assert [rule.get("resourceNames", []) for rule in of_config_maps] == ([] if names is None else [names])


def mps(values: dict[str, Any]) -> dict[str, Any]:
    """Return the pod of MPS."""
    found: dict[str, Any] = pod({**values, "mps": {"enabled": True, **values.get("mps", {})}}, "mps")
    return found


def test_mps_runs_where_a_config_wants_it() -> None:
    """The label that the daemon writes selects the nodes, besides what selects the daemon's."""
    assert mps({})["nodeSelector"] == {"gpushare/mps": "true"}
    assert mps({})["affinity"] == pod()["affinity"]
    assert mps({"nodeSelector": {"team": "gpu"}})["nodeSelector"] == {"gpushare/mps": "true", "team": "gpu"}
    assert mps({"cluster": {"nodeLabels": False}})["nodeSelector"] == {"gpushare/mps": "true"}
    assert "nodeSelector" not in pod({"mps": {"enabled": True}})


def test_mps_runs_with_the_daemon_where_there_are_no_labels() -> None:
    """Without access to the API server no daemon labels its node, so MPS does not wait for a label."""
    assert "nodeSelector" not in mps({"cluster": {"enabled": False}})
    assert mps({"cluster": {"enabled": False}})["affinity"] == pod()["affinity"]


def test_nodes_of_mps_can_be_chosen() -> None:
    """Values of its own take the place of the label and of the daemon's affinity."""
    assert "nodeSelector" not in mps({"mps": {"nodeSelector": {}}})
    assert mps({"mps": {"nodeSelector": {"mps": "yes"}}, "nodeSelector": {"a": "b"}})["nodeSelector"] == {
        "a": "b",
        "mps": "yes",
    }
    assert "affinity" not in mps({"mps": {"affinity": {}}})
    assert mps({"mps": {"affinity": {"podAffinity": {}}}})["affinity"] == {"podAffinity": {}}


@pytest.mark.parametrize("name", ["gpu-operator.yaml", "openshift.yaml"])
def test_the_operators_feature_discovery_is_left_alone(name: str) -> None:
    """Where NVIDIA's operator labels nodes, the daemon publishes none of these labels."""
    assert environment(yaml_of(EXAMPLE_VALUES / name))["NODE_LABELS"] == "false"


@pytest.mark.parametrize("name", ["gpu-operator.yaml", "openshift.yaml"])
def test_the_operators_driver_reaches_containers_by_cdi(name: str) -> None:
    """From 25.10 on, variables give no GPU there; gpushare's own specification needs the root of the driver."""
    given = environment(yaml_of(EXAMPLE_VALUES / name))
    assert (given["DEVICE_LIST_STRATEGY"], given["NVIDIA_DRIVER_ROOT"]) == ("cdi-cri", "/run/nvidia/driver")
