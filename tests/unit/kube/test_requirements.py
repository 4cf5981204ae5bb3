"""Tests of `gpushare_plugin.kube.pods`; the verdicts of kube-scheduler test the rest of it."""

import json
from typing import Any

import msgspec

from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.kube.pods import judged_pod, pod_of
from gpushare_plugin.ledger.constraints import Constraints, Requirement, Term, Toleration
from gpushare_plugin.ledger.demand import NOTHING, HostPort
from gpushare_plugin.ledger.kube_scheduler import refusal
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.product_label import PRODUCT

SLICE = "nvidia.com/gpu-10gb"
POD: dict[str, Any] = {
    "metadata": {"uid": "1", "namespace": "default", "name": "pod"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "resources": {"limits": {SLICE: "1", "cpu": "2"}, "requests": {"cpu": "250m", "memory": "1.5Gi"}},
                "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 8081, "hostIP": "10.0.0.1"}],
            }
        ],
        "nodeSelector": {"zone": "a", "disk": "ssd"},
        "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [{"key": "tier", "operator": "In", "values": ["1"]}],
                            "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}],
                        }
                    ]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
            },
            "podAffinity": {},
        },
    },
    "status": {"phase": "Pending"},
}


def decoded(**spec: Any) -> ApiPod:
    """Return the pod, with other fields in its spec."""
    return msgspec.json.decode(json.dumps(POD | {"spec": POD["spec"] | spec}), type=ApiPod)


def test_a_pod_is_read_as_it_is_judged() -> None:
    """Requests count, and limits where there is no request; what is only preferred does not."""
    pod = judged_pod(decoded())
    assert (pod.uid, pod.namespace, pod.name, pod.node) == ("1", "default", "pod", None)
    demand, constraints = pod.needs.demand, pod.needs.constraints
    assert demand.resources == {"cpu": 250, "memory": 1536 << 20, SLICE: 1, "pods": 1}
    assert demand.ports == {HostPort(8081, address="10.0.0.1"): 1}
    assert constraints.selector == (("disk", "ssd"), ("zone", "a"))
    required = Requirement("tier", "In", ("1",)), Requirement("metadata.name", "NotIn", ("n",))
    assert constraints.affinity == (Term(required[:1], required[1:]),)
    assert constraints.tolerations == (Toleration("dedicated", "Exists", effect="NoExecute"),)
    assert pod.schedulable


def test_a_measured_pod_has_the_cpu_and_memory_that_kube_scheduler_counts() -> None:
    """Init containers, sidecars, overhead and the resources of the pod as a whole; of constraints, those on models."""

    def container(cpu: str, **fields: Any) -> dict[str, Any]:
        return {"name": "n", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}, **fields}

    before = [container("1", restartPolicy="Always"), container("5"), container("2", restartPolicy="Always")]
    several = decoded(initContainers=before, overhead={"cpu": "100m"}, nodeSelector={PRODUCT: "A", "zone": "a"})
    as_a_whole = decoded(resources={"requests": {"cpu": "7"}})
    for found, cpu in ((several, 6_100), (as_a_whole, 7_000)):
        needs, judged = pod_of(found, measured=True).needs, judged_pod(found).needs
        assert needs.demand.resources == {name: judged.demand.resources[name] for name in ("cpu", "memory")}
        assert needs.demand.resources["cpu"] == cpu
        assert not needs.demand.ports
    assert pod_of(several, measured=True).needs.constraints == Constraints(((PRODUCT, "A"),))
    assert pod_of(several).needs.demand == NOTHING


def test_pods_with_equal_constraints_share_them() -> None:
    """The order of a node selector makes no difference; pods that also take the same share all requirements."""
    pod, other = judged_pod(decoded()), judged_pod(decoded(nodeSelector={"disk": "ssd", "zone": "a"}, containers=[]))
    assert pod.needs.constraints is other.needs.constraints
    assert pod.needs is not other.needs
    assert pod.needs is judged_pod(decoded(nodeSelector={"disk": "ssd", "zone": "a"})).needs


def test_gates_the_node_and_the_end_of_a_pod_are_read() -> None:
    """Gates, a node, and an end."""
    held = judged_pod(decoded(schedulingGates=[{"name": "a"}]))
    assert (held.gates, held.schedulable) == (("a",), False)
    ended = msgspec.convert(POD | {"status": {"phase": "Failed"}}, ApiPod)
    assert judged_pod(ended).phase_final
    assert judged_pod(decoded(nodeName="node")).node == "node"


def test_a_request_that_cannot_be_read_fits_nowhere() -> None:
    """The API server takes none; if it did, nothing would be made for such a pod."""
    pod = judged_pod(
        decoded(containers=[{"resources": {"requests": {"memory": "much"}}}], nodeSelector={}, affinity=None)
    )
    refused = refusal(pod, Node("node", allocatable={"memory": 1 << 50, "pods": 1}), NOTHING)
    assert refused is not None
    assert [shortage.name for shortage in refused.shortages] == ["memory"]
