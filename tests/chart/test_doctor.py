"""The Jobs that look at nodes: read-only, without rights in the cluster, and one for each node of the values."""

from typing import Any

import helm_python
import kubernetes_validate  # type: ignore[import-untyped] # ships no types
import pytest
from kubernetes_validate.utils import all_versions  # type: ignore[import-untyped] # ships no types

from gpushare_plugin.cli.commands.node.doctor import command
from tests.chart.rendering import objects
from tests.chart.test_chart import CONFIG
from tests.chart.validity import check

NODES = {"doctor": {"nodes": ["node-a", "node-b.example.com"]}}


def jobs(values: dict[str, Any]) -> dict[str, Any]:
    """Return the Jobs of the doctor by the name of their node."""
    made = [each for each in objects(values) if each["kind"] == "Job" and "-doctor-" in each["metadata"]["name"]]
    return {each["spec"]["template"]["spec"]["nodeName"]: each for each in made}


def pod(values: dict[str, Any]) -> Any:
    """Return the pod of the Job for the first node."""
    return jobs({**NODES, **values})["node-a"]["spec"]["template"]["spec"]


def test_nobody_who_does_not_ask_gets_a_job() -> None:
    """By default the chart looks at no node."""
    assert jobs({}) == {}


def test_each_node_has_a_job_of_its_own() -> None:
    """The Job runs on its node, whatever the taints and runtime classes are, once, and cannot use the API server."""
    made = jobs(NODES)
    assert list(made) == NODES["doctor"]["nodes"]
    assert len({job["metadata"]["name"] for job in made.values()}) == 2
    for job in made.values():
        spec = job["spec"]["template"]["spec"]
        assert job["spec"]["backoffLimit"] == 0
        assert spec["tolerations"] == [{"operator": "Exists"}]
        assert spec["automountServiceAccountToken"] is False
        assert "runtimeClassName" not in spec
    assert "runtimeClassName" not in pod({"runtimeClassName": "nvidia"})


@pytest.mark.parametrize("version", [all_versions()[0], kubernetes_validate.latest_version()])
def test_jobs_are_valid(version: str) -> None:
    """For the oldest and the newest Kubernetes of which there are schemas."""
    for job in jobs({**NODES, "doctor": {**NODES["doctor"], "annotations": {"team": "gpu"}}}).values():
        check(job, version)


def test_a_job_cannot_change_its_node() -> None:
    """The root of the node is mounted read-only, and the container has no capability and no other right."""
    (container,) = pod({})["containers"]
    (mount,) = container["volumeMounts"]
    assert mount == {"name": "host", "mountPath": "/host", "readOnly": True, "mountPropagation": "HostToContainer"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert not {"hostPID", "hostNetwork", "hostIPC"} & pod({}).keys()
    assert "SYS_ADMIN" not in str(pod({"migStrategy": "mixed"}))


def test_the_job_looks_for_the_kubelet_where_the_values_have_it() -> None:
    """The daemon gets its pod-resources socket from below `kubeletRootDir`, so doctor looks there on the node."""
    (container,) = pod({"kubeletRootDir": "/opt/kubelet/"})["containers"]
    assert "--pod-resources-socket=/opt/kubelet/pod-resources/kubelet.sock" in container["args"]


def test_the_job_looks_for_driver_limits_where_the_values_have_them() -> None:
    """Daemon and agent exchange files in `driverLimits.root`, so doctor looks there on the node."""
    (container,) = pod({"driverLimits": {"root": "/var/lib/limits"}})["containers"]
    assert "--driver-limits-root=/var/lib/limits" in container["args"]


def test_the_job_judges_by_the_config_of_the_daemon() -> None:
    """What the values and the configs say of how GPUs are given reaches the command, in variables that it reads."""
    spec = pod({"deviceListStrategy": "cdi-cri", "config": {"map": {"default": CONFIG}}})
    (container,) = spec["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables["DEVICE_LIST_STRATEGY"] == "cdi-cri"
    assert variables["CONFIG_DIRECTORY"] == "/etc/gpushare/configs"
    assert [volume["name"] for volume in spec["volumes"]] == ["host", "configs"]
    read = {
        name
        for option in command.params
        for name in ([option.envvar] if isinstance(option.envvar, str) else option.envvar or ())
    }
    assert variables.keys() <= read
    assert "NVIDIA_VISIBLE_DEVICES" not in variables


def test_another_job_takes_the_place_of_one_that_would_change() -> None:
    """Kubernetes rejects a change of the pods of a Job, so another image makes a Job of another name."""
    names = [jobs({**NODES, **values})["node-a"]["metadata"]["name"] for values in ({}, {}, {"image": {"tag": "new"}})]
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize("nodes", [["Node A"], ["node-a", "node-a"], "node-a", [""]])
def test_what_is_no_list_of_nodes_is_refused(nodes: object) -> None:
    """Before anything is installed."""
    with pytest.raises(helm_python.HelmError):
        objects({"doctor": {"nodes": nodes}})
