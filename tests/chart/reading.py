"""What the chart made, as tests ask for it; `part` names a component, the node's daemon or mps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.chart.rendering import objects


def daemonset(values: dict[str, Any] | None = None, release: str = "gpushare", part: str = "node-daemon") -> Any:
    """Return the rendered DaemonSet of this component."""
    (found,) = (
        each
        for each in objects(values, release)
        if each["kind"] == "DaemonSet"
        and each["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] == part
    )
    return found


def share_pod(values: dict[str, Any] | None = None) -> Any:
    """Return the pod that `helm test` runs."""
    (found,) = (each for each in objects(values) if each["kind"] == "Pod")
    return found


def pod(values: dict[str, Any] | None = None, part: str = "node-daemon") -> Any:
    """Return the pod's specification."""
    return daemonset(values, part=part)["spec"]["template"]["spec"]


def container(values: dict[str, Any] | None = None, part: str = "node-daemon") -> Any:
    """Return the one container."""
    (found,) = pod(values, part)["containers"]
    return found


def environment(values: dict[str, Any] | None = None, part: str = "node-daemon") -> dict[str, str]:
    """Return the container's environment."""
    return {
        entry["name"]: entry.get("value") or entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in container(values, part)["env"]
    }


def host_paths(values: dict[str, Any] | None = None, part: str = "node-daemon") -> dict[str, str]:
    """Return the host's directories by where they are mounted."""
    spec = pod(values, part)
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    mounts = spec["containers"][0]["volumeMounts"]
    return {mount["mountPath"]: paths[mount["name"]] for mount in mounts if mount["name"] in paths}


def files(values: dict[str, Any]) -> dict[str, str]:
    """Return the files of the ConfigMap."""
    (found,) = (each for each in objects(values) if each["kind"] == "ConfigMap")
    content: dict[str, str] = found["data"]
    return content


def given(values: dict[str, Any], folder: Path, fields: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of the daemon's container, with the files of its ConfigMaps in `folder`.

    `fields` are those of its pod, by their paths; variables of others are left out.
    """
    data = {each["metadata"]["name"]: each["data"] for each in objects(values) if each["kind"] == "ConfigMap"}
    volumes = {
        volume["name"]: volume["configMap"]["name"] for volume in pod(values)["volumes"] if "configMap" in volume
    }
    known = fields or {}
    variables = {
        entry["name"]: entry["value"] if "value" in entry else known[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in container(values)["env"]
        if "value" in entry or entry["valueFrom"]["fieldRef"]["fieldPath"] in known
    }
    for mount in container(values)["volumeMounts"]:
        if configmap := volumes.get(mount["name"]):
            there = folder / mount["name"]
            there.mkdir(parents=True)
            for name, content in data[configmap].items():
                (there / name).write_text(content)
            variables = {name: value.replace(mount["mountPath"], str(there)) for name, value in variables.items()}
    return variables


def extended(container: Any) -> dict[str, Any]:
    """Return the extended resources that a container asks for."""
    limits: dict[str, Any] = container["resources"]["limits"]
    return {name: amount for name, amount in limits.items() if name not in {"cpu", "memory"}}
