"""A values file of NVIDIA's chart: what it says is done, passed over where it changes nothing, or refused in words."""

import json
import re
from typing import Any

import helm_python
import pytest

from gpushare_plugin import __version__
from tests.chart.reading import daemonset, environment, host_paths, pod
from tests.chart.rendering import CHART, merged, objects, templates
from tests.chart.test_chart import FOREIGN, KUBERNETES
from tests.chart.validity import check

OURS = {"repository": "registry.example.com/gpushare", "pullPolicy": "IfNotPresent", "tag": ""}


def gpu_nodes(*labels: tuple[str, str]) -> dict[str, Any]:
    """Return an affinity for nodes with any of these labels."""
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]} for key, value in labels]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


DEFAULTS: dict[str, Any] = {
    "config": {"name": "", "map": {}, "default": "", "fallbackStrategies": ["named", "single"]},
    **dict.fromkeys(["compatWithCPUManager", "migStrategy", "failOnInitError", "deviceListStrategy"]),
    **dict.fromkeys(["deviceIDStrategy", "nvidiaDriverRoot", "gdrcopyEnabled", "gdsEnabled", "mofedEnabled"]),
    "deviceDiscoveryStrategy": None,
    "nameOverride": "",
    "fullnameOverride": "",
    "namespaceOverride": "",
    "selectorLabelsOverride": {},
    "componentSelectorLabels": {"enabled": False},
    "allowDefaultNamespace": False,
    "imagePullSecrets": [],
    "image": {"repository": "nvcr.io/nvidia/k8s-device-plugin", "pullPolicy": "IfNotPresent", "tag": ""},
    "updateStrategy": {"type": "RollingUpdate"},
    "podAnnotations": {},
    "podSecurityContext": {},
    "securityContext": {},
    "resources": {},
    "nodeSelector": {},
    "affinity": gpu_nodes(
        ("feature.node.kubernetes.io/pci-10de.present", "true"),
        ("feature.node.kubernetes.io/cpu-model.vendor_id", "NVIDIA"),
        ("nvidia.com/gpu.present", "true"),
    ),
    "tolerations": [
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    ],
    "priorityClassName": "system-node-critical",
    "runtimeClassName": None,
    "devicePlugin": {
        "enabled": True,
        "containers": {
            "main": {
                "env": [
                    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                    {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
                ]
            }
        },
    },
    "gfd": {
        "enabled": False,
        "nameOverride": "gpu-feature-discovery",
        "namespaceOverride": "",
        "noTimestamp": None,
        "sleepInterval": None,
        "securityContext": {"privileged": True},
    },
    "nfd": {
        "nameOverride": "node-feature-discovery",
        "master": {
            "serviceAccount": {"name": "node-feature-discovery", "create": True},
            "config": {"extraLabelNs": ["nvidia.com"]},
        },
        "worker": {
            "tolerations": [
                {"key": "node-role.kubernetes.io/master", "operator": "Equal", "value": "", "effect": "NoSchedule"},
                {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"},
            ],
            "config": {"sources": {"pci": {"deviceClassWhitelist": ["02", "03"], "deviceLabelFields": ["vendor"]}}},
        },
    },
    "mps": {"root": "/run/nvidia/mps", "enableHostPID": True},
    "cdi": {"nvidiaHookPath": None, "featureFlags": None},
}
"""The default values of NVIDIA's chart after 0.20 (deployments/helm/nvidia-device-plugin of commit 00f2a02c)."""

OLDER: dict[str, Any] = {
    "0.20": {"devicePlugin": {"enabled": True}, "componentSelectorLabels": None},
    "0.9": {
        "legacyDaemonsetAPI": False,
        "compatWithCPUManager": False,
        "migStrategy": "none",
        "failOnInitError": True,
        "deviceListStrategy": "envvar",
        "deviceIDStrategy": "uuid",
        "nvidiaDriverRoot": "/",
        "namespace": "kube-system",
        "affinity": {},
    },
    "0.14": {
        "legacyDaemonsetAPI": None,
        "gfd": {"enabled": False, "nameOverride": "gpu-feature-discovery", "namespaceOverride": ""},
        "nfd": {"enableNodeFeatureApi": False, "master": {"extraLabelNs": ["nvidia.com"]}},
    },
    "0.12": {"config": {"name": "", "map": {}, "default": None}},
}
"""What older ones had besides, or otherwise."""


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("more", [{}, *OLDER.values()], ids=["newest", *OLDER])
def test_defaults_can_be_used(more: dict[str, Any], version: str) -> None:
    """Nothing but the image has to be changed in a values file that was made for NVIDIA's chart."""
    values = {**DEFAULTS, **more, "image": OURS}
    for each in objects(values):
        check(each, version)
    assert pod(values).get("affinity", {}) == values["affinity"]
    assert pod(values)["tolerations"] == DEFAULTS["tolerations"]
    assert daemonset(values)["spec"]["updateStrategy"]["type"] == "RollingUpdate"


def test_values_of_the_same_name_mean_the_same() -> None:
    """Values that this chart has under the same name mean the same."""
    made = daemonset({"namespaceOverride": "gpus", "podSecurityContext": {"fsGroup": 7}})
    assert made["metadata"]["namespace"] == "gpus"
    assert made["spec"]["template"]["spec"]["securityContext"] == {"fsGroup": 7}
    assert pod({"podSecurityContext": {"fsGroup": 7}, "mps": {"enabled": True}}, "mps")["securityContext"] == {
        "fsGroup": 7
    }


def test_variables_of_the_daemon_are_used() -> None:
    """By NVIDIA's name for them: those for NVIDIA's runtime take the place of the chart's, others are added."""

    def made(*env: tuple[str, str]) -> dict[str, str]:
        main = {"env": [{"name": name, "value": value} for name, value in env]}
        return environment({"devicePlugin": {"containers": {"main": main}}})

    assert environment({**DEFAULTS, "image": OURS})["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert made(("NVIDIA_VISIBLE_DEVICES", "void")) == {**environment(), "NVIDIA_VISIBLE_DEVICES": "void"}
    assert made(("TZ", "UTC")) == {**environment(), "TZ": "UTC"}
    with pytest.raises(helm_python.HelmRenderError, match="env sets LOG_LEVEL, which the chart sets itself"):
        made(("LOG_LEVEL", "debug"))


def test_values_that_change_nothing_are_named_in_the_notes() -> None:
    """Whoever installs with NVIDIA's values reads which of them had no effect; others read nothing of it."""
    notes = " ".join(templates({**DEFAULTS, "image": OURS})["NOTES.txt"].split())
    passed = "allowDefaultNamespace, componentSelectorLabels, gfd.nameOverride, gfd.securityContext, nfd."
    assert f"change nothing here, because nothing depends on them: {passed}" in notes
    assert "change nothing here" not in templates()["NOTES.txt"]


def test_feature_discovery_is_our_labels() -> None:
    """Switched on in NVIDIA's values, it means that the nodes are labelled, which the daemon does by itself."""
    assert environment({**DEFAULTS, "image": OURS, "gfd": {"enabled": True}})["NODE_LABELS"] == "true"


def test_the_daemon_can_be_in_the_network_of_its_node() -> None:
    """The daemon is in the network of its node under NVIDIA's name for that, too, and still finds services by name."""
    values: dict[str, Any]
    for values in ({"devicePlugin": {"enableHostNetwork": True}}, {"hostNetwork": True}):
        spec = pod({**values, "mps": {"enabled": True}})
        assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
        assert "hostNetwork" not in pod({**values, "mps": {"enabled": True}}, "mps")


@pytest.mark.parametrize("tag", ["v0.17.1", "v0.17.0-rc.1", "v0.14.5-ubi8", "v0.9.0-ubuntu20.04", "v1.2.3"])
def test_a_pinned_tag_of_nvidias_is_rejected(tag: str) -> None:
    """A tag that was taken over would name no image of ours, so that no pod starts."""
    with pytest.raises(helm_python.HelmRenderError, match=f"image.tag is {tag}, which looks like a version of NVIDIA"):
        objects({"image": {"tag": tag}})


@pytest.mark.parametrize("tag", [f"v{__version__}", __version__, "9.9.9", "latest", "v1", "main-0a1b2c3"])
def test_tags_of_other_images_are_accepted(tag: str) -> None:
    """The builder of an image names its tag; a digest decides whatever the tag is."""
    assert objects({"image": {"tag": tag}})
    assert objects({"image": {"tag": "v0.17.1", "digest": f"sha256:{'5' * 64}"}})


def test_root_of_the_host_is_not_mounted() -> None:
    """A driver root of "/" is told to the daemon as it is, but gives it no sight of the host's files."""
    assert environment({"nvidiaDriverRoot": "/"})["NVIDIA_DRIVER_ROOT"] == "/"
    assert host_paths({"nvidiaDriverRoot": "/"}) == host_paths()
    assert "CONTAINER_DRIVER_ROOT" not in environment({"nvidiaDriverRoot": "/"})


REJECTED: dict[str, Any] = {
    "devicePlugin.enabled is false, but gpushare is the device plugin: set it to true, or do not install": {
        "devicePlugin": {"enabled": False}
    },
    "nfd.enabled is true, but this chart does not install node-feature-discovery: install it by its own chart": {
        "nfd": {"enabled": True}
    },
    "mps.enableHostPID is false, but MPS identifies its clients": {"mps": {"enableHostPID": False}},
    "mps.enableHostNetwork is true, but MPS needs no network: set it to false": {"mps": {"enableHostNetwork": True}},
    "cdi.featureFlags is disable-nvswitch, but gpushare has no flags for the CDI specification": {
        "cdi": {"featureFlags": "disable-nvswitch"}
    },
    "namespace is gpus, but the objects go to the namespace of the release: install with --namespace": {
        "namespace": "gpus"
    },
    "legacyDaemonsetAPI is true, but no Kubernetes that gpushare supports has that API": {"legacyDaemonsetAPI": True},
    "devicePlugin.containers.sidecar is set, but the daemon's pod has one container": {
        "devicePlugin": {"containers": {"sidecar": {"env": []}}}
    },
    "devicePlugin.containers.main.resources is set, but the daemon's pod has one container": {
        "devicePlugin": {"containers": {"main": {"resources": {"limits": {"cpu": 1}}}}}
    },
    "image.repository is nvcr.io/nvidia/k8s-device-plugin, but that image contains NVIDIA's plugin: set it to": {
        "image": {"repository": "nvcr.io/nvidia/k8s-device-plugin"}
    },
    "image.tag is v0.17.1-ubi8, which looks like a version of NVIDIA's plugin, and the version of this chart is": {
        "image": {"tag": "v0.17.1-ubi8"}
    },
}
"""Sentence -> what is answered by it."""


@pytest.mark.parametrize(("sentence", "values"), REJECTED.items())
def test_unsupported_value_is_rejected(sentence: str, values: dict[str, Any]) -> None:
    """A value that would have no effect here is reported, with what to do instead."""
    with pytest.raises(helm_python.HelmRenderError) as rejection:
        objects({**DEFAULTS, "image": OURS, **values})
    assert sentence in str(rejection.value)


def test_all_unsupported_values_are_reported_at_once() -> None:
    """A user who comes with a whole file is not sent back once for each value."""
    values: dict[str, Any] = {}
    for each in REJECTED.values():
        values = merged(values, each)
    with pytest.raises(helm_python.HelmRenderError) as rejection:
        objects(values)
    assert [sentence for sentence in REJECTED if sentence not in str(rejection.value)] == []


@pytest.mark.parametrize("values", [{"gfd": {"enable": True}}, {"cdi": {"hookPath": "/"}}, {"devicePlugins": {}}])
def test_values_of_neither_chart_are_refused(values: dict[str, Any]) -> None:
    """A misspelt value is not taken for one of NVIDIA's chart."""
    with pytest.raises(helm_python.HelmValuesError, match="additional properties"):
        objects(values)


USED = {"devicePlugin.containers", "devicePlugin.enableHostNetwork", "gfd.enabled"}
"""Places of values that the chart uses by NVIDIA's name."""


def test_no_value_of_another_chart_is_passed_over_in_silence() -> None:
    """What the schema takes for such a value is used, refused where it would change something, or in the notes."""

    def places(schema: dict[str, Any], prefix: str = "") -> set[str]:
        found = set()
        for key, each in schema.get("properties", {}).items():
            found |= {f"{prefix}{key}"} if each in FOREIGN else places(each, f"{prefix}{key}.")
        return found

    schema = json.loads((CHART / "values.schema.json").read_text())
    template = (CHART / "templates/_foreign.tpl").read_text()
    answered = set(re.findall(r'^  (?:\(list )?"([\w.]+)"', template, re.MULTILINE))
    assert places(schema) - USED == {each for each in answered if each != "nfd" and "containers" not in each}
