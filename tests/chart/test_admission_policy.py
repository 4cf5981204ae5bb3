"""The policy that bounds what a daemon can do with its rights; it was seen to hold on a real API server."""

import re
from dataclasses import replace
from typing import Any

import pytest

from gpushare_plugin.adapters.cluster import names
from gpushare_plugin.adapters.cluster.own_node.labels import node_labels, own_labels
from gpushare_plugin.model.account.annotations import truth_annotations
from gpushare_plugin.model.account.node import GPU_MEMORY
from gpushare_plugin.model.account.pod import Share
from gpushare_plugin.model.account.request import ContainerRequest, PodRequest
from gpushare_plugin.model.node_record import GPUS_ANNOTATION
from tests.chart.reading import daemonset, pod
from tests.chart.rendering import objects
from tests.snapshots import snapshot

ON: dict[str, Any] = {"cluster": {"admissionPolicy": True}}


def policies(values: dict[str, Any], release: str = "gpushare") -> list[Any]:
    """Return the policy and its binding, where there are any."""
    return [each["spec"] for each in objects(values, release) if each["kind"].startswith("ValidatingAdmissionPolicy")]


def test_only_where_it_is_asked_for() -> None:
    """Clusters older than the API, and those who may not make policies, can install the chart as it is."""
    assert policies({}) == []


@pytest.mark.parametrize(
    "more", [{}, {"namespaceOverride": "gpus"}, {"serviceAccount": {"name": "daemon"}}, {"fullnameOverride": "shares"}]
)
def test_it_is_about_the_daemons(more: dict[str, Any]) -> None:
    """It holds for the service account that the daemons have, in the namespace they are in, and is in force."""
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


def test_it_lets_through_what_the_daemon_writes() -> None:
    """Every label, the annotation and the capacity are those that the policy makes an exception for."""
    policy, _ = policies(ON)
    text = "\n".join(each["expression"] for each in policy["validations"])
    assert f"key == '{GPUS_ANNOTATION}'" in text
    assert f"key == '{names.GPU_COUNT}'" in text
    assert "key.startsWith('nvidia.com/')" in text
    assert all(label.startswith("nvidia.com/") for label in node_labels(snapshot({}, 8192)))
    assert own_labels(replace(snapshot({}, 8192), needs_mps=True)).keys() == {names.NEEDS_MPS}
    assert f"key == '{names.NEEDS_MPS}'" in text
    assert pod(ON)["automountServiceAccountToken"] is True  # a token of the pod, in which the API server names its node


def test_pods_have_a_policy_where_the_daemons_have_rights_on_them() -> None:
    """It makes exceptions for exactly the annotations that the daemon writes, on pods of the node of the token."""
    made = objects({"cluster": {"admissionPolicy": True, "followPods": True}})
    policies = {each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "ValidatingAdmissionPolicy"}
    assert policies.keys() == {"gpushare", "gpushare-pods"}
    policy = policies["gpushare-pods"]
    assert policy["matchConditions"] == policies["gpushare"]["matchConditions"]
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["pods/status"], ["UPDATE"])
    ours = next(each["expression"] for each in policy["variables"] if each["name"] == "ours")
    request = PodRequest((ContainerRequest("main", "app", ((GPU_MEMORY, 2),)),))
    written = truth_annotations((Share("main", GPU_MEMORY, "GPU-a", 2),), request, {"GPU-a": 0})
    assert written.keys() == set(re.findall("'([^']+)'", ours))
    bound = [each for each in made if each["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert {each["spec"]["policyName"] for each in bound} == policies.keys()
