"""Tests of `gpushare_plugin.observe.cluster.verdict`: what keeps a pod waiting, in one sentence."""

import json

import pytest

from gpushare_plugin.core.effect import not_in_effect
from gpushare_plugin.ledger.annotations import write_limits
from gpushare_plugin.ledger.constraints import Constraints, shared_needs
from gpushare_plugin.ledger.demand import Demand
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.request import ContainerRequest, PodRequest
from gpushare_plugin.ledger.standing import ExtenderStanding
from gpushare_plugin.observe.cluster.explained import lines
from gpushare_plugin.observe.cluster.explanation import Told
from gpushare_plugin.observe.cluster.verdict import with_verdict
from gpushare_plugin.observe.parts import encode
from tests.unit.ledger.objects import container, memory, pod, request, uuid
from tests.unit.observe.cluster.clusters import Cluster, gpu, promised, recorded
from tests.unit.observe.cluster.test_explained import DEFAULT, SICK, explained, full


def said(cluster: Cluster, asked: PodRequest | Pod, told: Told | None = None, of_claims: str = "") -> str:
    """Return the verdict on a pod."""
    return with_verdict(explained(cluster, asked, told), of_claims).verdict


@pytest.mark.parametrize(
    ("asked", "verdict"),
    [
        (
            memory(10),
            "No GPU has 10 units of aliyun.com/gpu-mem free now; the most is 7, on GPU0 of gpu-1: the pod fi",
        ),
        (
            memory(100),
            "No GPU of this cluster is larger than 15 units of aliyun.com/gpu-mem; ask for 15 at most, or for s",
        ),
        (
            memory(40, gpus="2"),
            "No GPU of this cluster is larger than 15 units of aliyun.com/gpu-mem; ask for 30 at most, or for more",
        ),
        (
            memory(20, gpus="2"),
            "No node has 2 GPUs with 10 units of aliyun.com/gpu-mem free each; the pod fits when others end",
        ),
        (memory(10, gpus="0"), "No node can take the pod: "),
        (memory(7), "The pod fits on 1 of 2 nodes by their GPUs, and waits for another reason; `kubectl describe"),
        (
            memory(2, annotations={"nvidia.com/use-gputype": "H100"}),
            "No GPU of this cluster is one that the annotations of the pod want (nvidia.com/use-gputype: h100); the m",
        ),
        (request(container("main")), "gpushare does not decide where the pod goes: "),
        (
            PodRequest((ContainerRequest("main", "app", (("aliyun.com/gpu-men", 5),)),)),
            "No node offers aliyun.com/gpu-men; did you mean aliyun.com/gpu-mem?",
        ),
    ],
)
def test_a_waiting_pod_is_told_what_to_change(asked: PodRequest, verdict: str) -> None:
    """The sentence has the number that is missing, and what would fit."""
    assert said(full(), asked).startswith(verdict)


def test_gpus_that_are_out_are_the_reason_where_only_they_are_large_enough() -> None:
    """A smaller GPU that has room is none."""
    cluster = Cluster()
    cluster.node("gpu-1", recorded(SICK, gpu("gpu-1", 1, 4)))
    assert said(cluster, memory(5)) == "No GPU with 5 units of aliyun.com/gpu-mem can be used now: unhealthy"
    assert said(Cluster(), memory(5)) == "The cluster has no node"
    cpu = Cluster()
    cpu.node("gpu-1", recorded(gpu("gpu-1", 0)))
    cpu.plain("cpu-1", 0, 0)
    cpu.account.remove_node("gpu-1")
    assert said(cpu, memory(5)) == "No node offers aliyun.com/gpu-mem"
    assert said(full(), memory(10)).endswith(": the pod fits when others end, or if it asks for 7 at most")
    assert said(full(), memory(16)).endswith("; ask for 15 at most, or for several GPUs by aliyun.com/gpu-count")


def selecting(units: int, **labels: str) -> Pod:
    """Return a pod that asks for units on nodes with these labels."""
    needs = shared_needs(Constraints(tuple(labels.items())), Demand({}))
    return pod(memory(units), None, "selecting", needs=needs)


def pools() -> Cluster:
    """Return a cluster with a node of small GPUs in a pool, and two nodes of large GPUs, one of them not ready."""
    cluster = Cluster()
    cluster.node("small-1", recorded(gpu("small-1", 0, 24)), labels={"pool": "small"})
    cluster.node("large-1", recorded(gpu("large-1", 0, 80)), labels={"pool": "large"})
    cluster.node("large-2", recorded(gpu("large-2", 0, 80)), labels={"pool": "large"}, ready=False)
    return cluster


def test_gpus_of_nodes_that_do_not_take_the_pod_give_no_hope() -> None:
    """Node selectors, taints, cordons and nodes that are not ready count before GPUs, as kube-scheduler judges."""
    assert said(pools(), selecting(80, pool="small")) == (
        "No GPU of the only node that takes the pod is larger than 24 units of aliyun.com/gpu-mem; ask for 24 at most, "
        "or for several GPUs by aliyun.com/gpu-count"
    )
    assert said(pools(), selecting(8, pool="none")).startswith(
        "No node takes the pod, whatever its GPUs: node selector: pool=none required"
    )
    assert said(pools(), selecting(30, pool="large")).startswith("The pod fits on 1 of 3 nodes by their GPUs, and")
    printed = "\n".join(lines(explained(pools(), selecting(30, pool="large"))))
    assert "Fits on 1 of 3 nodes, by its GPUs:\n  large-1: 30 aliyun.com/gpu-mem on GPU0" in printed
    assert "1 node with room on GPUs, where the pod does not go:\n  1 node: the node is not ready: large-2" in printed


def test_the_pod_with_fewest_units_is_named_that_would_have_to_end() -> None:
    """Of single pods that are enough, the one that holds least."""
    cluster = Cluster()
    cluster.node("gpu-1", recorded(gpu("gpu-1", 0, 80), gpu("gpu-1", 1, 80)))
    cluster.pod("large", 80, "gpu-1", on=0)
    cluster.pod("small", 10, "gpu-1", on=1)
    cluster.pod("other", 50, "gpu-1", on=1)
    assert explained(cluster, memory(30)).nodes[0].ending == ("default/small",)


def test_what_stands_below_is_pointed_to() -> None:
    """The scheduler's own words are long, and stand below; a missing extender is named."""
    assert said(full(), memory(2), Told({}, waits=("The scheduler says: no",), extender=DEFAULT)).endswith(
        "and waits for another reason, which stands below"
    )
    stopped = ExtenderStanding(stopped="nobody holds the Lease")
    assert said(full(), memory(2), Told({}, extender=stopped)) == (
        "The pod fits on 1 of 2 nodes by their GPUs, and no scheduler extender runs, which it waits for"
    )


def test_slices_and_claims_have_a_verdict() -> None:
    """What is being made, and what the claims wait for."""
    told = Told({}, extender=DEFAULT, slices=("slice nvidia.com/gpu-10gb is kept for the pod", "more"))
    assert said(full(), request(container("main", slice=1)), told) == "slice nvidia.com/gpu-10gb is kept for the pod"
    by_claim = Told({}, extender=DEFAULT, claims=("Claim team/a: not allocated",))
    assert (
        said(full(), request(container("main")), by_claim, "There is no DeviceClass x") == "There is no DeviceClass x"
    )


def test_a_pod_with_a_node_is_told_what_it_has() -> None:
    """The units by GPU; what nothing places, what is other than promised, what is not enforced, what is gone."""
    cluster = Cluster()
    node = cluster.node("gpu-1", recorded(gpu("gpu-1", 0), gpu("gpu-1", 1)))
    drifted = cluster.pod("a", 5, "gpu-1", on=1, promise=0)
    limits = write_limits({"main": {uuid(1, "gpu-1"): not_in_effect("it escaped")}})
    told = Told({**promised(drifted.request, node, uuid(0, "gpu-1")), "gpushare/limits": limits})
    assert said(cluster, drifted, told) == (
        "On node gpu-1, the pod has 5 GiB on GPU1 (aliyun.com/gpu-mem); that is other than was promised; "
        "a limit of it is not in effect"
    )
    assert said(cluster, cluster.pod("b", 2, "gpu-1")) == (
        "On node gpu-1, the pod has 2 GiB on unknown GPUs (aliyun.com/gpu-mem)"
    )
    assert said(cluster, pod(memory(5), "gone", "lost")) == (
        "The pod is on node gone, which offers none of its resources now"
    )
    assert said(cluster, pod(memory(5), "gpu-1", "done", ended=True)) == "The pod has ended and holds no GPU"


def test_wishes_that_no_gpu_meets_are_said_once() -> None:
    """In the verdict; and below another verdict, such as on a pod that is held back."""
    wanted = memory(2, annotations={"nvidia.com/use-gputype": "H100"})
    for asked in (wanted, pod(wanted, uid="train", gates=("hold",))):
        found = with_verdict(explained(full(), asked))
        assert "\n".join(lines(found)).count("is one that the annotations of the pod want") == 1


def test_the_verdict_comes_first_and_is_a_field() -> None:
    """In words above all that was said before, and as JSON; it names no other pod."""
    found = with_verdict(explained(full(), memory(10)))
    assert list(lines(found))[:3] == [found.verdict, "", "Pod default/train waits for a node"]
    assert json.loads(encode(found))["verdict"] == found.verdict
    assert "default/" not in found.verdict
