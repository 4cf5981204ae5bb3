"""What the chart made, as tests ask for it; `part` names a component, the node's daemon or mps."""

from typing import Any

from tests.charts.rendering import objects


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
