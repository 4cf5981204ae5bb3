"""The chart: valid for old and new clusters, every value in its place, wrong values refused."""

import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import helm_python
import kubernetes_validate  # type: ignore[import-untyped] # ships no types
import pytest
import yaml
from kubernetes_validate.utils import all_versions  # type: ignore[import-untyped] # ships no types

from gpushare_plugin import __version__
from gpushare_plugin.cli.commands.cluster.partition import command as partition
from gpushare_plugin.cli.main import commands
from gpushare_plugin.cli.options import LOG_LEVELS
from gpushare_plugin.cli.setting_options import SETTING_OPTIONS
from gpushare_plugin.config.directives import PARTITIONING, SCHEDULE
from gpushare_plugin.config.loading.load import load
from gpushare_plugin.config.schema.fields import keys
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.gpus.simulated import SimulatedGpus, SimulatedNode, SimulatedProcess, SimulatedSource
from gpushare_plugin.kubelet.device_plugin.succession import LONGEST_HANDOVER
from gpushare_plugin.kubelet.paths import DEFAULT_PLUGIN_DIRECTORY
from gpushare_plugin.node.configuration import decide
from gpushare_plugin.testing.cluster.rbac import Permission, granted
from tests.chart.reading import container, daemonset, environment, extended, files, host_paths, pod, share_pod
from tests.chart.rendering import (
    CHART,
    EXAMPLE_VALUES,
    GOLDEN,
    ROOT,
    STATIC,
    STATIC_VALUES,
    committed,
    fresh,
    objects,
    of_hooks,
    templates,
    yaml_of,
)
from tests.chart.validity import check

EXAMPLES = ROOT / "examples"
KUBERNETES = [all_versions()[0], kubernetes_validate.latest_version()]
"""The oldest and the newest version there are schemas for."""

LABELS_OF_SHARED_NODES = {SCHEDULE, PARTITIONING}
"""Labels of ACK and nos that say how a node shares its GPUs, and so that it has some."""

LABELS_OF_GPU_NODES = {
    "gpushare",
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
}

CONFIG: dict[str, Any] = {
    "version": "v1",
    "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}},
}
BY_MEMORY: dict[str, Any] = {"version": "v1", "sharing": {"memory": {"resources": [{"name": "example.com/mem"}]}}}
MPS_CONFIG = {"sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}
GPUS = {"gpus": [{"name": "NVIDIA A10", "memory": "24GiB", "count": 2}]}
SETTINGS = {
    "migStrategy": ("mixed", "MIG_STRATEGY", "mixed"),
    "failOnInitError": (True, "FAIL_ON_INIT_ERROR", "true"),
    "deviceListStrategy": (["envvar", "cdi-cri"], "DEVICE_LIST_STRATEGY", "envvar,cdi-cri"),
    "deviceIDStrategy": ("index", "DEVICE_ID_STRATEGY", "index"),
    "nvidiaDriverRoot": ("/run/nvidia/driver", "NVIDIA_DRIVER_ROOT", "/run/nvidia/driver"),
    "nvidiaDevRoot": ("/run/nvidia/dev", "NVIDIA_DEV_ROOT", "/run/nvidia/dev"),
    "compatWithCPUManager": (False, "PASS_DEVICE_SPECS", "false"),
    "sharedDevicesAllocationPolicy": ("packed", "SHARED_DEVICES_ALLOCATION_POLICY", "packed"),
    "dpDisableHealthchecks": ("48,63", "DP_DISABLE_HEALTHCHECKS", "48,63"),
    "dpEnableHealthchecks": ("all", "DP_ENABLE_HEALTHCHECKS", "all"),
    "cdiAnnotationPrefix": ("cdi.k8s.io/nvidia-", "CDI_ANNOTATION_PREFIX", "cdi.k8s.io/nvidia-"),
    "cdiKind": ("example.com/gpu", "CDI_KIND", "example.com/gpu"),
    "deviceDiscoveryStrategy": ("nvml", "DEVICE_DISCOVERY_STRATEGY", "nvml"),
    "gdrcopyEnabled": (True, "GDRCOPY_ENABLED", "true"),
    "gdsEnabled": (True, "GDS_ENABLED", "true"),
    "mofedEnabled": (True, "MOFED_ENABLED", "true"),
    "logFormat": ("console", "LOG_FORMAT", "console"),
    "logLevel": ("debug", "LOG_LEVEL", "debug"),
}
"""Value of the chart -> what is given, the variable it becomes, and the text in there."""

POD_FIELDS = {
    "imagePullSecrets": [{"name": "registry"}],
    "runtimeClassName": "nvidia",
    "nodeSelector": {"gpushare": "true"},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
            }
        }
    },
    "tolerations": [{"operator": "Exists"}],
    "priorityClassName": "system-cluster-critical",
}
"""Values that are fields of the pod, under the same name."""

FIELDS_OF_PODS = {"limits", "initialDelaySeconds", "failureThreshold", "successThreshold"}
"""Keys that are Kubernetes' and have no default of ours everywhere."""

FOREIGN = [{"$ref": "#/definitions/foreign"}, {"$ref": "#/definitions/foreignContainers"}]
"""Schemas of the values that only NVIDIA's chart and nos have."""

PROBE = {"initialDelaySeconds": 7, "periodSeconds": 8, "timeoutSeconds": 9, "failureThreshold": 10}

MONITOR = {
    "enabled": True,
    "namespace": "monitoring",
    "interval": "30s",
    "scrapeTimeout": "10s",
    "honorLabels": False,
    "relabelings": [{"targetLabel": "cluster", "replacement": "a"}],
    "metricRelabelings": [{"sourceLabels": ["__name__"], "regex": "go_.*", "action": "drop"}],
    "labels": {"release": "monitoring"},
}
POD: dict[str, Any] = {
    "podAnnotations": {"example.com/team": "gpu"},
    "podLabels": {"team": "gpu"},
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "dnsPolicy": "None",
    "dnsConfig": {"nameservers": ["192.0.2.53"], "searches": ["example.com"], "options": [{"name": "ndots"}]},
}
"""What can be said of the pods of every program."""

WORKLOAD: dict[str, Any] = {**POD, "annotations": {"example.com/owner": "gpus"}}
"""The same, and of the object that makes the pods."""

SPREAD = [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}]

EVERYTHING: dict[str, Any] = {
    **{key: given for key, (given, _, _) in SETTINGS.items()},
    **POD_FIELDS,
    **WORKLOAD,
    "cdi": {"specDirs": ["/etc/cdi", "/var/run/cdi"], "nvidiaHookPath": "/usr/bin/nvidia-cdi-hook"},
    "enabled": True,
    "global": {"imageRegistry": "mirror.example.com", "imagePullSecrets": ["others"]},
    "image": {
        "repository": "registry.example.com/gpushare",
        "pullPolicy": "Always",
        "tag": "9.9.9",
        "digest": f"sha256:{'5' * 64}",
    },
    "commonLabels": {"team": "gpu"},
    "createRuntimeClass": True,
    "hostNetwork": False,
    "revisionHistoryLimit": 3,
    "extraArgs": ["--kubelet-is-fine"],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "nameOverride": "shares",
    "fullnameOverride": "gpu-shares",
    "namespaceOverride": "gpus",
    "selectorLabelsOverride": {"app": "gpu-shares"},
    "cluster": {
        "enabled": True,
        "nodeLabels": False,
        "followPods": True,
        "events": True,
        "cordonConfigMaps": False,
        "cordonNodes": ["gpu-1"],
    },
    "usage": {
        "hostPID": True,
        "readProcesses": True,
        "containerMetrics": True,
        "hamiMetrics": True,
        "aliyunMetrics": True,
        "evict": True,
    },
    "serviceAccount": {"create": True, "name": "gpus", "annotations": {"example.com/role": "gpus"}},
    "config": {"map": {"turns": CONFIG}, "name": "", "default": "turns", "fallbackStrategies": ["single"]},
    "mps": {
        **WORKLOAD,
        "enabled": True,
        "root": "/data/mps",
        "protocol": 3,
        "sharedMemory": "512MiB",
        "nodeSelector": {"team": "gpu"},
        "affinity": {"podAntiAffinity": {}},
        "livenessProbe": PROBE,
        "readinessProbe": PROBE,
        "resources": {"limits": {"memory": "1Gi"}},
        "securityContext": {"privileged": True},
    },
    "partitioning": {
        **WORKLOAD,
        "enabled": True,
        "topologySpreadConstraints": SPREAD,
        "mig": {
            **WORKLOAD,
            "enabled": True,
            "root": "/data/mig",
            "nodeSelector": {"team": "gpu"},
            "affinity": {"podAntiAffinity": {}},
            "livenessProbe": PROBE,
            "readinessProbe": PROBE,
            "resources": {"limits": {"memory": "1Gi"}},
            "securityContext": {"privileged": True},
        },
    },
    "web": {
        **WORKLOAD,
        "enabled": True,
        "replicas": 2,
        "port": 1444,
        "probePort": 1445,
        "tls": {"secretName": "pages"},
        "insecureHttp": True,
        "daemonMetrics": True,
        "proxy": {"secretName": "front-proxy", "names": ["front"]},
        "topologySpreadConstraints": SPREAD,
        "resources": {"limits": {"memory": "1Gi"}},
        "priorityClassName": "pages",
        "nodeSelector": {"team": "gpu"},
        "affinity": {"podAntiAffinity": {}},
        "tolerations": [{"operator": "Exists"}],
    },
    "dra": {"enabled": True, "driver": "gpus.example.com"},
    "driverLimits": {
        **WORKLOAD,
        "enabled": True,
        "readCgroups": True,
        "root": "/data/driver-limits",
        "nodeSelector": {"team": "gpu"},
        "affinity": {"podAntiAffinity": {}},
        "livenessProbe": PROBE,
        "readinessProbe": PROBE,
        "resources": {"limits": {"memory": "1Gi"}},
        "securityContext": {"privileged": True},
    },
    "kubeletRootDir": "/data/kubelet/",
    "httpPort": 9400,
    "livenessProbe": PROBE,
    "readinessProbe": {**PROBE, "successThreshold": 1},
    "service": {"enabled": True, "annotations": {"prometheus.io/scrape": "true"}},
    "podMonitor": MONITOR,
    "serviceMonitor": MONITOR,
    "prometheusRule": {
        "enabled": True,
        "namespace": "monitoring",
        "labels": {"release": "monitoring"},
        "runbookUrl": "https://git.example.com/docs/alerts.md",
        "customRules": {"GpuWaiting": {"severity": "info", "for": "2h"}, "GpuOverused": {"threshold": 1}},
        "disabled": {"GpuForeignProcess": True},
        "additionalRuleLabels": {"team": "gpus"},
        "additionalRuleAnnotations": {"team": "gpus"},
        "prices": {"NVIDIA A100-SXM4-40GB": 3.2},
        "dcgmNames": True,
    },
    "dashboard": {
        "enabled": True,
        "labels": {"a": "b"},
        "annotations": {"grafana_folder": "GPUs"},
        "webUrl": "https://gpus.example.com",
    },
    "networkPolicy": {
        "enabled": True,
        "from": [{"podSelector": {}}],
        "schedulers": [{"ipBlock": {"cidr": "192.0.2.1/32"}}],
        "viewers": [{"podSelector": {}}],
    },
    "resourceNames": ["example.com/gpu"],
    "scheduler": {
        **WORKLOAD,
        "enabled": True,
        "topologySpreadConstraints": SPREAD,
        "replicas": 3,
        "placement": "spread",
        "cordonConfigMaps": False,
        "cordonNodes": ["aliyun-1"],
        "port": 1234,
        "probePort": 1235,
        "weight": 7,
        "httpTimeout": "8s",
        "service": {"clusterIP": "10.0.0.1", "nodePort": 32766},
        "tls": {"secretName": "server", "clientSecretName": "client"},
        "kubeScheduler": {
            **WORKLOAD,
            "enabled": True,
            "schedulerName": "mine",
            "replicas": 1,
            "image": {"repository": "registry.example.com/scheduler", "tag": "v1.30.1"},
            "resources": {"limits": {"memory": "1Gi"}},
        },
        "resources": {"limits": {"memory": "2Gi"}},
        "priorityClassName": "high",
        "nodeSelector": {"a": "b"},
        "affinity": {"podAffinity": {}},
        "tolerations": [{"operator": "Exists"}],
    },
    "admission": {"pods": True, "gpuVariables": "strip", "schedulerName": True, "runtimeClassName": True},
    "helmTest": {**POD, "resource": "example.com/gpu", "resources": {"limits": {"memory": "1Gi"}}},
    "cleanup": {**WORKLOAD, "resources": {"limits": {"memory": "1Gi"}}},
    "doctor": {**WORKLOAD, "nodes": ["node-a"], "resources": {"limits": {"memory": "1Gi"}}},
    "extraObjects": [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": '{{ include "gpushare.part" (list . "-more") }}',
                "labels": {"team": "gpu", "app.kubernetes.io/name": "shares"},
            },
        }
    ],
    "resources": {"limits": {"memory": "256Mi"}},
    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 0}},
    "podSecurityContext": {"seLinuxOptions": {"type": "spc_t"}},
    "securityContext": {"runAsGroup": 0},
}
"""Every value, but for `simulate`, which contradicts some of them."""

MATRIX: dict[str, Any] = {
    "default values": {},
    "every value": EVERYTHING,
    **{file.name: yaml_of(file) for file in sorted(EXAMPLE_VALUES.iterdir())},
    "recommended.yaml with more": yaml_of(EXAMPLE_VALUES / "recommended.yaml")
    | {"driverLimits": {"enabled": True}, "dra": {"enabled": True}},
}


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_objects_are_valid(values: dict[str, Any], version: str) -> None:
    """Old and new API servers know every field of the objects, whatever the values are."""
    for each in objects(values):
        check(each, version)


def test_the_chart_makes_only_the_daemon_and_its_rights_by_default() -> None:
    """Everything else is made only where it is asked for, or in hooks."""

    def kinds(values: dict[str, Any]) -> list[str]:
        made = objects(values)
        return [each["kind"] for each in made if each not in of_hooks(made)]

    rights = ["ClusterRole", "ClusterRoleBinding"]
    assert kinds({}) == ["DaemonSet", *rights, "ServiceAccount"]
    local = ["Role", "RoleBinding"]
    extender = ["ServiceAccount", *rights, *local, *local, "Service", "Deployment", "PodDisruptionBudget"]
    scheduler = ["ConfigMap", "ServiceAccount", *rights[1:] * 2, "RoleBinding", *local, "Deployment"]
    partitioner = ["ServiceAccount", *rights, *local, "Deployment", "PodDisruptionBudget"]
    bounds = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] * 2
    bounds += ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"] * 3
    rest = [*["PodMonitor"] * 4, "PrometheusRule", *rights, *local, "RuntimeClass", *["Service"] * 3]
    rest += ["ServiceAccount", *["ServiceMonitor"] * 4]
    rest += ["ServiceAccount", *rights, *local, "ClusterRole", "Service", "Deployment", "PodDisruptionBudget"]
    node = ["ConfigMap", "DaemonSet", "ConfigMap"]
    parts = [*extender, "Secret", *scheduler, *["DaemonSet"] * 2, *["NetworkPolicy"] * 4, *partitioner]
    assert kinds(EVERYTHING) == [*node, *["DeviceClass"] * 5, "Job", "DaemonSet", *parts, *bounds, *rest]
    assert kinds({"simulate": GPUS}) == ["DaemonSet", *rights, "ServiceAccount", "ConfigMap"]
    assert kinds({"cluster": {"enabled": False}}) == ["DaemonSet", "ServiceAccount"]
    made = of_hooks(objects())
    assert [each["kind"] for each in made] == ["ServiceAccount", *rights, *local, "Job", "Pod"]


def test_helm_lint_has_no_warning() -> None:
    """Helm's lint has no warning about the chart."""
    report = helm_python.lint(CHART, strict=True)
    assert not report["errors"]
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]


def test_chart_image_and_daemon_carry_the_same_version() -> None:
    """Chart, image and daemon carry the same version."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
    assert container()["image"] == f"gpushare:{__version__}"


@pytest.mark.parametrize("path", committed(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_committed_output_is_fresh(path: Path) -> None:
    """The static manifests and the golden output of the example values are what the chart makes."""
    assert path.read_text() == fresh(path), "run make generate, and look at what changes"


def test_every_golden_output_has_its_example_values() -> None:
    """Nothing else is committed."""
    assert {*GOLDEN.iterdir(), *STATIC.iterdir()} == set(committed())


@pytest.mark.parametrize("name", STATIC_VALUES)
def test_static_manifest_needs_no_helm(name: str) -> None:
    """A static manifest is what the chart makes with its values, without the hooks that only Helm runs."""
    made = objects(STATIC_VALUES[name])
    manifest = list(yaml.safe_load_all((STATIC / name).read_text()))
    assert manifest == [each for each in made if each not in of_hooks(made)]


def test_every_program_is_in_a_static_manifest() -> None:
    """Whoever has no Helm can run all parts, each with the daemon that works with it."""
    daemons = {"node-daemon", "mps", "mig", "driver-limits"}
    found = {name: components(yaml.safe_load_all((STATIC / name).read_text())) for name in STATIC_VALUES}
    assert set().union(*found.values()) == {*daemons, "extender", "kube-scheduler", "partitioner", "web"}
    assert all("node-daemon" in each for each in found.values())


def test_the_kustomization_in_install_md_names_the_images_of_the_static_manifests() -> None:
    """Each image is one that kustomize finds by its name, so that nobody has to edit the files."""
    (text,) = re.findall(r"# kustomization.yaml\n(.*?)```", (ROOT / "docs/install.md").read_text(), re.DOTALL)
    names = {each["name"] for each in yaml.safe_load(text)["images"]}
    made = [each for name in STATIC_VALUES for each in yaml.safe_load_all((STATIC / name).read_text())]
    pods = [each["spec"]["template"]["spec"] for each in made if each["kind"] in {"DaemonSet", "Deployment"}]
    assert {each["image"].rpartition(":")[0] for pod in pods for each in pod["containers"]} == names


def components(made: Iterable[Any]) -> set[str]:
    """Return the programs that objects run."""
    templates = [each["spec"]["template"] for each in made if each["kind"] in {"DaemonSet", "Deployment"}]
    return {each["metadata"]["labels"]["app.kubernetes.io/component"] for each in templates}


def test_schema_and_values_name_the_same_values() -> None:
    """Every value of values.yaml is in the schema, and the other way round; the tests here set each of them."""

    def compare(schema: dict[str, Any], documented: dict[str, Any]) -> None:
        for key, value in documented.items():
            below = ours(schema[key].get("properties", {}))
            if below and value:
                assert set(value) - FIELDS_OF_PODS == set(below) - FIELDS_OF_PODS, key
                compare(below, value)

    def ours(schema: dict[str, Any]) -> dict[str, Any]:
        """Leave out what is there for values files of other charts only."""
        return {
            key: each
            for key, each in schema.items()
            if each not in FOREIGN and (not each.get("properties") or ours(each["properties"]))
        }

    with helm_python.Chart.load(CHART) as chart:
        schema = chart.schema
    documented = yaml.safe_load((CHART / "values.yaml").read_text())
    assert schema is not None
    assert set(ours(schema["properties"])) == set(documented) == {*EVERYTHING, "simulate"}
    compare(schema["properties"], documented)


@pytest.mark.parametrize(("value", "given", "variable", "text"), [(key, *rest) for key, rest in SETTINGS.items()])
def test_setting_becomes_its_variable(value: str, given: object, variable: str, text: str) -> None:
    """A setting of the chart is handed to the daemon in the environment variable of the same option."""
    assert environment({value: given})[variable] == text


def test_settings_not_given_are_left_to_the_file() -> None:
    """By default only the log, and that nodes without GPUs wait, are decided by the chart; null gives that back."""
    assert environment() == {
        "NODE_NAME": "spec.nodeName",
        "NODE_LABELS": "true",
        "CORDON_CONFIGMAP": "false",
        "POD_NAMESPACE": "metadata.namespace",
        "POD_NAME": "metadata.name",
        "LOG_FORMAT": "json",
        "LOG_LEVEL": "info",
        "HTTP_ADDRESS": ":8080",
        "FAIL_ON_INIT_ERROR": "false",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "utility",
    }
    assert "FAIL_ON_INIT_ERROR" not in environment({"failOnInitError": None})


@pytest.mark.parametrize("part", ["node-daemon", "mps", "mig", "driver-limits"])
def test_command_knows_what_it_is_given(part: str) -> None:
    """Every argument and variable of a container is one that its command has."""
    command = container(EVERYTHING, part)["args"][0]
    for_the_runtime = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
    for_the_runtime |= {"NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_MIG_CONFIG_DEVICES"}
    given_by_user = {each["name"] for each in EVERYTHING["extraEnv"]}
    assert set(environment(EVERYTHING, part)) - for_the_runtime - given_by_user <= known(command)
    assert set(environment({"simulate": GPUS})) - for_the_runtime <= known("run")


def known(command: str) -> set[str]:
    """Return the variables that a command reads."""
    return {name for option in commands.load(command).params for name in variables(option)}


def variables(option: click.Parameter) -> set[str]:
    """Return the variables that an option reads."""
    return {option.envvar} if isinstance(option.envvar, str) else set(option.envvar or ())


def test_every_setting_can_be_given() -> None:
    """Each setting of the config file that has a variable and an effect has a value of the chart."""
    without_effect = {"NVIDIA_CTK_PATH", "IMEX_CHANNEL_IDS", "IMEX_REQUIRED"}
    assert {option.environment[0] for option in SETTING_OPTIONS} - without_effect <= set(environment(EVERYTHING))


NO_VALUE = {
    "--simulate": "the value simulate, which excludes others",
    "--config-file": "a ConfigMap of configs is a directory",
    "--device-plugin-path": "the host's directory is mounted where the default is",
    "--pod-resources-socket": "the host's directory is mounted where the default is",
    "--kubelet-socket": "the host's directory is mounted where the default is",
    "--cgroup-root": "the host's cgroups are mounted where the default is",
    "--kubeconfig": "a pod has a service account",
    "--replace-silent": "ends programs of pods: for a person who has looked at them",
    "--nvidia-ctk-path": "without effect",
    "--imex-channel-ids": "without effect",
    "--imex-required": "without effect",
    "--cdi-feature-flags": "refused",
    "--cdi-disable-hooks": "refused",
    "--node-label": "one value alone is accepted",
}
"""Options of daemons that have no value of the chart, with the reason."""

DAEMON_PARTS = [("run", "node-daemon"), *((part, part) for part in ("mps", "mig", "driver-limits"))]
"""The command of each program on nodes with GPUs, and its component."""


@pytest.mark.parametrize(("command", "part"), DAEMON_PARTS)
def test_every_option_of_a_daemon_can_be_given(command: str, part: str) -> None:
    """What a daemon can be told on the command line it can be told by a value of the chart, or there is a reason."""
    given = set(environment(EVERYTHING, part))
    without = [
        option.opts[0]
        for option in commands.load(command).params
        if option.envvar and option.opts[0] not in NO_VALUE and not given & variables(option)
    ]
    assert without == [], (
        "add a value for it to the chart, see `a chart value` in docs/architecture.md; or a reason here"
    )


def test_log_levels_are_those_of_the_command_line() -> None:
    """The chart accepts the log levels that the daemon has."""
    for level in LOG_LEVELS:
        assert environment({"logLevel": level})["LOG_LEVEL"] == level


@pytest.mark.parametrize(("field", "value"), POD_FIELDS.items())
def test_pod_field_is_passed_on(field: str, value: object) -> None:
    """Values named like a field of the pod are that field."""
    assert pod({field: value})[field] == value


def test_the_image_is_put_together_of_repository_and_tag() -> None:
    """The image is put together of its repository and its tag."""
    given = container({"image": {**EVERYTHING["image"], "digest": ""}})
    assert given["image"] == "registry.example.com/gpushare:9.9.9"
    assert given["imagePullPolicy"] == "Always"


def test_objects_are_named_after_release_and_chart() -> None:
    """Both parts can be overridden; long names leave room for parts."""
    assert daemonset()["metadata"]["name"] == "gpushare"
    assert daemonset(release="team-a")["metadata"]["name"] == "team-a-gpushare"
    assert daemonset({"nameOverride": "shares"}, "team-a")["metadata"]["name"] == "team-a-shares"
    assert daemonset({"fullnameOverride": "gpu-shares"})["metadata"]["name"] == "gpu-shares"
    long = {"serviceAccount": {"name": ""}, "fullnameOverride": "g" * 70, "runtimeClassName": "n" * 63}
    # DeviceClasses have the name of the DRA driver, which claims name.
    longest = [each for each in objects({**EVERYTHING, **long}) if each["kind"] != "DeviceClass"]
    assert {len(each["metadata"]["name"]) for each in longest} == {63}
    assert len({(each["kind"], each["metadata"]["name"]) for each in longest}) == len(longest)


def test_the_service_account_of_the_pods_can_be_chosen() -> None:
    """The pods run as the chart's ServiceAccount, as another one, or as the namespace's default one."""
    assert pod()["serviceAccountName"] == "gpushare"
    assert pod({"serviceAccount": {"name": "gpus"}})["serviceAccountName"] == "gpus"
    nobody: dict[str, Any] = {"serviceAccount": {"create": False}, "cluster": {"enabled": False}}
    assert pod(nobody)["serviceAccountName"] == "default"
    assert pod(EVERYTHING, "mps")["serviceAccountName"] == "gpus"
    (made,) = (each for each in objects({"cluster": {"enabled": False}}) if each["kind"] == "ServiceAccount")
    assert made["metadata"]["name"] == "gpushare"


def test_labels_and_annotations_of_users_come_to_those_of_the_chart() -> None:
    """The selector is among the pod's labels."""
    made = daemonset({"podLabels": {"team": "gpu"}, "podAnnotations": {"example.com/team": "gpu"}})
    metadata = made["spec"]["template"]["metadata"]
    assert metadata["labels"].items() >= {"team": "gpu", **made["spec"]["selector"]["matchLabels"]}.items()
    assert metadata["annotations"] == {"example.com/team": "gpu"}


def test_fields_of_the_container_are_taken_over() -> None:
    """Resources, security context and update strategy are taken over; the first two are merged with the defaults."""
    assert container({"resources": {"limits": {"memory": "256Mi"}}})["resources"]["limits"] == {"memory": "256Mi"}
    assert container({"securityContext": {"runAsGroup": 0}})["securityContext"]["runAsGroup"] == 0
    strategy = daemonset({"updateStrategy": EVERYTHING["updateStrategy"]})["spec"]["updateStrategy"]
    assert strategy == EVERYTHING["updateStrategy"]


def test_bad_settings_stop_an_update() -> None:
    """One node is updated at a time, and its daemon has to last before the next one's turn."""
    spec = daemonset()["spec"]
    assert spec["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
    assert spec["minReadySeconds"] > 0
    assert "STAND_BY" not in environment()


def test_with_a_surge_the_next_daemon_stands_by() -> None:
    """The present daemon ends when the next one is ready, and has time to wait until that one is registered."""
    rolling = {"maxSurge": 1, "maxUnavailable": 0}
    values = {"updateStrategy": {"rollingUpdate": rolling}}
    spec = daemonset(values)["spec"]
    assert spec["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": rolling}
    assert environment(values)["STAND_BY"] == "true"
    assert pod(values)["terminationGracePeriodSeconds"] > LONGEST_HANDOVER


def test_the_daemon_has_no_capability_and_no_needless_token() -> None:
    """The directories of sockets, and with CDI the one of specifications, are all that it can write to."""
    spec = pod()
    assert spec["automountServiceAccountToken"] is True
    assert spec["serviceAccountName"] == "gpushare"
    assert pod({"cluster": {"enabled": False}})["automountServiceAccountToken"] is False
    kinds = {each["kind"] for each in objects({"cluster": {"enabled": False}})}
    assert not {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"} & kinds
    assert "NODE_NAME" not in environment({"cluster": {"enabled": False}})
    assert spec["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    security = container()["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert "privileged" not in security
    sockets = ["/data/kubelet/plugins_registry", "/data/kubelet/plugins/gpus.example.com"]
    values = {**EVERYTHING, "mps": {"enabled": False}, "partitioning": {}, "extraVolumeMounts": []}
    values["driverLimits"] = {"enabled": False, "readCgroups": True}
    writable = [mount["mountPath"] for mount in container(values)["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["/var/lib/kubelet/device-plugins", "/var/run/cdi", *sockets]
    neither = values | {"deviceListStrategy": "envvar", "dra": {"enabled": False, "driver": "d.example.com"}}
    without = container(neither)["volumeMounts"]
    assert [each["mountPath"] for each in without if not each.get("readOnly")] == ["/var/lib/kubelet/device-plugins"]


@pytest.mark.parametrize(
    ("values", "mig"),
    [
        ({"migStrategy": "mixed"}, True),
        ({"config": {"map": {"default": {"version": "v1", "flags": {"migStrategy": "single"}}}}}, True),
        ({"config": {"map": {"default": "version: v1", "other": "flags: {migStrategy: mixed}"}}}, True),
        ({"config": {"map": {"default": "flags: {migStrategy: mixed}"}}, "migStrategy": "none"}, False),
        ({"config": {"map": {"default": {"version": "v1", "flags": None}}}, "migStrategy": "none"}, False),
        ({"config": {"map": {"default": "# nothing"}}}, False),
    ],
)
def test_mig_instances_can_be_asked_about_on_request(values: dict[str, Any], mig: bool) -> None:  # noqa: FBT001 - a row of the table
    """One capability more, and instances that are others' own, where instances are to be found; else neither."""
    security = container(values)["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], **({"add": ["SYS_ADMIN"]} if mig else {})}
    assert ("allowPrivilegeEscalation" in security) is not mig
    assert security["readOnlyRootFilesystem"] is True
    assert environment(values).get("NVIDIA_MIG_MONITOR_DEVICES") == ("all" if mig else None)


def test_the_root_of_the_kubelet_moves_pod_resources_alone() -> None:
    """Pod-resources lies below the kubelet's root; the device plugins' directory is the kubelet's constant."""
    assert host_paths({"kubeletRootDir": "/data/kubelet/"}) == {
        "/var/lib/kubelet/device-plugins": "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources": "/data/kubelet/pod-resources",
    }
    assert host_paths()[str(DEFAULT_PLUGIN_DIRECTORY)] == str(DEFAULT_PLUGIN_DIRECTORY)


def test_driver_root_is_mounted() -> None:
    """A driver root is mounted where the daemon is told to load NVML from, and later mounts in it are seen."""
    values = {"nvidiaDriverRoot": "/run/nvidia/driver"}
    assert host_paths(values)[environment(values)["CONTAINER_DRIVER_ROOT"]] == "/run/nvidia/driver"
    (mount,) = (mount for mount in container(values)["volumeMounts"] if mount["name"] == "driver-root")
    assert mount["mountPropagation"] == "HostToContainer"


TEXT = (
    "# why four: see the wiki\nversion: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: gpu, replicas: 4}\n"
)


@pytest.mark.parametrize("given", [CONFIG, TEXT, f"\n   \n{TEXT}"], ids=["YAML", "text", "blank lines first"])
def test_config_reaches_the_daemon(given: object, tmp_path: Path) -> None:
    """A config file given as YAML or as text, which is kept as it is, lies where the daemon looks, and loads."""
    values = {"config": {"map": {"turns": given}}}
    content = files(values)["turns"]
    assert environment(values)["CONFIG_DIRECTORY"] == "/etc/gpushare/configs"
    assert environment(values)["FALLBACK_STRATEGIES"] == "named,single"
    assert {"name": "configs", "mountPath": "/etc/gpushare/configs", "readOnly": True} in container(values)[
        "volumeMounts"
    ]
    assert content == given if isinstance(given, str) else yaml.safe_load(content) == given
    file = tmp_path / "config.yaml"
    file.write_text(content)
    loaded = load(file)
    assert not loaded.problems
    assert loaded.config is not None
    assert loaded.config.sharing.time_slicing is not None
    assert loaded.config.sharing.time_slicing.resources[0].replicas == 4


CHOICES: list[tuple[dict[str, Any], str | None]] = [
    ({"map": {"default": CONFIG, "turns": CONFIG}}, "nvidia.com/gpu"),
    ({"map": {"default": CONFIG, "turns": BY_MEMORY}, "default": "turns"}, "example.com/mem"),
    ({"map": {"turns": CONFIG}}, "nvidia.com/gpu"),
    ({"map": {"turns": CONFIG}, "fallbackStrategies": ["named", "empty"]}, "aliyun.com/gpu-mem"),
    ({"map": {"turns": CONFIG}, "fallbackStrategies": ["empty", "single"]}, "aliyun.com/gpu-mem"),
    ({}, "aliyun.com/gpu-mem"),
]


@pytest.mark.parametrize(("config", "resource"), CHOICES)
def test_chart_chooses_as_the_daemon_does(config: dict[str, Any], resource: str, tmp_path: Path) -> None:
    """Which config holds without a label is the same for the pod of `helm test` and for the daemon."""
    values = {"config": config}
    assert extended(share_pod(values)["spec"]["containers"][0]) == {resource: 1}
    for name, content in files(values).items() if config else ():
        (tmp_path / name).write_text(content)
    given = environment(values)
    loaded = Configs(
        directory=tmp_path if "CONFIG_DIRECTORY" in given else None,
        default=given.get("DEFAULT_CONFIG"),
        fallbacks=tuple(given.get("FALLBACK_STRATEGIES", "").split(",")),  # type: ignore[arg-type] # words of the schema
    ).load()
    decided = decide(loaded, SimulatedSource(EXAMPLES / "gpus/four-a100.yaml").read())
    assert [each.name for each in decided.resources] == [resource]


def test_a_configmap_of_the_user_takes_the_place_of_the_charts() -> None:
    """A ConfigMap of the user's is mounted instead of one of the chart's."""
    values = {"config": {"name": "configs-of-mine", "default": "turns"}}
    assert "ConfigMap" not in {each["kind"] for each in objects(values)}
    assert environment(values)["DEFAULT_CONFIG"] == "turns"
    assert {"name": "configs", "configMap": {"name": "configs-of-mine"}} in pod(values)["volumes"]


def test_references_to_devices_stay_what_they_are() -> None:
    """Indices, MIG indices and versions come through Helm's YAML with their types."""
    entry = {"name": "nvidia.com/gpu", "replicas": 2, "devices": [0, "0:1"]}
    config = {"sharing": {"timeSlicing": {"resources": [entry]}}}
    assert yaml.safe_load(files({"config": {"map": {"default": config}}})["default"]) == config


def test_simulated_gpus_reach_the_daemon(tmp_path: Path) -> None:
    """A description of GPUs lies where the daemon looks, and can be read."""
    values = {"simulate": GPUS}
    assert environment(values)["SIMULATE"] == "/etc/gpushare/simulated/gpus.yaml"
    assert {"name": "simulated", "mountPath": "/etc/gpushare/simulated", "readOnly": True} in container(values)[
        "volumeMounts"
    ]
    file = tmp_path / "gpus.yaml"
    file.write_text(files(values)["gpus.yaml"])
    assert [gpu.name for gpu in SimulatedSource(file).read().cards] == ["NVIDIA A10"] * 2


def test_the_chart_takes_every_key_of_simulated_gpus(tmp_path: Path) -> None:
    """Keys can stand in the values also without a value where the file may have that."""
    card = {
        "memory": "40GiB",
        "name": "NVIDIA A100-SXM4-40GB",
        "count": 1,
        "uuid": f"GPU-{'0' * 36}",
        "computeCapability": "8.0",
        "numaNode": 0,
        "mode": "graphics",
        "migEnabled": True,
        "mig": ["3g.20gb", "1g.5gb+me"],
    }
    node = {"driverVersion": "615.71.09", "cudaVersion": "12.8", "machine": "DGX A100", "driverLimits": "hook"}
    process = {"pod": "default/trainer", "container": "main", "memory": "6GiB", "utilization": 40}
    used = {"memory": "16GiB", "uuid": None, "numaNode": None, "processes": [process, {"pod": None, "memory": "1GiB"}]}
    described = {**node, "gpus": [card, used]}
    file = tmp_path / "gpus.yaml"
    file.write_text(files({"simulate": described})["gpus.yaml"])
    inventory = SimulatedSource(file).read()
    assert (inventory.machine, len(inventory.cards), len(inventory.instances)) == ("DGX A100", 2, 2)
    assert set(card) | set(used) == set(keys(SimulatedGpus))
    assert set(process) == set(keys(SimulatedProcess))
    assert set(described) == set(keys(SimulatedNode))


def test_a_changed_config_leaves_the_pods_alone() -> None:
    """The daemon watches its files, so a changed config changes the ConfigMap and leaves the pods alone."""
    one, other = (
        {"config": {"map": {"default": {**CONFIG, "flags": {"plugin": {"deviceIDStrategy": strategy}}}}}}
        for strategy in ("uuid", "index")
    )
    assert files(one) != files(other)
    assert daemonset(one) == daemonset(other)


def nodes_with(values: dict[str, Any]) -> set[str] | None:
    """Return the labels of which a node needs one, None for any node."""
    affinity = pod(values).get("affinity")
    if affinity is None:
        return None
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    for term in terms:
        (expression,) = term["matchExpressions"]
        anything = expression["key"] in LABELS_OF_SHARED_NODES
        assert (expression["operator"], expression.get("values")) == (
            ("Exists", None) if anything else ("In", ["true"])
        )
    return {term["matchExpressions"][0]["key"] for term in terms}


def test_the_values_for_people_from_hami_reach_nodes_that_have_only_hamis_label() -> None:
    """A node has to match nodeSelector and affinity: without NFD, a node of HAMi has none of the affinity's labels."""
    values = yaml_of(EXAMPLE_VALUES / "hami.yaml")
    assert pod(values)["nodeSelector"] == {"gpu": "on"}
    assert nodes_with(values) is None


def test_the_daemon_runs_on_nodes_with_gpus_by_default() -> None:
    """Anyone's label counts; simulated GPUs are everywhere."""
    assert nodes_with({}) == LABELS_OF_GPU_NODES | LABELS_OF_SHARED_NODES
    assert nodes_with({"simulate": GPUS}) is None
    assert nodes_with({"affinity": {}}) is None
    assert pod({"simulate": GPUS, **POD_FIELDS})["affinity"] == POD_FIELDS["affinity"]


@pytest.mark.parametrize("label", sorted(LABELS_OF_SHARED_NODES))
@pytest.mark.parametrize("component", ["node-daemon", "mps", "mig"])
def test_a_node_with_just_a_label_of_ack_or_nos_gets_the_daemon(label: str, component: str) -> None:
    """People who come from there have labelled their nodes: no other label is needed, for none of the programs."""
    values = {"mps": {"enabled": True}, "partitioning": {"enabled": True, "mig": {"enabled": True}}}
    affinity = pod(values, *([] if component == "node-daemon" else [component]))["affinity"]
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {"matchExpressions": [{"key": label, "operator": "Exists"}]} in terms


def test_notes_say_what_nodes_with_a_label_of_ack_or_nos_need() -> None:
    """Where MPS or the partitioner is off, the notes name the labels whose nodes need it, and what to turn on."""
    without = " ".join(templates()["NOTES.txt"].split())
    assert "kubectl get nodes -l ack.node.gpu.schedule=mps" in without
    assert "until you set mps.enabled to true" in without
    assert "kubectl get nodes -l nos.nebuly.com/gpu-partitioning" in without
    both = templates({"mps": {"enabled": True}, "partitioning": {"enabled": True}})["NOTES.txt"]
    assert "get nodes -l ack.node.gpu.schedule=mps" not in both
    assert "get nodes -l nos.nebuly.com" not in both


def test_hooks_run_under_a_resource_quota() -> None:
    """A quota of the namespace refuses pods without requests and limits: the test pod and the clean-up have them."""
    (job,) = (each for each in objects() if each["kind"] == "Job")
    for spec in (share_pod()["spec"], job["spec"]["template"]["spec"]):
        for each in spec["containers"]:
            for kind in ("requests", "limits"):
                assert {"cpu", "memory"} <= each["resources"][kind].keys()


def test_every_pod_goes_where_the_daemon_goes() -> None:
    """MPS and the pod of `helm test` are placed by the same values, and from the same registry."""
    for values in ({"mps": {"enabled": True}}, EVERYTHING):
        for spec in (pod(values, "mps"), share_pod(values)["spec"]):
            by_mps = {"nodeSelector", "affinity"} if spec.get("hostPID") else set()
            placed = {*POD_FIELDS, "image"} - {"priorityClassName"} - by_mps
            assert {key: spec.get(key) for key in placed} == {key: pod(values).get(key) for key in placed}
            assert spec["containers"][0]["image"] == container(values)["image"]
            assert spec["enableServiceLinks"] is False


@pytest.mark.parametrize("tolerations", [[], [{"key": "team", "operator": "Equal", "value": "gpu"}]])
def test_cleanup_goes_to_nodes_that_work(tolerations: list[dict[str, str]]) -> None:
    """The job runs on Linux, on the daemon's nodes and control planes, not where a taint says that nothing runs."""
    values = {**EVERYTHING, "tolerations": tolerations, "nodeSelector": {"team": "gpu"}}
    (job,) = (each for each in of_hooks(objects(values)) if each["kind"] == "Job")
    spec = job["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}
    control_planes = [
        {"key": f"node-role.kubernetes.io/{role}", "operator": "Exists", "effect": "NoSchedule"}
        for role in ("control-plane", "master")
    ]
    assert spec["tolerations"] == [*tolerations, *control_planes]
    assert not {"affinity", "runtimeClassName"} & set(spec)


def test_probes_ask_the_daemons_own_paths_and_port() -> None:
    """The kubelet asks the daemon's own paths at the port it serves, patiently for life; no port means no probes."""
    given = container()
    assert environment()["HTTP_ADDRESS"] == ":8080"
    assert [each["containerPort"] for each in given["ports"]] == [8080]
    assert given["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": given["ports"][0]["name"]}
    assert given["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": given["ports"][0]["name"]}
    assert given["livenessProbe"]["periodSeconds"] * given["livenessProbe"]["failureThreshold"] >= 300
    silent = {"httpPort": None}
    assert "HTTP_ADDRESS" not in environment(silent)
    assert not {"ports", "livenessProbe", "readinessProbe"} & set(container(silent))
    assert container({"livenessProbe": PROBE})["livenessProbe"].items() >= PROBE.items()


def test_processes_are_seen_on_request_only() -> None:
    """Only `usage.hostPID` shows the daemon the processes of its node; it gets nothing else; the notes name it."""
    seeing = {"usage": {"hostPID": True}}
    assert pod(seeing)["hostPID"] is True
    assert pod(seeing) | {"hostPID": None} == pod() | {"hostPID": None}
    assert "usage.hostPID" in templates()["NOTES.txt"]
    assert "usage.hostPID" not in templates(seeing)["NOTES.txt"]
    assert environment({"usage": {"containerMetrics": True}})["CONTAINER_METRICS"] == "true"
    assert "CONTAINER_METRICS" not in environment()


def test_the_drivers_count_is_enough_to_evict() -> None:
    """Where the driver limits memory and containers are known by their IDs, evictions need no processes of the node."""
    resources = [{"name": "aliyun.com/gpu-mem", "isolation": ["driver", "none"]}]
    by_driver = {"config": {"map": {"default": {"version": "v1", "sharing": {"memory": {"resources": resources}}}}}}
    values = {**by_driver, "usage": {"evict": True}, "cluster": {"followPods": True}}
    assert "hostPID" not in pod(values)
    assert "known only where the driver limits memory" in templates(values)["NOTES.txt"]
    assert "known only where the driver limits memory" not in templates(by_driver)["NOTES.txt"]


def test_processes_are_examined_on_request_only() -> None:
    """`usage.readProcesses` alone lets the daemon read environments: host processes and SYS_PTRACE, beside others."""
    examining = {"usage": {"readProcesses": True}}
    assert pod(examining)["hostPID"] is True
    assert "usage.hostPID" not in templates(examining)["NOTES.txt"]
    usual = container()["securityContext"]
    assert container(examining)["securityContext"] == {
        **usual,
        "capabilities": {**usual["capabilities"], "add": ["SYS_PTRACE"]},
    }
    with_mig = container({**examining, "migStrategy": "mixed"})["securityContext"]["capabilities"]["add"]
    assert with_mig == ["SYS_ADMIN", "SYS_PTRACE"]
    objects({"usage": {"evict": True, "readProcesses": True}})


RIGHTS = {("list", "nodes"), ("watch", "nodes"), ("patch", "nodes"), ("patch", "nodes/status")}
"""Those of a daemon with everything off that is off by default."""
SHOWING: dict[str, Any] = {
    "usage": {"hostPID": True, "containerMetrics": True, "hamiMetrics": True, "aliyunMetrics": True},
    **{part: {"enabled": True} for part in ("podMonitor", "serviceMonitor", "prometheusRule", "dashboard")},
}
"""All that shows who uses what, and does nothing about it."""


@pytest.mark.parametrize(
    ("values", "more"),
    [
        ({}, set()),
        (SHOWING, set()),
        ({"usage": {"evict": True, "hostPID": True}}, {("create", "pods/eviction")}),
        ({"cluster": {"events": True}}, {("create", "events"), ("patch", "events")}),
        (
            {"cluster": {"followPods": True}},
            {("list", "pods"), ("watch", "pods"), ("patch", "pods/status")},
        ),
    ],
)
def test_every_right_comes_with_the_value_that_needs_the_right(
    values: dict[str, Any], more: set[tuple[str, str]]
) -> None:
    """Evictions, Events and pods each give the daemons their own rights more, and metrics give none."""
    rights = {Permission(verb, resource) for verb, resource in RIGHTS | more}
    assert granted(objects(values), "gpushare") == rights


def test_mps_has_pods_of_its_own() -> None:
    """Switched on, MPS has a DaemonSet that an upgrade leaves alone, and the daemon has no more rights than without."""
    values = {"mps": {"enabled": True}}
    spec = daemonset(values, part="mps")["spec"]
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["template"]["spec"]["hostPID"] is True
    assert spec["template"]["spec"]["automountServiceAccountToken"] is False
    assert container(values, "mps")["args"] == ["mps"]
    assert container(values, "mps")["securityContext"]["privileged"] is True
    assert environment(values, "mps")["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert container(values)["securityContext"] == container()["securityContext"]
    assert "hostPID" not in pod(values)


def test_a_silent_control_daemon_is_replaced_on_request() -> None:
    """Only a value of its own makes MPS end programs because its control daemon does not answer."""
    values: dict[str, Any] = {"mps": {"enabled": True}}
    assert "REPLACE_SILENT" not in environment(values, "mps")
    values["mps"]["replaceSilent"] = True
    assert environment(values, "mps")["REPLACE_SILENT"] == "true"


def test_both_daemons_see_the_mps_root() -> None:
    """The MPS root is at its path of the host in both, and the memory shared with pods is what MPS has as /dev/shm."""
    values = {"mps": {"enabled": True, "root": "/data/mps"}}
    assert host_paths(values)["/data/mps"] == "/data/mps"
    assert host_paths(values, "mps") == {"/data/mps": "/data/mps", "/dev/shm": "/data/mps/shm"}  # noqa: S108 - where programs have it
    assert environment(values, "mps")["MPS_ROOT"] == "/data/mps"
    assert "/run/nvidia/mps" not in host_paths()


def test_shared_memory_of_mps_has_a_limit_that_can_be_null() -> None:
    """The memory that pods share has a limit, mounted so that the host and other pods see it; null means none."""

    def propagations(values: dict[str, Any]) -> dict[str, str | None]:
        mounts = container(values, "mps")["volumeMounts"]
        return {mount["mountPath"]: mount.get("mountPropagation") for mount in mounts}

    values: dict[str, Any] = {"mps": {"enabled": True}}
    assert environment(values, "mps")["SHARED_MEMORY"] == "1GiB"
    both = {"/run/nvidia/mps": "Bidirectional", "/dev/shm": "HostToContainer"}  # noqa: S108 - where programs have it
    assert propagations(values) == {**both, "/tmp": None}  # noqa: S108 - where programs have it
    values["mps"]["sharedMemory"] = None
    assert "SHARED_MEMORY" not in environment(values, "mps")
    assert set(propagations(values).values()) == {None}


def test_mig_has_pods_of_its_own() -> None:
    """The DaemonSet has the rights that the driver asks for; the daemon sees no other processes."""
    values = {"partitioning": {"enabled": True, "mig": {"enabled": True}}}
    assert not [each for each in objects() if each["metadata"]["name"].endswith("-mig")]
    spec = pod(values, "mig")
    assert spec["hostPID"] is True
    assert spec["automountServiceAccountToken"] is False
    assert spec["nodeSelector"] == {"nos.nebuly.com/gpu-partitioning": "mig"}
    assert container(values, "mig")["args"] == ["mig"]
    assert container(values, "mig")["securityContext"] == {
        "runAsUser": 0,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert environment(values, "mig")["NVIDIA_MIG_CONFIG_DEVICES"] == "all"
    assert environment(values, "mig")["MIG_ROOT"] == "/run/gpushare/mig"
    assert host_paths(values, "mig") == {"/run/gpushare/mig": "/run/gpushare/mig"}
    assert container(values)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    assert "hostPID" not in pod(values)


def test_the_daemon_has_mig_instances_made_where_both_are_on() -> None:
    """It shares the directory with what makes them, and may see them; neither where nothing is partitioned."""
    values = {"partitioning": {"enabled": True, "mig": {"enabled": True, "root": "/data/mig"}}}
    assert host_paths(values)["/data/mig"] == "/data/mig"
    assert environment(values)["MIG_ROOT"] == "/data/mig"
    assert environment(values)["NVIDIA_MIG_MONITOR_DEVICES"] == "all"
    assert container(values)["securityContext"]["capabilities"]["add"] == ["SYS_ADMIN"]
    only_mps = {"partitioning": {"enabled": True}, "mps": {"enabled": True}}
    assert "MIG_ROOT" not in environment(only_mps)
    assert "/run/gpushare/mig" not in host_paths(only_mps)


LIMITING = {"cluster": {"followPods": True}, "driverLimits": {"enabled": True}}


def test_driver_limits_have_pods_of_their_own() -> None:
    """The DaemonSet has the host's cgroups, writable, and only the rights that calls take: no token, no processes."""
    assert not [each for each in objects() if each["metadata"]["name"].endswith("-driver-limits")]
    spec = pod(LIMITING, "driver-limits")
    assert "hostPID" not in spec
    assert "hostNetwork" not in spec
    assert spec["automountServiceAccountToken"] is False
    assert container(LIMITING, "driver-limits")["args"] == ["driver-limits"]
    assert container(LIMITING, "driver-limits")["securityContext"] == {
        "runAsUser": 0,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert host_paths(LIMITING, "driver-limits") == {
        "/run/gpushare/driver-limits": "/run/gpushare/driver-limits",
        "/sys/fs/cgroup": "/sys/fs/cgroup",
    }
    (cgroups,) = _cgroup_mounts(LIMITING, "driver-limits")
    assert not cgroups.get("readOnly")


def test_the_daemon_sees_cgroups_only_with_driver_limits() -> None:
    """By default a daemon has no new mount and no new variable; with driver limits the mount is read-only."""
    assert not _cgroup_mounts({}, "node-daemon")
    assert "DRIVER_LIMITS_AGENT" not in environment()
    assert environment(LIMITING)["DRIVER_LIMITS_AGENT"] == "true"
    assert environment(LIMITING)["DRIVER_LIMITS_ROOT"] == "/run/gpushare/driver-limits"
    for values in (LIMITING, {"driverLimits": {"readCgroups": True}}):
        (cgroups,) = _cgroup_mounts(values, "node-daemon")
        assert cgroups["readOnly"] is True
    assert "DRIVER_LIMITS_AGENT" not in environment({"driverLimits": {"readCgroups": True}})
    assert container(LIMITING)["securityContext"] == container()["securityContext"]


def _cgroup_mounts(values: dict[str, Any], part: str) -> list[dict[str, Any]]:
    return [each for each in container(values, part)["volumeMounts"] if each["mountPath"] == "/sys/fs/cgroup"]


def test_mps_and_mig_find_the_driver_where_the_daemon_does() -> None:
    """MPS and MIG find a driver in a container where the daemon does."""
    both = {"mps": {"enabled": True}, "partitioning": {"enabled": True, "mig": {"enabled": True}}, **LIMITING}
    values = {**both, "nvidiaDriverRoot": "/run/nvidia/driver"}
    for part in ("node-daemon", "mps", "mig", "driver-limits"):
        mounted = host_paths(values, part)
        assert mounted[environment(values, part)["CONTAINER_DRIVER_ROOT"]] == "/run/nvidia/driver"


def test_notes_name_limits_that_nothing_sets() -> None:
    """A list of isolations works without limits of the driver, so the notes say where the values rule them out."""

    def notes(values: dict[str, Any], **entry: Any) -> str:
        entries = [{"name": "a.io/m", "isolation": ["driver", "none"], **entry}]
        return templates({"config": {"map": {"turns": {"sharing": {"memory": {"resources": entries}}}}}, **values})[
            "NOTES.txt"
        ]

    sentence = "On no node does the driver limit memory with config turns: "
    assert f"{sentence}deviceListStrategy is envvar and driverLimits.enabled is false" in notes({})
    assert f"{sentence}driverLimits.enabled is false, and only" in notes({"deviceListStrategy": "cdi-cri"}, burst=2)
    assert sentence not in notes({"deviceListStrategy": "cdi-cri"})
    assert sentence not in notes(LIMITING, burst=2)
    assert sentence not in templates(yaml_of(EXAMPLE_VALUES / "recommended.yaml"))["NOTES.txt"]


def test_the_recommended_values_tell_reasons_by_events() -> None:
    """The alert about a limit that is not in effect leads to the Event of the pod, which has the reason."""
    assert environment(yaml_of(EXAMPLE_VALUES / "recommended.yaml"))["EVENTS"] == "true"


def test_notes_name_alerts_without_metrics() -> None:
    """Alerts never fire where Prometheus finds no pod."""
    alerts = {"prometheusRule": {"enabled": True}}
    assert "nothing here tells Prometheus to read the metrics" in templates(alerts)["NOTES.txt"]
    for place in ("podMonitor", "serviceMonitor", "service"):
        assert "nothing here tells Prometheus" not in templates({**alerts, place: {"enabled": True}})["NOTES.txt"]


BY_MOUNTS = {"flags": {"plugin": {"deviceListStrategy": ["envvar", "volume-mounts"]}}}


@pytest.mark.parametrize(
    "values",
    [
        {"deviceListStrategy": "volume-mounts"},
        {"deviceListStrategy": ["cdi-cri", "volume-mounts"]},
        {"config": {"map": {"default": BY_MOUNTS}}},
        {"config": {"map": {"default": CONFIG, "other": yaml.safe_dump(BY_MOUNTS)}}},
    ],
)
def test_daemon_asks_for_its_gpus_as_pods_do(values: dict[str, Any]) -> None:
    """Where GPUs are handed out by mounts, the daemon gets its own by a mount, instead of by privilege."""
    assert host_paths(values)["/var/run/nvidia-container-devices/all"] == "/dev/null"
    assert "/var/run/nvidia-container-devices/all" not in host_paths({"config": {"map": {"default": CONFIG}}})
    assert container(values)["securityContext"] == container()["securityContext"]


BY_CDI = {"flags": {"plugin": {"deviceListStrategy": "cdi-cri"}}}


@pytest.mark.parametrize(
    "values",
    [
        {"deviceListStrategy": "envvar,cdi-annotations"},
        {"config": {"map": {"default": CONFIG, "other": BY_CDI}}},
        # Values of an earlier chart, which an upgrade with --reuse-values keeps.
        {"deviceListStrategy": "cdi-cri", "cdi": None},
    ],
)
def test_cdi_gives_the_daemon_the_specifications_of_the_host(values: dict[str, Any]) -> None:
    """It reads all directories, writes into the last one, and sees programs and libraries; it gets no more rights."""
    before = host_paths(values | {"deviceListStrategy": "envvar", "config": {}})
    added = {path: host for path, host in host_paths(values).items() if path not in before}
    dirs = ["/etc/cdi", "/var/run/cdi"]
    assert added == {"/host/usr": "/usr", **{path: path for path in dirs}}
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container(values)["volumeMounts"]}
    assert [mounts[path] for path in added] == [True, True, False]
    found = environment(values)
    assert found["CDI_SPEC_DIRS"] == ",".join(dirs)
    assert found["CONTAINER_DRIVER_ROOT"] == "/host"
    assert container(values)["securityContext"] == container()["securityContext"]


def test_cdi_with_a_driver_that_has_a_root_of_its_own() -> None:
    """The driver stays where it is mounted in any case; the host's /usr is there for the programs of the toolkit."""
    values = {"deviceListStrategy": "cdi-cri", "nvidiaDriverRoot": "/run/nvidia/driver"}
    assert environment(values)["CONTAINER_DRIVER_ROOT"] == "/driver-root"
    assert host_paths(values)["/host/usr"] == "/usr"


def test_cdi_directories_and_the_path_of_hooks_are_settings() -> None:
    """Hosts with a read-only /etc have others; NVIDIA's chart has the same value for the path of the hooks."""
    dirs = ["/var/cdi/static", "/var/cdi/dynamic"]
    values = {"deviceListStrategy": "cdi-cri", "cdi": {"specDirs": dirs, "nvidiaHookPath": "/usr/local/bin/nvidia-ctk"}}
    assert {path for path in host_paths(values) if "cdi" in path} == set(dirs)
    found = environment(values)
    assert (found["CDI_SPEC_DIRS"], found["NVIDIA_CDI_HOOK_PATH"]) == (",".join(dirs), "/usr/local/bin/nvidia-ctk")


def test_simulated_gpus_have_no_cdi_devices() -> None:
    """A cluster without real GPUs gets no directory of the host for CDI."""
    simulated = {"simulate": GPUS}
    assert host_paths(simulated | {"deviceListStrategy": "cdi-cri"}) == host_paths(simulated)


@pytest.mark.parametrize(
    "sharing",
    [
        {"memory": {"resources": [{"name": "a.io/m", "isolation": ["driver", "none"]}]}},
        {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, "isolation": "driver"}]}},
        {"mps": {"resources": [{"name": "gpu", "replicas": 2, "isolation": "driver+mps"}]}},
        {"mps": {"sizes": [{"slices": [{"size": "10gb"}], "isolation": ["driver", "mps"]}]}},
    ],
)
def test_the_daemon_sees_the_cgroups_of_the_host_only_where_a_config_names_the_driver(sharing: dict[str, Any]) -> None:
    """The limits of containers are those of their cgroups, which the daemon only reads; simulated GPUs have none."""
    shared = {
        "config": {"map": {"default": {"version": "v1", "sharing": sharing}}},
        "deviceListStrategy": "cdi-cri",
        "mps": {"enabled": True},
    }
    for values in (shared, {**shared, **LIMITING}, {**shared, "driverLimits": {"readCgroups": True}}):
        assert _cgroup_mounts(values, "node-daemon") == [
            {"name": "host-cgroups", "mountPath": "/sys/fs/cgroup", "readOnly": True}
        ]
        assert host_paths(values)["/sys/fs/cgroup"] == "/sys/fs/cgroup"
    for other in ({}, {**shared, "simulate": GPUS, "mps": {}}, {"mps": {"enabled": True}}):
        if other.get("simulate") and "mps" in sharing:
            continue  # simulated GPUs have no MPS
        assert "/sys/fs/cgroup" not in host_paths(other)


RESOURCES = [
    ({}, "aliyun.com/gpu-mem"),
    ({"memory": {"resources": [{"name": "example.com/mem"}]}}, "example.com/mem"),
    ({"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2}]}}, "nvidia.com/gpu"),
    ({"timeSlicing": {"resources": [{"name": "gpu", "rename": "half", "replicas": 2}]}}, "nvidia.com/half"),
    (
        {"timeSlicing": {"renameByDefault": True, "resources": [{"name": "gpu", "replicas": 2}]}},
        "nvidia.com/gpu.shared",
    ),
    ({"mps": {"sizes": [{"slices": [{"size": "10gb", "count": 2}, {"size": "20gb"}]}]}}, "nvidia.com/gpu-10gb"),
]
RENAMED = {"gpus": [{"pattern": "*A100*", "name": "a100"}, {"pattern": "*", "name": "example.com/gpu"}]}


@pytest.mark.parametrize(("sharing", "resource"), RESOURCES)
def test_pod_of_helm_test_asks_for_a_share(sharing: dict[str, Any], resource: str) -> None:
    """The request is one unit of what nodes offer, which the daemon does advertise, or what the values say."""
    config = {"config": {"map": {"default": {"version": "v1", "sharing": sharing}}}}
    values: dict[str, Any] = {**config, "mps": {"enabled": "mps" in sharing}} if sharing else {}
    assert extended(share_pod(values)["spec"]["containers"][0]) == {resource: 1}
    told = share_pod({**values, "helmTest": {"resource": "example.com/gpu"}})
    assert extended(told["spec"]["containers"][0]) == {"example.com/gpu": 1}
    assert f"{resource}: " in templates(values)["NOTES.txt"]


def test_pod_of_helm_test_asks_for_whole_gpus_by_their_name(tmp_path: Path) -> None:
    """Names that the config gives to GPUs are those it asks for, with NVIDIA's domain where they have none."""

    def asked(config: dict[str, Any]) -> set[str]:
        values = {"config": {"map": {"default": config}}}
        (resource,) = extended(share_pod(values)["spec"]["containers"][0])
        assert f"{resource}: " in templates(values)["NOTES.txt"]
        file = tmp_path / "config.yaml"
        file.write_text(yaml.safe_dump(config))
        decided = decide(load(file), SimulatedSource(EXAMPLES / "gpus/four-a100.yaml").read())
        return {resource} & {each.name for each in decided.resources}

    assert asked({"version": "v1"}) == {"nvidia.com/gpu"}
    assert asked({"version": "v1", "resources": RENAMED}) == {"nvidia.com/a100"}
    assert asked({"version": "v1", "resources": {"gpus": RENAMED["gpus"][1:]}}) == {"example.com/gpu"}
    turns = {"timeSlicing": {"resources": [{"name": "a100", "replicas": 2}], "renameByDefault": True}}
    assert asked({"version": "v1", "resources": RENAMED, "sharing": turns}) == {"nvidia.com/a100.shared"}


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="a GPU of this machine counts as given")
@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": name}, status)
        for name, status in {"GPU-5f4c2a1b": 0, "0": 0, "void": 1, "": 1}.items()
    ]
    + [({}, 1), ({"NVIDIA_VISIBLE_DEVICES": "all"}, 1)],
)
def test_pod_of_helm_test_proves_a_share(given: dict[str, str], status: int) -> None:
    """Its command succeeds where it was given a GPU, and fails where it sees none, or all."""
    (only,) = share_pod()["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in only["env"]}
    done = subprocess.run(
        [*only["command"], *only["args"]],
        env={"PATH": "/usr/bin:/bin", **variables, **given},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert ("Check whether another device plugin offers aliyun.com/gpu-mem." in done.stderr) is (status == 1)


@pytest.mark.parametrize("name", ["gpu'; touch hacked; '", 'gpu"$(false)', "gpu\n  - x: {", "{{ gpu }}", "#"])
def test_pod_of_helm_test_takes_any_name_of_a_resource(name: str) -> None:
    """A name never becomes part of the command, nor of the YAML: the daemon is to refuse it, not a shell to run it."""
    config = yaml.safe_dump({"sharing": {"timeSlicing": {"resources": [{"name": name, "replicas": 2}]}}})
    (plain,) = share_pod()["spec"]["containers"]
    (only,) = share_pod({"config": {"map": {"default": config}}})["spec"]["containers"]
    assert (only["command"], only["args"]) == (plain["command"], plain["args"])
    assert only["env"] == [{"name": "RESOURCE", "value": f"nvidia.com/{name}"}]
    assert extended(only) == {f"nvidia.com/{name}": 1}
    assert plain["env"] == [{"name": "RESOURCE", "value": "aliyun.com/gpu-mem"}]


def test_pod_of_helm_test_has_no_rights() -> None:
    """It runs as nobody, without capabilities, and only when Helm is told to test."""
    made = share_pod()
    (only,) = made["spec"]["containers"]
    assert made["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert only["securityContext"]["runAsNonRoot"] is True
    assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert made["spec"]["automountServiceAccountToken"] is False


def test_notes_say_what_slices_need() -> None:
    """With partitioning the notes have the labels of nodes that can work, and a warning where there is none."""

    def labels(*, mps: bool, mig: bool) -> list[str]:
        values = {"mps": {"enabled": mps}, "partitioning": {"enabled": True, "mig": {"enabled": mig}}}
        notes = templates(values)["NOTES.txt"]
        assert ("so nothing makes slices, and no pod gets one" in notes) is not (mps or mig)
        return re.findall("kubectl label node NODE nos.nebuly.com/gpu-partitioning=([a-z]+)", notes)

    assert labels(mps=True, mig=False) == ["mps"]
    assert labels(mps=False, mig=True) == ["mig"]
    assert labels(mps=True, mig=True) == ["mps", "mig"]
    assert labels(mps=False, mig=False) == []
    assert "label node NODE nos.nebuly.com" not in templates()["NOTES.txt"]
    both: dict[str, Any] = {"mps": {"enabled": True}, "partitioning": {"enabled": True}}
    notes = templates({**both, "config": {"map": {"default": CONFIG}}})["NOTES.txt"]
    assert "no config shares by MPS" not in notes
    assert "because their config shares by MPS, or because you label them as below" in notes
    assert "It also limits the partitioner" in notes


def test_patience_of_the_chart_is_one_that_the_program_takes() -> None:
    """The schema accepts as many seconds as `gpushare partition`, which would not start with others."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    found = schema["properties"]["partitioning"]["properties"]["patience"]
    (option,) = (each.type for each in partition.params if each.name == "patience")
    assert isinstance(option, click.FloatRange)
    assert (found["minimum"], found["maximum"]) == (option.min, option.max)


def test_notes_say_what_to_do_next() -> None:
    """The notes name the DaemonSet that was made, and warn where no runtime class is set but one may be needed."""
    notes = templates(release="team-a")["NOTES.txt"]
    assert "rollout status daemonset/team-a-gpushare" in notes
    assert "helm test team-a -n kube-system" in notes
    assert "--set runtimeClassName=nvidia" in notes
    assert "--set runtimeClassName" not in templates({"runtimeClassName": "nvidia"})["NOTES.txt"]
    assert "--set runtimeClassName" not in templates({"simulate": GPUS})["NOTES.txt"]


def test_notes_say_how_a_node_takes_part() -> None:
    """The label is named where the default selection of nodes is in force."""
    assert "kubectl label node NODE gpushare=true" in templates()["NOTES.txt"]
    everywhere: list[dict[str, Any]] = [{"simulate": GPUS}, {"affinity": {}}]
    for values in everywhere:
        assert "gpushare=true" not in templates(values)["NOTES.txt"]


def test_notes_say_how_a_node_changes() -> None:
    """The label and the names it can have are told where there are configs and the daemon follows labels."""
    values: dict[str, Any] = {"config": {"map": {"default": CONFIG, "turns": CONFIG}}}
    notes = templates(values)["NOTES.txt"]
    assert "The label of a node selects its config: default, turns." in notes
    assert "kubectl label node NODE nvidia.com/device-plugin.config=turns --overwrite" in notes
    assert "ConfigMap mine" in templates({"config": {"name": "mine"}})["NOTES.txt"]
    for silent in ({}, {**values, "cluster": {"enabled": False}}):
        assert "device-plugin.config" not in templates(silent)["NOTES.txt"]


def test_notes_say_what_stays_on_nodes() -> None:
    """Who takes the daemons' rights away is told that nobody cleans up after them; a new release has nothing there."""
    alone = {"cluster": {"enabled": False}}
    assert "gpushare cleanup --kubeconfig" in templates(alone, upgrade=True)["NOTES.txt"]
    assert "gpushare cleanup" not in templates(alone)["NOTES.txt"]
    assert "gpushare cleanup" not in templates(upgrade=True)["NOTES.txt"]


def test_notes_look_where_the_objects_are() -> None:
    """The commands have the namespace of the objects, and Helm's that of the release."""
    notes = templates({"namespaceOverride": "gpus"})["NOTES.txt"]
    assert notes.count("kubectl -n gpus ") == 3
    assert "kubectl -n kube-system" not in notes
    assert "helm test gpushare -n kube-system" in notes


def test_notes_say_what_an_upgrade_leaves_alone_of_mps() -> None:
    """The notes say that MPS is of no use without a config."""
    used: dict[str, Any] = {"mps": {"enabled": True}, "config": {"map": {"default": MPS_CONFIG}}}
    unused: dict[str, Any] = {**used, "config": {"map": {"default": CONFIG}}}
    assert "daemonset/gpushare-mps" in templates(used)["NOTES.txt"]
    assert "kubectl get nodes -l gpushare/mps=true" in templates(used)["NOTES.txt"]
    assert "gpushare/mps" not in templates({**used, "cluster": {"enabled": False}})["NOTES.txt"]
    assert "daemonset/gpushare-mps" not in templates()["NOTES.txt"]
    assert "no config shares by MPS" in templates(unused)["NOTES.txt"]
    assert "no config shares by MPS" not in templates(used)["NOTES.txt"]


WRONG = [
    ({"migStrategie": "none"}, "'migStrategie' not allowed"),
    ({"migStrategy": "None"}, "at '/migStrategy': value must be one of 'none', 'single', 'mixed'"),
    ({"failOnInitError": "no"}, "at '/failOnInitError': got string, want null or boolean"),
    ({"deviceListStrategy": ["envvars"]}, "at '/deviceListStrategy/0': value must be one of 'envvar', "),
    ({"deviceListStrategy": "envvar,cdi"}, "at '/deviceListStrategy': 'envvar,cdi' does not match"),
    ({"deviceDiscoveryStrategy": "tegra"}, "at '/deviceDiscoveryStrategy': value must be one of 'auto', 'nvml'"),
    ({"nvidiaDriverRoot": "run/nvidia"}, "at '/nvidiaDriverRoot': 'run/nvidia' does not match pattern '^/"),
    ({"nvidiaDriverRoot": "//"}, "at '/nvidiaDriverRoot': '//' does not match pattern '^/"),
    ({"nvidiaDevRoot": "/run/../dev"}, "at '/nvidiaDevRoot': '/run/../dev' does not match pattern '^/"),
    ({"kubeletRootDir": "kubelet"}, "at '/kubeletRootDir': 'kubelet' does not match pattern '^/"),
    ({"kubeletRootDir": "/data/.."}, "at '/kubeletRootDir': '/data/..' does not match pattern '^/"),
    ({"global": {"imageRegistry": "a b"}}, "at '/global/imageRegistry': 'a b' does not match pattern"),
    ({"image": {"digest": "sha256:1"}}, "at '/image/digest': 'sha256:1' does not match pattern"),
    ({"commonLabels": {"my team": "gpu"}}, "invalid propertyName 'my team'"),
    ({"createRuntimeClass": "nvidia"}, "at '/createRuntimeClass': got string, want boolean"),
    ({"securityContext": {"capabilities": ["SYS_ADMIN"]}}, "at '/securityContext/capabilities': got array, want "),
    ({"hostNetwork": "yes"}, "at '/hostNetwork': got string, want boolean"),
    ({"revisionHistoryLimit": -1}, "at '/revisionHistoryLimit': minimum: got -1, want 0"),
    ({"extraEnv": [{"name": "A-B"}]}, "at '/extraEnv/0/name': 'A-B' does not match pattern"),
    ({"extraEnv": [{"name": "A", "value": 1}]}, "at '/extraEnv/0/value': got number, want string"),
    ({"extraArgs": "--node-labels=false"}, "at '/extraArgs': got string, want array"),
    ({"extraVolumes": [{"emptyDir": {}}]}, "at '/extraVolumes/0': missing property 'name'"),
    ({"extraVolumeMounts": [{"name": "a", "mountPath": "a"}]}, "/mountPath': 'a' does not match pattern '^/'"),
    ({"serviceAccount": {"annotations": {"a": 1}}}, "at '/serviceAccount/annotations/a': got number, want string"),
    ({"cluster": {"cordonConfigMaps": "all"}}, "at '/cluster/cordonConfigMaps': got string, want boolean"),
    ({"mps": {"affinity": {"nodes": {}}}}, "at '/mps/affinity': additional properties 'nodes' not allowed"),
    ({"mps": {"livenessProbe": {"exec": {}}}}, "at '/mps/livenessProbe': additional properties 'exec' not allowed"),
    ({"image": {"tga": "1"}}, "at '/image': additional properties 'tga' not allowed"),
    ({"config": {"version": "v1"}}, "at '/config': additional properties 'version' not allowed"),
    ({"config": {"map": {"a": ""}}}, "at '/config/map/a': minLength: got 0, want 1"),
    ({"config": {"map": {"a": {"flag": {}}}}}, "at '/config/map/a': additional properties 'flag' not allowed"),
    ({"config": {"map": {"a b": CONFIG}}}, "invalid propertyName 'a b'"),
    ({"config": {"fallbackStrategies": ["first"]}}, "value must be one of 'named', 'single', 'empty'"),
    ({"kubeletRootDir": None}, "missing property 'kubeletRootDir'"),
    ({"podMonitor": None}, "missing property 'podMonitor'"),
    ({"mps": {"sharedMemory": "1Gi"}}, "at '/mps/sharedMemory': '1Gi' does not match pattern"),
    ({"mps": {"securityContext": None}}, "at '/mps': missing property 'securityContext'"),
    ({"partitioning": {"mig": {"root": "/"}}}, "at '/partitioning/mig/root': '/' does not match pattern"),
    ({"partitioning": {"patience": 86401}}, "at '/partitioning/patience': maximum: got 86,401, want 86,400"),
    *[
        ({"mps": {"root": path}}, f"at '/mps/root': '{path}' does not match pattern '^/")
        for path in ("mps", "/", "//", "/.", "/./", "/..", "/mps/..", "/mps/../..", "/../mps")
    ],
    *[
        (values, "does not match pattern '^([a-z0-9]")
        for values in (
            {"nameOverride": "GPUs"},
            {"fullnameOverride": "gpu_shares"},
            {"fullnameOverride": "gpu-"},
            {"namespaceOverride": "team.gpus"},
            {"imagePullSecrets": [{"name": "Registry"}]},
            {"runtimeClassName": "NVIDIA"},
            {"config": {"name": "my configs"}},
            {"serviceAccount": {"name": "system:node"}},
            {"priorityClassName": "High"},
            {"helmTest": {"resource": "Example.com/gpu"}},
        )
    ],
    ({"namespaceOverride": "n" * 64}, "at '/namespaceOverride': maxLength: got 64, want 63"),
    ({"config": {"name": "n" * 254}}, "at '/config/name': maxLength: got 254, want 253"),
    ({"imagePullSecrets": [{"name": ""}]}, "at '/imagePullSecrets/0/name': minLength: got 0, want 1"),
    ({"podLabels": {"my team": "gpu"}}, "invalid propertyName 'my team'"),
    ({"podLabels": {"": "gpu"}}, "invalid propertyName ''"),
    ({"podLabels": {"Example.com/team": "gpu"}}, "invalid propertyName 'Example.com/team'"),
    ({"podLabels": {"t" * 64: "gpu"}}, "invalid propertyName 'ttt"),
    ({"podLabels": {"team": "my gpus"}}, "at '/podLabels/team': 'my gpus' does not match pattern"),
    ({"nodeSelector": {"a/b/c": "gpu"}}, "invalid propertyName 'a/b/c'"),
    ({"selectorLabelsOverride": {"-app": "gpu"}}, "invalid propertyName '-app'"),
    ({"podMonitor": {"labels": {"release": "-"}}}, "at '/podMonitor/labels/release': '-' does not match pattern"),
    ({"httpPort": 65536}, "at '/httpPort': maximum: got 65,536, want 65,535"),
    ({"livenessProbe": {"httpGet": {}}}, "at '/livenessProbe': additional properties 'httpGet' not allowed"),
    ({"helmTest": {"resource": "gpu"}}, "at '/helmTest/resource': 'gpu' does not match"),
    ({"helmTest": {"resource": "a.b/c'd"}}, "at '/helmTest/resource': 'a.b/c\\'d' does not match"),
    ({"passDeviceSpecs": True}, "'passDeviceSpecs' not allowed"),
    ({"simulate": {"gpu": []}}, "at '/simulate': missing property 'gpus'"),
    ({"simulate": {"gpus": []}}, "at '/simulate/gpus': minItems: got 0, want 1"),
    ({"simulate": ""}, "at '/simulate': minLength: got 0, want 1"),
    ({"simulate": {"gpus": [{"memory": "4GiB", "memry": 1}]}}, "at '/simulate/gpus/0': additional properties 'memry'"),
    ({"simulate": {"gpus": [{"memory": "4GB"}]}}, "at '/simulate/gpus/0/memory': '4GB' does not match pattern"),
    ({"simulate": {"gpus": [{"memory": "4GiB", "count": "2"}]}}, "at '/simulate/gpus/0/count': got string, want "),
    ({"simulate": {"gpus": [{"memory": "4GiB", "mig": ["7gb"]}]}}, "at '/simulate/gpus/0/mig/0': '7gb' does not match"),
    ({"logLevel": "trace"}, "at '/logLevel': value must be one of 'debug', 'info', 'warning', 'error'"),
    ({"updateStrategy": {"rollingUpdate": {"maxSurge": "0%"}}}, "/maxSurge': '0%' does not match pattern"),
    ({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "0%"}}}, "/maxUnavailable': '0%' does not match pattern"),
    ({"cluster": {"cordonNodes": ["Node_1"]}}, "at '/cluster/cordonNodes/0': 'Node_1' does not match pattern"),
    ({"cluster": {"cordonNodes": ["n" * 254]}}, "at '/cluster/cordonNodes/0': maxLength: got 254, want 253"),
    ({"service": {"port": 80}}, "at '/service': additional properties 'port' not allowed"),
    ({"podMonitor": {"interval": "often"}}, "at '/podMonitor/interval': 'often' does not match pattern"),
    ({"networkPolicy": {"from": [{"pods": {}}]}}, "at '/networkPolicy/from/0': additional properties 'pods' not"),
]


@pytest.mark.parametrize(("values", "sentence"), WRONG, ids=[f"{values}" for values, _ in WRONG])
def test_wrong_value_is_refused(values: dict[str, Any], sentence: str) -> None:
    """A value that is misspelt or of the wrong kind is refused with its place and what is allowed."""
    with pytest.raises(helm_python.HelmValuesError) as refusal:
        objects(values)
    assert sentence in str(refusal.value)


RIGHT: list[dict[str, Any]] = [
    {"mps": {"enabled": True, "root": path}} for path in ("/mps", "/run/nvidia/mps/", "/.mps", "/data/my..mps/a.b/.c")
] + [
    {"nvidiaDriverRoot": "/", "nvidiaDevRoot": "/", "kubeletRootDir": "/"},
    {"fullnameOverride": "8.gpu-shares", "config": {"name": "my.configs"}, "imagePullSecrets": [{"name": "a.b"}]},
    {"podLabels": {"example.com/Team_1.x": "GPU.s", "t" * 63: ""}},
    {"helmTest": {"resource": "nvidia.com/mig-3g.40gb"}},
    {"nameOverride": "", "fullnameOverride": "", "namespaceOverride": "", "runtimeClassName": ""},
]


@pytest.mark.parametrize("values", RIGHT, ids=str)
def test_unusual_value_is_taken(values: dict[str, Any]) -> None:
    """Names, labels and paths are refused only where Kubernetes would not take them."""
    for each in objects(values):
        check(each, KUBERNETES[-1])


@pytest.mark.parametrize("file", sorted((EXAMPLES / "configs").iterdir()), ids=lambda file: file.name)
def test_example_config_can_be_served(file: Path) -> None:
    """Each example config loads without problem or notice and shares out the example GPUs, also through the chart."""
    loaded = load(file)
    decided = decide(loaded, SimulatedSource(EXAMPLES / "gpus/four-a100.yaml").read())
    assert decided.resources
    assert not loaded.notices
    parts = {"mps": {"enabled": bool(decided.mps.gpus)}, "dra": {"enabled": bool(decided.by_claim)}}
    values = {"config": {"map": {"default": file.read_text()}}, **parts}
    assert files(values)["default"] == file.read_text()


@pytest.mark.parametrize("file", sorted((EXAMPLES / "gpus").iterdir()), ids=lambda file: file.name)
def test_example_gpus_can_be_read(file: Path) -> None:
    """Each example node has GPUs."""
    assert SimulatedSource(file).read().cards


@pytest.mark.parametrize("file", sorted((EXAMPLES / "pods").iterdir()), ids=lambda file: file.name)
@pytest.mark.parametrize("version", KUBERNETES)
def test_example_pod_is_valid(file: Path, version: str) -> None:
    """Each example pod is one for old and new clusters, asks for a share, and leaves what it sees to the plugin."""
    manifest = yaml.safe_load(file.read_text())
    check(manifest, version)
    (only,) = manifest["spec"]["containers"]
    known = {"aliyun.com/gpu-mem", "nvidia.com/gpu", "nvidia.com/gpu-10gb", "nvidia.com/mig-3g.20gb"}
    assert set(only["resources"]["limits"]) <= known
    assert "env" not in only
