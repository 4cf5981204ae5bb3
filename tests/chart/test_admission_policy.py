"""The policies that bound what a daemon and the partitioner can do with their rights.

They were seen to hold on a real API server; here their CEL is evaluated.
"""

import re
from typing import Any

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.directives import PARTITIONING
from gpushare_plugin.kube import names
from gpushare_plugin.kube.own_node.labels import node_labels, own_labels
from gpushare_plugin.ledger.annotations import (
    ACK_ALLOCATION,
    ALIYUN_ASSIGNED,
    ALIYUN_INDEX,
    ALLOCATION,
    LIMITS,
    PROMISE,
    holding_annotations,
)
from gpushare_plugin.ledger.node import GPU_MEMORY
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION
from gpushare_plugin.ledger.pod import Share
from gpushare_plugin.ledger.request import ContainerRequest, PodRequest
from gpushare_plugin.slices.slice import Slice, slice_of
from gpushare_plugin.slices.wanted import WANTED_SLICES
from tests.chart.admission import AdmissionRequest, Policy
from tests.chart.reading import daemonset, pod
from tests.chart.rendering import objects
from tests.nodes import a_gpu
from tests.snapshots import snapshot
from tests.unit.sharing.settings import memory

ON: dict[str, Any] = {"cluster": {"admissionPolicy": True}}


def policies(values: dict[str, Any], release: str = "gpushare") -> list[Any]:
    """Return the policy and its binding, where there are any."""
    return [each["spec"] for each in objects(values, release) if each["kind"].startswith("ValidatingAdmissionPolicy")]


def test_the_policies_are_there_only_on_request() -> None:
    """Clusters older than the API, and those who may not make policies, can install the chart as it is."""
    assert policies({}) == []


@pytest.mark.parametrize(
    "more", [{}, {"namespaceOverride": "gpus"}, {"serviceAccount": {"name": "daemon"}}, {"fullnameOverride": "shares"}]
)
def test_the_policy_is_about_the_daemons(more: dict[str, Any]) -> None:
    """The service account and the namespace are those of the daemons, and the policy is in force."""
    policy, binding = policies({**ON, **more}, "some")
    (condition,) = policy["matchConditions"]
    name = daemonset({**ON, **more}, "some")["spec"]["template"]["spec"]["serviceAccountName"]
    account = f"system:serviceaccount:{more.get('namespaceOverride', 'kube-system')}:{name}"
    assert condition["expression"] == f"request.userInfo.username == '{account}'"
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert rule["resources"] == ["nodes", "nodes/status"]
    assert policy["failurePolicy"] == "Fail"
    assert binding["validationActions"] == ["Deny"]
    made = objects({**ON, **more}, "some")
    (name,) = (each["metadata"]["name"] for each in made if each["kind"] == "ValidatingAdmissionPolicy")
    assert binding["policyName"] == name


def test_the_policy_lets_through_what_the_daemon_writes() -> None:
    """Every label, the annotation and the capacity are those that the policy makes an exception for."""
    policy, _ = policies(ON)
    text = "\n".join(each["expression"] for each in policy["validations"])
    assert f"key == '{GPUS_ANNOTATION}'" in text
    assert f"key == '{names.GPU_COUNT}'" in text
    assert "key.startsWith('nvidia.com/')" in text
    assert all(label.startswith("nvidia.com/") for label in node_labels(snapshot({}, 8192)))
    chosen = replace(snapshot(memory(), 8192), needs_mps=True, isolation_reasons={a_gpu(0).uuid: ()})
    assert own_labels(chosen).keys() == {names.NEEDS_MPS, names.ISOLATION}
    assert f"key == '{names.NEEDS_MPS}' || key == '{names.ISOLATION}'" in text
    assert pod(ON)["automountServiceAccountToken"] is True  # a token of the pod, in which the API server names its node


def test_pods_have_a_policy_if_the_daemons_have_rights_on_pods() -> None:
    """Exceptions are exactly the annotations that the daemon writes, on pods of the node of the token."""
    made = objects({"cluster": {"admissionPolicy": True, "followPods": True}})
    policies = {each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "ValidatingAdmissionPolicy"}
    assert policies.keys() == {"gpushare", "gpushare-pods"}
    policy = policies["gpushare-pods"]
    assert policy["matchConditions"] == policies["gpushare"]["matchConditions"]
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["pods/status"], ["UPDATE"])
    ours = next(each["expression"] for each in policy["variables"] if each["name"] == "ours")
    request = PodRequest((ContainerRequest("main", "app", ((GPU_MEMORY, 2),)),))
    written = holding_annotations((Share("main", GPU_MEMORY, "GPU-a", 2),), request, {"GPU-a": 0})
    assert written.keys() | {LIMITS} == set(re.findall("'([^']+)'", ours))
    bound = [each for each in made if each["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert {each["spec"]["policyName"] for each in bound} == policies.keys()


DAEMON = "system:serviceaccount:kube-system:gpushare"
HERE = {"authentication.kubernetes.io/node-name": ["gpu-1"]}
FOLLOWING: dict[str, Any] = {"cluster": {"admissionPolicy": True, "followPods": True}}


def a_node(**changed: Any) -> dict[str, Any]:
    """Return the daemon's Node, with other parts."""
    return {"metadata": {"name": "gpu-1"}, "spec": {}, "status": {"capacity": {"cpu": "4"}}, **changed}


def a_pod(annotations: dict[str, str] | None = None, node: str = "gpu-1", **changed: Any) -> dict[str, Any]:
    """Return a pod of a node, with other parts."""
    metadata = {"name": "p", "annotations": {"team": "a", **(annotations or {})}, "labels": {"a": "b"}}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": []}, "status": {}, **changed}


def rejected(policy: str, before: Any, after: Any, extra: dict[str, list[str]] = HERE) -> list[str]:
    """Return what the policy has against an update by a daemon."""
    resource = "nodes" if policy == "gpushare" else "pods/status"
    return Policy(FOLLOWING, policy).objections(AdmissionRequest(resource, "UPDATE", after, before, DAEMON, extra))


def test_a_daemon_writes_its_own_fields_of_its_own_node() -> None:
    """Labels of nvidia.com, its annotation and the number of GPUs pass; a taint and a label of others do not."""
    labels = {"nvidia.com/gpu.count": "2", "gpushare/mps": "true", "gpushare/isolation": "driver"}
    metadata = {"name": "gpu-1", "labels": labels, "annotations": {GPUS_ANNOTATION: "{}"}, "resourceVersion": "2"}
    status = {"capacity": {"cpu": "4", names.GPU_COUNT: "2"}}
    assert rejected("gpushare", a_node(), a_node(metadata=metadata, status=status)) == []
    assert rejected("gpushare", a_node(metadata=metadata, status=status), a_node()) == []
    ready, ours = {"type": "Ready", "status": "True"}, {"type": names.READY_CONDITION, "status": "False"}
    before = a_node(status={"capacity": {"cpu": "4"}, "conditions": [ready]})
    beside = a_node(status={"capacity": {"cpu": "4"}, "conditions": [ours, ready]})
    assert rejected("gpushare", before, beside) == rejected("gpushare", beside, before) == []
    for conditions in ([ours], [ours, {**ready, "status": "False"}], [ready, {**ready, "type": "DiskPressure"}]):
        wrong = a_node(status={"capacity": {"cpu": "4"}, "conditions": conditions})
        assert rejected("gpushare", before, wrong) == ["gpushare may write the condition GpuSharingReady only"]
    for wrong in (
        a_node(spec={"taints": [{"key": "a", "effect": "NoExecute"}]}),
        a_node(metadata={"name": "gpu-1", "labels": {"node-role.kubernetes.io/control-plane": ""}}),
        a_node(metadata={"name": "gpu-1", "annotations": {"a": "b"}}),
        a_node(metadata={"name": "gpu-1", "finalizers": ["a"]}),
        a_node(status={"capacity": {"cpu": "400"}}),
        a_node(status={"capacity": {"cpu": "4"}, "daemonEndpoints": {}}),
    ):
        assert len(rejected("gpushare", a_node(), wrong)) == 1
    assert rejected("gpushare", a_node(), a_node(metadata=metadata), {}) == [
        "a daemon of gpushare may write on the Node of its own pod only"
    ]


TEN, PROFILE = "nvidia.com/gpu-10gb", "nvidia.com/mig-1g.5gb.me"


def test_a_daemon_writes_slices_of_a_partitioned_node() -> None:
    """Capacity and allocatable of exactly the resources that are slices, where both the chart and the label say so."""
    partitioned: dict[str, Any] = {"cluster": {"admissionPolicy": True}, "partitioning": {"enabled": True}}

    def objections(values: dict[str, Any], label: str, part: str, **counts: str) -> list[str]:
        metadata = {"name": "gpu-1", "labels": {PARTITIONING: label}}
        there = {"capacity": {"cpu": "4", TEN: "1"}, "allocatable": {"cpu": "3", TEN: "1"}}
        before = a_node(metadata=metadata, status=there)
        after = a_node(metadata=metadata, status={**there, part: counts})
        request = AdmissionRequest("nodes", "UPDATE", after, before, DAEMON, HERE)
        return Policy(values, "gpushare").objections(request)

    cpu = {"capacity": "4", "allocatable": "3"}
    for part, of_cpu in cpu.items():
        for label in ("mps", "mig"):
            assert objections(partitioned, label, part, cpu=of_cpu, **{TEN: "0", PROFILE: "2"}) == []
            assert objections(partitioned, label, part, cpu=of_cpu) == []
        for name in ("nvidia.com/gpu", "nvidia.com/gpu-10gbx", "nvidia.com/gpu-0gb", "a/nvidia.com/gpu-1gb"):
            assert len(objections(partitioned, "mps", part, cpu=of_cpu, **{TEN: "1", name: "1"})) == 1
        assert len(objections(partitioned, "mps", part, cpu="40", **{TEN: "1"})) == 1
        assert len(objections(partitioned, "", part, cpu=of_cpu, **{TEN: "2"})) == 1
        assert len(objections(ON, "mps", part, cpu=of_cpu, **{TEN: "2"})) == 1
    assert objections(ON, "mps", "allocatable", cpu="40", **{TEN: "1"}) == [
        "gpushare may write nothing of what is allocatable"
    ]
    assert objections(partitioned, "mps", "allocatable", cpu="40", **{TEN: "1"}) == [
        "gpushare may write slices of a partitioned node only of what is allocatable"
    ]


def test_the_slices_that_a_daemon_may_write_are_those_that_pods_ask_for() -> None:
    """The pattern of the policy takes the names that the daemon writes, of sizes and profiles of any length."""
    made = policies({"cluster": {"admissionPolicy": True}, "partitioning": {"enabled": True}})
    (pattern,) = (
        match[1]
        for each in made[0]["variables"]
        if each["name"] == "slices" and (match := re.search(r"\? '(.+?)' :", each["expression"]))
    )
    names = [Slice("mps", "10gb"), Slice("mps", "1024gb"), *(Slice("mig", name) for name in ("1g.5gb", "1g.5gb+me"))]
    for meant in names:
        assert re.search(pattern, meant.resource)
        assert slice_of(meant.resource) == meant


def test_a_daemon_annotates_the_pods_of_its_own_node() -> None:
    """What containers have passes; a promise, annotations of others, labels, images and pods of other nodes do not."""
    has = truth()
    assert rejected("gpushare-pods", a_pod(), a_pod(has)) == []
    assert rejected("gpushare-pods", a_pod(has), a_pod()) == []
    for wrong in (
        a_pod({PROMISE: "{}"}),
        a_pod({"team": "b"}),
        a_pod(metadata={"name": "p", "annotations": {"team": "a"}, "labels": {}}),
        a_pod(spec={"nodeName": "gpu-1", "containers": [{"image": "another"}]}),
        a_pod(status={"phase": "Failed"}),
    ):
        assert len(rejected("gpushare-pods", a_pod(), wrong)) == 1
    elsewhere = ["a daemon of gpushare may write on pods of its own node only"]
    assert rejected("gpushare-pods", a_pod(node="gpu-2"), a_pod(has, node="gpu-2")) == elsewhere
    assert rejected("gpushare-pods", a_pod(), a_pod(has), {}) == elsewhere
    unbound = a_pod(spec={"containers": []})
    assert rejected("gpushare-pods", unbound, a_pod(has, spec={"containers": []})) == elsewhere


def test_the_policy_of_pods_is_there_only_if_daemons_may_write_pods() -> None:
    """Without the right on pods there is nothing to bound."""
    assert len(policies(ON)) == 2
    assert len(policies(FOLLOWING)) == len(policies({**ON, "scheduler": {"enabled": True}})) == 4


def truth() -> dict[str, str]:
    """Return what a daemon writes on a pod."""
    return dict.fromkeys((ALLOCATION, ACK_ALLOCATION, ALIYUN_INDEX, ALIYUN_ASSIGNED), "1")


PARTITIONER = "system:serviceaccount:kube-system:gpushare-partitioner"
PARTITIONED: dict[str, Any] = {"cluster": {"admissionPolicy": True}, "partitioning": {"enabled": True}}


def a_labelled_node(annotations: dict[str, str] | None = None, **changed: Any) -> dict[str, Any]:
    """Return a Node with something in each part, other annotations and other parts."""
    metadata = {"name": "gpu-1", "labels": {"a": "b"}, "annotations": {"team": "a", **(annotations or {})}}
    return a_node(**{"metadata": metadata, "spec": {"podCIDR": "10.0.0.0/24"}, **changed})


def test_the_partitioner_writes_its_annotation() -> None:
    """It adds, changes and removes `gpushare/wanted-slices` of any Node, and not the annotation of the daemons."""
    policy = Policy(PARTITIONED, "gpushare-partitioner")

    def objections(before: Any, after: Any, user: str = PARTITIONER, resource: str = "nodes") -> list[str]:
        extra = {"authentication.kubernetes.io/node-name": ["control-1"]}
        return policy.objections(AdmissionRequest(resource, "UPDATE", after, before, user, extra))

    none, one, two = (a_labelled_node(each) for each in ({}, {WANTED_SLICES: "1"}, {WANTED_SLICES: "2"}))
    bare = a_labelled_node(metadata={"name": "gpu-1"})
    only = a_labelled_node(metadata={"name": "gpu-1", "annotations": {WANTED_SLICES: "1"}, "resourceVersion": "2"})
    for before, after in ((none, one), (one, two), (two, none), (bare, only), (only, bare)):
        assert objections(before, after) == []
    for annotations in ({"team": "b"}, {WANTED_SLICES: "1", GPUS_ANNOTATION: "{}"}, {f"{WANTED_SLICES}-2": "1"}):
        assert objections(none, a_labelled_node(annotations)) == [
            "the partitioner of gpushare may write the annotation gpushare/wanted-slices only"
        ]
    metadata = one["metadata"]
    for wrong in (
        a_labelled_node(metadata={**metadata, "labels": {"a": "b", "node-role.kubernetes.io/control-plane": ""}}),
        a_labelled_node(metadata={**metadata, "labels": {}}),
        a_labelled_node(metadata={**metadata, "finalizers": ["a"]}),
        a_labelled_node(metadata={**metadata, "ownerReferences": [{"name": "a"}]}),
        a_labelled_node(spec={"podCIDR": "10.0.0.0/24", "unschedulable": True}),
        a_labelled_node(spec={"podCIDR": "10.0.0.0/24", "taints": [{"key": "a", "effect": "NoExecute"}]}),
        a_labelled_node(status={"capacity": {"cpu": "4", "nvidia.com/gpu-10gb": "1"}}),
        a_labelled_node(status={"capacity": {"cpu": "4"}, "conditions": []}),
    ):
        for resource in ("nodes", "nodes/status"):
            assert objections(none, wrong, resource=resource) == [
                "the partitioner of gpushare may write nothing else of a Node"
            ]
        assert objections(none, wrong, DAEMON) == objections(none, wrong, "jane") == []


@pytest.mark.parametrize("more", [{}, {"namespaceOverride": "gpus"}, {"fullnameOverride": "shares"}])
def test_the_policy_of_the_partitioner_is_about_its_account(more: dict[str, Any]) -> None:
    """It holds for the account that the partitioner has, in the namespace it is in, and is in force."""
    made = objects({**PARTITIONED, **more}, "some")
    (deployment,) = (each for each in made if each["kind"] == "Deployment")
    name = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    of_it = {each["kind"]: each["spec"] for each in made if each["metadata"]["name"] == name and "spec" in each}
    policy = of_it["ValidatingAdmissionPolicy"]
    (condition,) = policy["matchConditions"]
    account = f"system:serviceaccount:{more.get('namespaceOverride', 'kube-system')}:{name}"
    assert condition["expression"] == f"request.userInfo.username == '{account}'"
    assert policy["failurePolicy"] == "Fail"
    bound = of_it["ValidatingAdmissionPolicyBinding"]
    assert (bound["policyName"], bound["validationActions"]) == (name, ["Deny"])


def test_a_partitioner_that_is_not_there_has_no_policy() -> None:
    """Without a request for policies, no partitioner has one."""
    assert len(policies(PARTITIONED)) == len(policies(FOLLOWING)) + 2
    assert policies({"partitioning": {"enabled": True}}) == []
