"""Tests of what is read of a live cluster for a simulation."""

import json

import pytest

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.kube.client import decoded
from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.ledger.annotations import HAMI_MODELS
from gpushare_plugin.ledger.node import recorded_node
from gpushare_plugin.ledger.node_record import GpuRecord, ResourceRecord
from gpushare_plugin.ledger.taint import Taint
from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import NodeKind
from gpushare_plugin.simulator.live_cluster import LiveCluster
from gpushare_plugin.simulator.what_ifs import FoundNode
from tests.unit.observe.cluster.clusters import MEMORY, gpu, recorded

GPU, SLICE, INSTANCE = "nvidia.com/gpu", "nvidia.com/gpu-10gb", "nvidia.com/mig-3g.20gb"
SINGLE = "example.com/instance"
"""A name for MIG instances that tells no profile."""
KINDS = (
    MEMORY,
    ResourceRecord(name=GPU, kind="gpus"),
    ResourceRecord(name=SINGLE, kind="gpus"),
    ResourceRecord(name=SLICE, kind="slices"),
    ResourceRecord(name=INSTANCE, kind="gpus"),
)


def t4(index: int, **fields: object) -> GpuRecord:
    """Return a T4 with memory to share."""
    return gpu("t4", index, 16, product="T4", memory_mib=16_384, **fields)


def a100(node: str, index: int, units: int, **fields: object) -> GpuRecord:
    """Return an A100, or a part of one."""
    return gpu(node, index, units, **{"product": "A100", "memory_mib": 40_960, **fields})


def of_nodes(**known: object) -> LiveCluster:
    """Return a cluster of three nodes with 32 cores and 64 GiB each: two T4, two A100, and one A100 that is cut."""
    live = LiveCluster()
    instance = {"profile": "3g.20gb", "memory_mib": 20_480}
    instances = [
        a100("cut", 0, 1, uuid=uuid, resource=resource, **instance)
        for uuid in ("MIG-1", "MIG-2")
        for resource in (INSTANCE, SINGLE)
    ]
    records = {
        "t4": recorded(t4(0), t4(1), t4(2, healthy=False)),
        "a100": recorded(a100("a100", 0, 40), a100("a100", 1, 1, resource=GPU), kinds=KINDS),
        "cut": recorded(*instances, kinds=KINDS),
    }
    for name, record in records.items():
        node = recorded_node(name, record)
        allocatable = {"cpu": 32_000, "memory": 64 * 1024**3}
        live.put_node(replace(node, record=record, allocatable=allocatable, labels={"on": name}, **known))
    return live


def put(live: LiveCluster, name: str, amounts: dict[str, str], node: str = "", **more: object) -> None:
    """Put a pod that asks for one core, and for these amounts."""
    owner = [{"kind": more["owner"], "name": "o", "uid": "o", "controller": True}] if "owner" in more else []
    pod = {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": name,
            "annotations": more.get("annotations", {}),
            "ownerReferences": owner,
        },
        "spec": {
            "nodeName": node,
            "nodeSelector": more.get("selector", {}),
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1", **amounts}}}],
        },
        "status": {"phase": more.get("phase", "Running")},
    }
    live.put_pod(decoded(json.dumps(pod).encode(), ApiPod, "pods"))


def asked(live: LiveCluster, models: tuple[str, ...] = ("A100", "T4")) -> list[tuple[int, int, set[str]]]:
    """Return the GPUs, the percent and the models that each pod asks for."""
    return [(pod.gpus, pod.percent, set(pod.models)) for pod in live.found_pods(models)]


def test_nodes_are_those_with_cards_that_pods_can_get() -> None:
    """Unhealthy cards do not count; instances of a card are one card; pods of DaemonSets and the kubelet stay."""
    live = of_nodes()
    put(live, "agent", {"memory": "1Gi"}, "t4", owner="DaemonSet")
    put(live, "static", {}, "t4", owner="Node")
    put(live, "ended", {}, "t4", owner="DaemonSet", phase="Succeeded")
    assert live.found_nodes() == [
        FoundNode("a100", NodeKind(32_000, 65_536, 2, "A100")),
        FoundNode("cut", NodeKind(32_000, 65_536, 1, "A100")),
        FoundNode("t4", NodeKind(30_000, 64_512, 2, "T4")),
    ]


@pytest.mark.parametrize(
    ("amounts", "node", "expected"),
    [
        ({"aliyun.com/gpu-mem": "8"}, "t4", (1, 50)),
        ({"aliyun.com/gpu-mem": "8"}, "a100", (1, 20)),
        ({"aliyun.com/gpu-mem": "3"}, "a100", (1, 7)),  # thirteen fit on the card, as by units
        ({"aliyun.com/gpu-mem": "20"}, "t4", (2, 100)),
        ({GPU: "1"}, "a100", (1, 100)),
        ({GPU: "2"}, "", (2, 100)),
        ({INSTANCE: "1"}, "cut", (1, 50)),
        ({SINGLE: "1"}, "cut", (1, 50)),
        ({SLICE: "1"}, "", (1, 25)),
        ({}, "t4", (0, 100)),
    ],
)
def test_a_share_is_a_part_of_the_card(amounts: dict[str, str], node: str, expected: tuple[int, int]) -> None:
    """Of the card on the node of the pod; for a pod that waits, of the commonest card."""
    live = of_nodes()
    put(live, "pod", amounts, node)
    put(live, "other", {GPU: "1"}, "a100")
    assert asked(live)[0][:2] == expected


def test_pods_are_those_on_the_nodes_and_those_that_wait_for_gpus() -> None:
    """Other pods neither take room there nor want some; CPU and memory are those that kube-scheduler counts."""
    live = of_nodes()
    put(live, "with-cpu", {"memory": "1500Ki"}, "t4")
    put(live, "waiting", {GPU: "1"})
    put(live, "elsewhere", {}, "cpu-1")
    put(live, "waiting-for-cpu", {})
    put(live, "ended", {GPU: "1"}, "a100", phase="Succeeded")
    assert live.found_pods({"A100", "T4"}) == (PodKind(1_000, 2, 0), PodKind(1_000, 0, 1))


def test_a_pod_accepts_the_models_of_the_nodes_that_admit_the_pod() -> None:
    """By its annotations, node selector and tolerations; a model that no node has yet, by its annotations alone."""
    live = of_nodes()
    put(live, "any", {GPU: "1"})
    put(live, "of-t4", {GPU: "1"}, selector={"on": "t4"})
    put(live, "of-h100", {GPU: "1"}, annotations={HAMI_MODELS: "H100"})
    any_one, of_t4, of_h100 = asked(live)
    assert any_one == (1, 100, set())
    assert of_t4 == (1, 100, {"T4"})
    assert of_h100[2].isdisjoint({"A100", "T4"})
    assert of_h100[2]
    assert [models for _, _, models in asked(live, ("A100", "T4", "NVIDIA H100"))] == [set(), {"T4"}, {"NVIDIA H100"}]
    tainted = of_nodes(taints=(Taint("only", "others", "NoSchedule"),))
    put(tainted, "any", {GPU: "1"})
    assert asked(tainted)[0][2].isdisjoint({"A100", "T4"})


def test_a_cluster_without_gpus_is_told() -> None:
    """Nodes and pods each; a cordoned Node has none for new pods."""
    with pytest.raises(GpushareError, match=r"found no node whose GPUs pods can get; .*gpushare inspect"):
        of_nodes(unschedulable=True).found_nodes()
    with pytest.raises(GpushareError, match=r"found no pod that asks for GPUs; .*--generate-pods"):
        of_nodes().found_pods({"T4"})
