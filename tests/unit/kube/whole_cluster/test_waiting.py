"""Pods that wait, in an overview of a cluster: which are known, and how much of each is kept."""

from gpushare_plugin.kube.objects import (
    ApiPod,
    ClaimOfPod,
    Condition,
    Container,
    Metadata,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from gpushare_plugin.kube.whole_cluster.overview import Overview

MAIN = Container(name="main", resources=ResourceRequirements(limits={"aliyun.com/gpu-mem": "3"}))


def a_pod(spec: PodSpec, **status: object) -> ApiPod:
    """Return a pod."""
    return ApiPod(metadata=Metadata(name="p", namespace="team", uid="1"), spec=spec, status=PodStatus(**status))  # type: ignore[arg-type]


def test_a_pod_waits_until_it_has_a_node_or_ends() -> None:
    """Also a pod that has nothing but claims; a pod that asks for no GPU is not kept."""
    overview = Overview()
    claiming = PodSpec(containers=(Container(name="main"),), resource_claims=(ClaimOfPod(name="gpu"),))
    for spec, claims in ((PodSpec(containers=(MAIN,)), ()), (claiming, (("gpu", None),))):
        overview.put_pod(a_pod(spec))
        assert overview.without_node["1"].claims == claims
        overview.put_pod(a_pod(spec, phase="Failed"))
        assert not overview.without_node
        overview.put_pod(a_pod(spec))
        overview.remove_pod("1")
        assert not overview.without_node
    overview.put_pod(a_pod(PodSpec(containers=(MAIN,))))
    overview.put_pod(a_pod(PodSpec(containers=(MAIN,), node_name="a")))
    overview.put_pod(a_pod(PodSpec(containers=(Container(name="main"),))))
    assert not overview.without_node


def test_what_others_write_into_a_pod_is_kept_in_part() -> None:
    """Long messages are cut, and so are many."""
    said = tuple(Condition(type="PodScheduled", status="False", message="x" * 5000) for _ in range(50))
    overview = Overview()
    overview.put_pod(a_pod(PodSpec(containers=(MAIN,)), conditions=said))
    reasons = overview.without_node["1"].reasons
    assert (len(reasons), {len(each) for each in reasons}) == (16, {1024})
