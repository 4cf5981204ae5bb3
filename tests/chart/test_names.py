"""Names that YAML could take for something else, in every place that a name can have."""

import re
from typing import Any

import pytest

from tests.chart.reading import container, daemonset, environment
from tests.chart.rendering import objects
from tests.chart.test_chart import KUBERNETES, MPS_CONFIG
from tests.chart.validity import check

SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
"""The names that Kubernetes takes for most kinds (RFC 1123)."""


def everywhere(name: str) -> dict[str, Any]:
    """Return values that have this name wherever they can have one; some kinds take fewer names than others."""
    return {
        "image": {"repository": name, "tag": name},
        "commonLabels": {"group": name},
        "createRuntimeClass": True,
        "extraEnv": [{"name": "NAME", "value": name}],
        "extraArgs": [name],
        "imagePullSecrets": [{"name": name}],
        "nameOverride": name,
        "fullnameOverride": name,
        "namespaceOverride": name.replace(".", "-"),
        "selectorLabelsOverride": {"app": name},
        "runtimeClassName": name,
        "config": {"map": {name: MPS_CONFIG}, "default": name},
        "mps": {"enabled": True, "root": "/run/nvidia/mps"},
        "cluster": {"cordonNodes": [name]},
        "serviceAccount": {"name": name},
        "service": {"enabled": name.isalpha(), "annotations": {"example.com/name": name}},
        "podMonitor": {"enabled": True, "labels": {"release": name}},
        "networkPolicy": {"enabled": True},
        "podAnnotations": {"example.com/name": name},
        "podLabels": {"name": name},
        "nodeSelector": {"name": name},
        "priorityClassName": name,
        "dpDisableHealthchecks": name,
    }


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", ["123", "010", "1e3", "0x1f", "1.5", "true", "no", "null", "2026-11-21"])
def test_names_stay_text(name: str, version: str) -> None:
    """Whatever a name looks like, the API server is given a string."""
    values = everywhere(name)
    for each in objects(values, release=name):
        check(each, version)
    assert daemonset(values, release=name)["metadata"]["namespace"] == name.replace(".", "-")


@pytest.mark.parametrize("between", [".", "--"])
@pytest.mark.parametrize("length", range(50, 64))
def test_names_are_cut_where_they_can_end(length: int, between: str) -> None:
    """A name that is too long for its ending is not cut behind a dot or a hyphen, which no name ends with."""
    long = "g" * length + between + "g" * 20
    names = {"nameOverride": long, "fullnameOverride": long, "serviceAccount": {"name": ""}}
    made = objects({**everywhere("gpus"), **names, "service": {"enabled": False}})
    assert re.fullmatch(SUBDOMAIN, made[0]["metadata"]["labels"]["app.kubernetes.io/name"])
    for name in (each["metadata"]["name"] for each in made):
        assert re.fullmatch(SUBDOMAIN, name), name
        assert len(name) <= 63


def test_paths_stay_text() -> None:
    """A path may have in it what YAML has a meaning for."""
    odd = "/data: a #1"
    values: dict[str, Any] = {"kubeletRootDir": odd, "nvidiaDriverRoot": odd, "mps": {"enabled": True, "root": odd}}
    for part in ("node-daemon", "mps"):
        volumes = daemonset(values, part=part)["spec"]["template"]["spec"]["volumes"]
        paths = {each["hostPath"]["path"] for each in volumes if "hostPath" in each}
        assert {odd} <= paths <= {odd, f"{odd}/shm", f"{odd}/pod-resources", "/var/lib/kubelet/device-plugins"}
        assert environment(values, part)["MPS_ROOT"] == odd
        assert odd in {mount["mountPath"] for mount in container(values, part)["volumeMounts"]}


def test_objects_go_to_the_namespace_that_is_named() -> None:
    """Everything that lives in a namespace goes to the one that is named, but for the rights in kube-system."""
    for each in objects({**everywhere("gpus"), "simulate": None}):
        # The clean-up deletes Leases, which are in the namespace of those that hold them.
        in_kube_system = each["kind"] in {"Role", "RoleBinding"} and not each["metadata"]["name"].endswith("-cleanup")
        of_the_cluster = each["kind"] in {"ClusterRole", "ClusterRoleBinding", "RuntimeClass"}
        expected = "kube-system" if in_kube_system else None if of_the_cluster else "gpus"
        assert each["metadata"].get("namespace") == expected
        assert {subject["namespace"] for subject in each.get("subjects", [])} <= {"gpus"}


def test_releases_keep_apart() -> None:
    """Pods are found by their release, so that two of them can be in one namespace."""
    one, other = (daemonset(release=name)["spec"]["selector"]["matchLabels"] for name in ("gpushare-a", "gpushare-b"))
    assert one != other


def test_selector_labels_can_be_replaced() -> None:
    """Labels of the value stand in for name and instance in the selectors, and the pods have all of them."""
    for part in ("node-daemon", "mps"):
        values = {"selectorLabelsOverride": {"app": "gpus"}, "mps": {"enabled": True}}
        spec = daemonset(values, part=part)["spec"]
        assert spec["selector"]["matchLabels"] == {"app": "gpus", "app.kubernetes.io/component": part}
        labels = spec["template"]["metadata"]["labels"]
        plain = daemonset({"mps": {"enabled": True}}, part=part)["spec"]["template"]["metadata"]["labels"]
        assert labels == {**plain, "app": "gpus"}


def test_pod_labels_leave_the_selector_alone() -> None:
    """A label of the user does not take the place of one that pods are found by."""
    labels = {"app.kubernetes.io/component": "gpus", "app.kubernetes.io/name": "gpus", "team": "gpus"}
    spec = daemonset({"podLabels": labels})["spec"]
    found = spec["template"]["metadata"]["labels"]
    assert found == {"team": "gpus", **spec["selector"]["matchLabels"]}
