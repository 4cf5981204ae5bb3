"""The chart: valid for old and new clusters, every value in its place, wrong values refused."""

from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate  # type: ignore[import-untyped] # ships no types
import pytest
import yaml
from kubernetes_validate.utils import all_versions  # type: ignore[import-untyped] # ships no types

from gpushare_plugin import __version__, app
from gpushare_plugin.cli import LOG_LEVELS, commands
from gpushare_plugin.config.load import load
from gpushare_plugin.host.simulated import SimulatedSource
from gpushare_plugin.node import decide
from gpushare_plugin.options import SETTING_OPTIONS
from tests.charts.rendering import CHART, ROOT, STATIC_MANIFEST, objects, of_hooks, static_manifest, templates

EXAMPLES = ROOT / "examples"
KUBERNETES = [all_versions()[0], kubernetes_validate.latest_version()]
"""The oldest and the newest version there are schemas for."""

CONFIG = {"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}
GPUS = {"gpus": [{"name": "NVIDIA A10", "memory": "24GiB", "count": 2}]}
SETTINGS = {
    "migStrategy": ("mixed", "MIG_STRATEGY", "mixed"),
    "failOnInitError": (True, "FAIL_ON_INIT_ERROR", "true"),
    "deviceListStrategy": (["envvar", "cdi-cri"], "DEVICE_LIST_STRATEGY", "envvar,cdi-cri"),
    "deviceIDStrategy": ("index", "DEVICE_ID_STRATEGY", "index"),
    "nvidiaDriverRoot": ("/run/nvidia/driver", "NVIDIA_DRIVER_ROOT", "/run/nvidia/driver"),
    "nvidiaDevRoot": ("/run/nvidia/dev", "NVIDIA_DEV_ROOT", "/run/nvidia/dev"),
    "passDeviceSpecs": (False, "PASS_DEVICE_SPECS", "false"),
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
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
    "tolerations": [{"operator": "Exists"}],
    "priorityClassName": "system-cluster-critical",
}
"""Values that are fields of the pod, under the same name."""

EVERYTHING: dict[str, Any] = {
    **{key: given for key, (given, _, _) in SETTINGS.items()},
    **POD_FIELDS,
    "image": {"repository": "registry.example.com/gpushare", "pullPolicy": "Always", "tag": "9.9.9"},
    "nameOverride": "shares",
    "fullnameOverride": "gpu-shares",
    "config": CONFIG,
    "simulate": GPUS,
    "kubeletRootDir": "/data/kubelet/",
    "cluster": {"enabled": True, "nodeLabels": False, "cordonNodes": ["gpu-1"]},
    "serviceAccount": {"create": True, "name": "gpu-shares"},
    "podAnnotations": {"example.com/team": "gpu"},
    "podLabels": {"team": "gpu"},
    "resources": {"limits": {"memory": "256Mi"}},
    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
    "securityContext": {"runAsGroup": 0},
}


def daemonset(values: dict[str, Any] | None = None, release: str = "gpushare") -> dict[str, Any]:
    """Return the rendered DaemonSet."""
    (found,) = (each for each in objects(values, release) if each["kind"] == "DaemonSet")
    return found


def pod(values: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the pod's specification."""
    spec: dict[str, Any] = daemonset(values)["spec"]["template"]["spec"]
    return spec


def container(values: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the one container."""
    (only,) = pod(values)["containers"]
    assert isinstance(only, dict)
    return only


def environment(values: dict[str, Any] | None = None) -> dict[str, str]:
    """Return the container's environment."""
    return {
        entry["name"]: entry.get("value") or entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in container(values)["env"]
    }


def host_paths(values: dict[str, Any] | None = None) -> dict[str, str]:
    """Return the host's directories by where they are mounted."""
    spec = pod(values)
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    mounts = spec["containers"][0]["volumeMounts"]
    return {mount["mountPath"]: paths[mount["name"]] for mount in mounts if mount["name"] in paths}


def files(values: dict[str, Any]) -> dict[str, str]:
    """Return the files of the ConfigMap."""
    (found,) = (each for each in objects(values) if each["kind"] == "ConfigMap")
    content: dict[str, str] = found["data"]
    return content


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["default values", "every value"])
def test_objects_are_valid(values: dict[str, Any], version: str) -> None:
    """Old and new API servers know every field of the objects, with default values and with every value set."""
    made = objects(values)
    kinds = ["DaemonSet", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"]
    assert [each["kind"] for each in made if each not in of_hooks(made)] == (["ConfigMap"] if values else []) + kinds
    assert [each["kind"] for each in of_hooks(made)] == ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"]
    for each in made:
        kubernetes_validate.validate(each, version, strict=True)


def test_lint_is_content() -> None:
    """Helm's lint has no warning about the chart."""
    report = helm_python.lint(CHART, strict=True)
    assert not report["errors"]
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]


def test_versions_are_one() -> None:
    """Chart, image and daemon carry the same version."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
    assert container()["image"] == f"gpushare:{__version__}"


def test_static_manifest_is_fresh() -> None:
    """The committed manifest is what the chart makes with default values."""
    assert STATIC_MANIFEST.read_text() == static_manifest(), "run python -m tests.charts.rendering --write"
    made = objects()
    static = list(yaml.safe_load_all(STATIC_MANIFEST.read_text()))
    assert static == [each for each in made if each not in of_hooks(made)]


def test_schema_and_values_name_the_same() -> None:
    """Every value of values.yaml is in the schema, and the other way round; the tests here set each of them."""
    with helm_python.Chart.load(CHART) as chart:
        schema = chart.schema
    documented = yaml.safe_load((CHART / "values.yaml").read_text())
    assert schema is not None
    assert set(schema["properties"]) - {"global"} == set(documented) == set(EVERYTHING)


@pytest.mark.parametrize(("value", "given", "variable", "text"), [(key, *rest) for key, rest in SETTINGS.items()])
def test_setting_becomes_its_variable(value: str, given: object, variable: str, text: str) -> None:
    """A setting of the chart is handed to the daemon in the environment variable of the same option."""
    assert environment({value: given})[variable] == text


def test_settings_not_given_are_left_to_the_file() -> None:
    """By default only the log, and that nodes without GPUs wait, are decided by the chart; null gives that back."""
    assert environment() == {
        "POD_NAMESPACE": "metadata.namespace",
        "POD_NAME": "metadata.name",
        "NODE_NAME": "spec.nodeName",
        "NODE_LABELS": "true",
        "LOG_FORMAT": "json",
        "LOG_LEVEL": "info",
        "FAIL_ON_INIT_ERROR": "false",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "utility",
    }
    assert "FAIL_ON_INIT_ERROR" not in environment({"failOnInitError": None})


def test_daemon_knows_what_it_is_given() -> None:
    """Every argument and variable of the container is one the command line has, and every setting can be given."""
    given = container(EVERYTHING)
    (command,) = given["args"]
    options = commands.commands[command].params
    known = {
        name
        for option in options
        for name in ([option.envvar] if isinstance(option.envvar, str) else option.envvar or [])
    }
    for_the_runtime = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
    variables = set(environment(EVERYTHING))
    assert variables - for_the_runtime <= known
    assert {option.environment[0] for option in SETTING_OPTIONS} <= variables


def test_log_levels_are_those_of_the_command_line() -> None:
    """The chart accepts the log levels that the daemon has."""
    for level in LOG_LEVELS:
        assert environment({"logLevel": level})["LOG_LEVEL"] == level


@pytest.mark.parametrize(("field", "value"), POD_FIELDS.items())
def test_pod_field_is_passed_on(field: str, value: object) -> None:
    """Values named like a field of the pod are that field."""
    assert pod({field: value})[field] == value


def test_image() -> None:
    """The image is put together of its repository and its tag."""
    given = container({"image": EVERYTHING["image"]})
    assert given["image"] == "registry.example.com/gpushare:9.9.9"
    assert given["imagePullPolicy"] == "Always"


def test_names() -> None:
    """Objects are named after release and chart, and both parts can be overridden."""
    assert daemonset()["metadata"]["name"] == "gpushare"
    assert daemonset(release="team-a")["metadata"]["name"] == "team-a-gpushare"
    assert daemonset({"nameOverride": "shares"}, "team-a")["metadata"]["name"] == "team-a-shares"
    assert daemonset({"fullnameOverride": "gpu-shares"})["metadata"]["name"] == "gpu-shares"


def test_pod_metadata() -> None:
    """Labels and annotations of the user come to those of the chart; the selector is among the pod's labels."""
    made = daemonset({"podLabels": {"team": "gpu"}, "podAnnotations": {"example.com/team": "gpu"}})
    metadata = made["spec"]["template"]["metadata"]
    assert metadata["labels"].items() >= {"team": "gpu", **made["spec"]["selector"]["matchLabels"]}.items()
    assert metadata["annotations"] == {"example.com/team": "gpu"}


def test_container_fields() -> None:
    """Resources, security context and update strategy are taken over; the first two are merged with the defaults."""
    assert container({"resources": {"limits": {"memory": "256Mi"}}})["resources"]["limits"] == {"memory": "256Mi"}
    assert container({"securityContext": {"runAsGroup": 0}})["securityContext"]["runAsGroup"] == 0
    strategy = daemonset({"updateStrategy": EVERYTHING["updateStrategy"]})["spec"]["updateStrategy"]
    assert strategy == EVERYTHING["updateStrategy"]


def test_bad_settings_stop_an_update() -> None:
    """One node is updated at a time, and its daemon has to last before the next one's turn."""
    spec = daemonset()["spec"]
    assert spec["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
    assert spec["minReadySeconds"] > 0


def test_least_privilege() -> None:
    """The daemon has no capability and nothing to write to but its socket directory; no token where it needs none."""
    spec = pod()
    assert spec["automountServiceAccountToken"] is True
    assert spec["serviceAccountName"] == "gpushare"
    assert pod({"cluster": {"enabled": False}})["automountServiceAccountToken"] is False
    without = objects({"cluster": {"enabled": False}})
    assert [each["kind"] for each in without] == ["DaemonSet"]
    assert "NODE_NAME" not in environment({"cluster": {"enabled": False}})
    assert spec["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    security = container()["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert "privileged" not in security
    writable = [mount["mountPath"] for mount in container(EVERYTHING)["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["/var/lib/kubelet/device-plugins"]


def test_kubelet_directories() -> None:
    """Pod-resources lies below the kubelet's root; the device plugins' directory is the kubelet's constant."""
    assert host_paths({"kubeletRootDir": "/data/kubelet/"}) == {
        "/var/lib/kubelet/device-plugins": "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources": "/data/kubelet/pod-resources",
    }
    assert host_paths()[str(app.DEFAULT_PLUGIN_DIRECTORY)] == str(app.DEFAULT_PLUGIN_DIRECTORY)


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
    values = {"config": given}
    content = files(values)["config.yaml"]
    assert environment(values)["CONFIG_FILE"] == "/etc/gpushare/config.yaml"
    assert {"name": "files", "mountPath": "/etc/gpushare", "readOnly": True} in container(values)["volumeMounts"]
    assert content == given if isinstance(given, str) else yaml.safe_load(content) == given
    file = tmp_path / "config.yaml"
    file.write_text(content)
    loaded = load(file)
    assert not loaded.problems
    assert loaded.config is not None
    assert loaded.config.sharing.time_slicing is not None
    assert loaded.config.sharing.time_slicing.resources[0].replicas == 4


def test_references_to_devices_stay_what_they_are() -> None:
    """Indices, MIG indices and versions come through Helm's YAML with their types."""
    entry = {"name": "nvidia.com/gpu", "replicas": 2, "devices": [0, "0:1"]}
    config = {"sharing": {"timeSlicing": {"resources": [entry]}}}
    assert yaml.safe_load(files({"config": config})["config.yaml"]) == config


def test_simulated_gpus_reach_the_daemon(tmp_path: Path) -> None:
    """A description of GPUs lies where the daemon looks, and can be read."""
    values = {"simulate": GPUS}
    assert environment(values)["SIMULATE"] == "/etc/gpushare/gpus.yaml"
    file = tmp_path / "gpus.yaml"
    file.write_text(files(values)["gpus.yaml"])
    assert [gpu.name for gpu in SimulatedSource(file).read().gpus] == ["NVIDIA A10"] * 2


def test_other_settings_need_no_other_pods() -> None:
    """The daemon watches its files, so a changed config changes the ConfigMap and leaves the pods alone."""
    one, other = ({"config": CONFIG}, {"config": {**CONFIG, "flags": {"migStrategy": "none"}}})
    assert files(one) != files(other)
    assert daemonset(one) == daemonset(other)


def test_notes_say_what_to_do_next() -> None:
    """The notes name the DaemonSet that was made, and warn where no runtime class is set but one may be needed."""
    notes = templates(release="team-a")["NOTES.txt"]
    assert "rollout status daemonset/team-a-gpushare" in notes
    assert "--set runtimeClassName=nvidia" in notes
    assert "--set runtimeClassName" not in templates({"runtimeClassName": "nvidia"})["NOTES.txt"]
    assert "--set runtimeClassName" not in templates({"simulate": GPUS})["NOTES.txt"]


WRONG = [
    ({"migStrategie": "none"}, "'migStrategie' not allowed"),
    ({"migStrategy": "None"}, "at '/migStrategy': value must be one of 'none', 'single', 'mixed'"),
    ({"failOnInitError": "no"}, "at '/failOnInitError': got string, want null or boolean"),
    ({"deviceListStrategy": ["envvars"]}, "at '/deviceListStrategy/0': value must be one of 'envvar', "),
    ({"deviceListStrategy": "envvar,cdi"}, "at '/deviceListStrategy': 'envvar,cdi' does not match"),
    ({"deviceDiscoveryStrategy": "tegra"}, "at '/deviceDiscoveryStrategy': value must be one of 'auto', 'nvml'"),
    ({"nvidiaDriverRoot": "run/nvidia"}, "at '/nvidiaDriverRoot': 'run/nvidia' does not match pattern '^/'"),
    ({"kubeletRootDir": "kubelet"}, "at '/kubeletRootDir': 'kubelet' does not match pattern '^/'"),
    ({"image": {"tga": "1"}}, "at '/image': additional properties 'tga' not allowed"),
    ({"config": {"map": {"default": "version: v1"}}}, "at '/config': additional properties 'map' not allowed"),
    ({"config": ""}, "at '/config': minLength: got 0, want 1"),
    ({"simulate": {"gpu": []}}, "at '/simulate': missing property 'gpus'"),
    ({"logLevel": "trace"}, "at '/logLevel': value must be one of 'debug', 'info', 'warning', 'error'"),
    ({"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}, "additional properties 'maxSurge' not allowed"),
]


@pytest.mark.parametrize(("values", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_wrong_value_is_refused(values: dict[str, Any], sentence: str) -> None:
    """A value that is misspelt or of the wrong kind is refused with its place and what is allowed."""
    with pytest.raises(helm_python.HelmValuesError) as refusal:
        objects(values)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("file", sorted((EXAMPLES / "configs").iterdir()), ids=lambda file: file.name)
def test_example_config_can_be_served(file: Path) -> None:
    """Each example config loads without problem or notice and shares out the example GPUs, also through the chart."""
    loaded = load(file)
    decided = decide(loaded, SimulatedSource(EXAMPLES / "gpus/four-a100.yaml").read())
    assert decided.resources
    assert not loaded.notices
    assert files({"config": file.read_text()})["config.yaml"] == file.read_text()


@pytest.mark.parametrize("file", sorted((EXAMPLES / "gpus").iterdir()), ids=lambda file: file.name)
def test_example_gpus_can_be_read(file: Path) -> None:
    """Each example node has GPUs."""
    assert SimulatedSource(file).read().gpus


@pytest.mark.parametrize("file", sorted((EXAMPLES / "pods").iterdir()), ids=lambda file: file.name)
@pytest.mark.parametrize("version", KUBERNETES)
def test_example_pod_is_valid(file: Path, version: str) -> None:
    """Each example pod is one for old and new clusters, asks for a share, and leaves what it sees to the plugin."""
    manifest = yaml.safe_load(file.read_text())
    kubernetes_validate.validate(manifest, version, strict=True)
    (only,) = manifest["spec"]["containers"]
    assert set(only["resources"]["limits"]) <= {"aliyun.com/gpu-mem", "nvidia.com/gpu"}
    assert "env" not in only


@pytest.mark.parametrize("file", sorted((EXAMPLES / "values").iterdir()), ids=lambda file: file.name)
def test_example_values_render(file: Path) -> None:
    """Each example of values is accepted by the chart and makes valid objects."""
    for each in objects(yaml.safe_load(file.read_text())):
        kubernetes_validate.validate(each, KUBERNETES[-1], strict=True)
