"""Tests of `gpushare_plugin.kube.pods`: manifests as a cluster has them, and what is made of them."""

import json
from typing import Any

import msgspec
import pytest

from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.kube.pods import pod_of
from gpushare_plugin.ledger.pod import Pod, Share
from gpushare_plugin.ledger.request import ContainerRequest, Wishes

MEMORY = "aliyun.com/gpu-mem"


def as_pod(manifest: dict[str, Any]) -> Pod:
    """Return what is made of a pod's JSON."""
    return pod_of(msgspec.json.decode(json.dumps(manifest), type=ApiPod))


def trained(**changes: Any) -> dict[str, Any]:
    """Return a running pod of a Job, as kubectl shows it, with sections replaced."""
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "train-x7k2p",
            "generateName": "train-",
            "namespace": "team",
            "uid": "0d5e4d5a-53a2-4c4e-9a3f-6f1f2b1f8f10",
            "resourceVersion": "812345",
            "creationTimestamp": "2026-01-01T10:00:00Z",
            "labels": {"job-name": "train"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Other", "name": "o", "uid": "another"},
                {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job-1", "controller": True},
            ],
            "managedFields": [{"manager": "kube-controller-manager", "operation": "Update"}],
        },
        "spec": {
            "nodeName": "gpu-1",
            "priority": 1000,
            "schedulerName": "default-scheduler",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
            "initContainers": [
                {"name": "fetch", "resources": {"limits": {MEMORY: "2", "cpu": "500m"}}},
                {"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {MEMORY: "1"}}},
            ],
            "containers": [
                {
                    "name": "main",
                    "image": "train:1",
                    "env": [{"name": "A", "value": "b"}],
                    "resources": {
                        "limits": {MEMORY: "1k", "memory": "4Gi", "hugepages-2Mi": "2Mi", "example.com/zero": "0"},
                        "requests": {MEMORY: "1k", "cpu": "100m"},
                    },
                },
                {"name": "log", "resources": {}},
            ],
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "main", "ready": True, "state": {"running": {"startedAt": "2026-01-01T10:00:05Z"}}}
            ],
        },
    }
    return manifest | changes


def test_a_pod_is_what_its_manifest_says() -> None:
    """Containers stand in the order of their start, each with its extended resources, sidecars as what they are."""
    pod = as_pod(trained())
    assert (pod.label, pod.uid, pod.node) == ("team/train-x7k2p", "0d5e4d5a-53a2-4c4e-9a3f-6f1f2b1f8f10", "gpu-1")
    assert (pod.owner, pod.priority, pod.holds_on) == ("job-1", 1000, "gpu-1")
    assert pod.request.containers == (
        ContainerRequest("fetch", "init", ((MEMORY, 2),)),
        ContainerRequest("proxy", "sidecar", ((MEMORY, 1),)),
        ContainerRequest("main", "app", ((MEMORY, 1000),)),
        ContainerRequest("log", "app"),
    )
    assert pod.request.amounts == {MEMORY: 1001}


def test_equal_pods_share_a_request() -> None:
    """Forty thousand pods of a few kinds have a few requests."""
    assert as_pod(trained()).request is as_pod(trained()).request


def test_annotations_and_labels_are_understood() -> None:
    """What ours, Aliyun's and HAMi's annotations say of a pod is in the account, as units that it checks."""
    shares = {"version": 1, "containers": {"main": {MEMORY: {"GPU-1": 1000}}}}
    metadata = trained()["metadata"]
    metadata["labels"]["aliyun.com/gpu-count"] = "2"
    metadata["annotations"] = {
        "gpushare/allocation": json.dumps(shares),
        "gpushare/promise": json.dumps(shares | {"node": "gpu-1", "time": "2026-01-01T10:00:00Z"}),
        "scheduler.framework.gpushare.allocation": json.dumps({"0": {"3": 1000}}),
        "gpushare/placement": "spread",
        "nvidia.com/use-gputype": "A100,h100",
    }
    pod = as_pod(trained(metadata=metadata))
    assert pod.allocation == pod.promise == (Share("main", MEMORY, "GPU-1", 1000),)
    assert pod.indexes == (Share("main", MEMORY, "3", 1000),)
    assert (pod.request.gpu_count, pod.request.policy) == (2, "spread")
    assert pod.request.wishes == Wishes(models=("a100", "h100"))
    elsewhere = as_pod(trained(metadata=metadata, spec=trained()["spec"] | {"nodeName": "gpu-2"}))
    assert elsewhere.promise is None


@pytest.mark.parametrize(
    ("phase", "states", "ended"),
    [
        ("Pending", [{}], False),
        ("Running", [{"running": {}}], False),
        ("Succeeded", [{"terminated": {"exitCode": 0}}], True),
        ("Failed", [{"terminated": {"exitCode": 1}}, {"running": {"startedAt": None}}], False),
        ("Failed", [], True),
    ],
)
def test_a_pod_has_ended_when_nothing_runs(phase: str, states: list[dict[str, Any]], ended: bool) -> None:  # noqa: FBT001 - a table
    """A pod holds its units until its phase is final and no container is reported as running."""
    statuses = [{"name": str(index), "state": state} for index, state in enumerate(states)]
    assert as_pod(trained(status={"phase": phase, "containerStatuses": statuses})).ended is ended
    assert as_pod(trained(status={"phase": phase, "initContainerStatuses": statuses})).ended is ended


def test_a_pod_that_is_being_deleted_holds_what_it_has() -> None:
    """A deletion timestamp frees nothing, for its containers still run."""
    metadata = trained()["metadata"] | {"deletionTimestamp": "2026-01-01T10:10:00Z"}
    assert as_pod(trained(metadata=metadata)).holds_on == "gpu-1"


def test_a_bare_pod_is_a_pod() -> None:
    """What is left out of a manifest is nothing, and no error."""
    pod = as_pod({"metadata": {"name": "p", "namespace": "n", "uid": "u", "creationTimestamp": None}})
    assert (pod.node, pod.owner, pod.priority, pod.ended, pod.request.containers) == (None, None, 0, False, ())


def test_a_quantity_that_makes_no_sense_is_a_problem_of_the_pod() -> None:
    """Whatever a scheduler sends, the answer is a sentence."""
    spec = {"containers": [{"name": "main", "resources": {"limits": {MEMORY: "five"}}}]}
    assert "quantity 'five' found" in str(as_pod(trained(spec=spec)).request.problem)
