"""Tests of `gpushare_plugin.kube.nodes`: manifests as a cluster has them, and what is made of them."""

import json
from typing import Any

import msgspec

from gpushare_plugin.kube.nodes import judged_node, node_of
from gpushare_plugin.kube.objects import ApiNode
from gpushare_plugin.ledger.node import Node, is_extended
from gpushare_plugin.ledger.node_record import NodeRecord, encode
from gpushare_plugin.ledger.taint import Taint
from gpushare_plugin.slices.wanted import Wanted
from gpushare_plugin.slices.wanted import encode as encode_wanted

MEMORY = "aliyun.com/gpu-mem"
SLICE = "nvidia.com/gpu-10gb"


def as_node(manifest: dict[str, Any]) -> Node:
    """Return what is made of a node's JSON."""
    return node_of(msgspec.json.decode(json.dumps(manifest), type=ApiNode))


def test_a_node_with_a_record_offers_what_the_record_says() -> None:
    """GPUs, units and health are the record's; the policy is the label's; the capacity is not asked."""
    record = {
        "version": 1,
        "gpus": [
            {"uuid": "GPU-1", "index": 0, "product": "A100", "memoryMiB": 81920, "healthy": True}
            | {"resource": MEMORY, "units": 80, "unitMiB": 1024},
        ],
        "resources": [{"name": MEMORY, "kind": "memory", "placement": "binpack"}],
    }
    node = as_node(
        {
            "metadata": {
                "name": "gpu-1",
                "labels": {"ack.node.gpu.placement": "spread"},
                "annotations": {"gpushare/gpus": json.dumps(record)},
            },
            "spec": {"podCIDR": "10.0.0.0/24"},
            "status": {"capacity": {MEMORY: "7"}, "allocatable": {MEMORY: "80", "cpu": "8", "odd.example/x": "1.5"}},
        }
    )
    assert node.ignored == ()
    assert (node.recorded, node.policy, node.allocatable) == (True, "spread", {MEMORY: 80, "cpu": 8000})
    (gpu,) = node.offers[MEMORY].gpus
    assert (gpu.name, gpu.units) == ("GPU-1", 80)


def test_a_node_of_aliyuns_plugin_offers_its_capacity() -> None:
    """Without our annotation, units and GPUs come from the capacity, and GPUs are named by their index."""
    node = as_node({"metadata": {"name": "n"}, "status": {"capacity": {MEMORY: "32", "aliyun.com/gpu-count": "4"}}})
    assert [(gpu.name, gpu.units) for gpu in node.offers[MEMORY].gpus] == [(str(index), 8) for index in range(4)]
    assert as_node({"metadata": {"name": "cpu"}, "status": {"capacity": {"cpu": "8"}}}).offers == {}


def test_a_record_that_cannot_be_read_offers_nothing() -> None:
    """A node whose annotation is broken is not guessed at, and says what is wrong."""
    metadata = {"name": "n", "annotations": {"gpushare/gpus": "{"}}
    node = as_node({"metadata": metadata, "status": {"capacity": {MEMORY: "32", "aliyun.com/gpu-count": "4"}}})
    assert node.offers == {}
    assert "annotation gpushare/gpus" in node.ignored[0]


def test_a_node_is_read_as_it_is_judged() -> None:
    """CPU in thousandths, all else in whole units; what cannot be read is not there."""
    node = msgspec.convert(
        {
            "metadata": {"name": "node", "labels": {"zone": "a"}},
            "spec": {"unschedulable": True, "taints": [{"key": "a", "effect": "NoSchedule", "timeAdded": "now"}]},
            "status": {"allocatable": {"cpu": "3920m", "memory": "1Ki", "pods": "110", SLICE: "many"}},
        },
        ApiNode,
    )
    allocatable = {"cpu": 3920, "memory": 1024, "pods": 110, SLICE: 0}
    taints = (Taint("a", effect="NoSchedule"),)
    judged = judged_node(node)
    assert (judged.labels, judged.taints, judged.unschedulable) == ({"zone": "a"}, taints, True)
    assert (judged.allocatable, judged.extended) == (allocatable, [])


def test_fields_that_a_program_does_not_read_are_not_kept() -> None:
    """The extender has thousands of nodes, and needs neither labels nor records."""
    record = NodeRecord(gpus=(), partitioning="mps")
    wanted = Wanted({"GPU-1": {"10gb": 1}})
    annotations = {"gpushare/gpus": encode(record), "gpushare/wanted-slices": encode_wanted(wanted)}
    metadata = {"name": "n", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}, "annotations": annotations}
    status = {
        "allocatable": {"cpu": "2", SLICE: "1", "example.com/none": "0"},
        "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "10.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "Unknown"}, {"type": "DiskPressure", "status": "False"}],
    }
    found = msgspec.convert({"metadata": metadata, "status": status}, ApiNode)
    assert node_of(found) == Node("n", recorded=True, allocatable={"cpu": 2000, SLICE: 1, "example.com/none": 0})
    judged = judged_node(found)
    assert (judged.uid, judged.version, judged.record, judged.wanted) == ("u", "7", record, wanted)
    assert (judged.address, judged.ready, judged.extended) == ("10.0.0.1", False, [SLICE])


def test_slices_are_wanted_of_partitioned_nodes_alone() -> None:
    """An annotation that cannot be read wants none, and says why; on another node it means nothing."""
    for partitioned in (True, False):
        record = NodeRecord(gpus=(), partitioning="mps" if partitioned else None)
        annotations = {"gpushare/gpus": encode(record), "gpushare/wanted-slices": "{}"}
        node = judged_node(msgspec.convert({"metadata": {"name": "n", "annotations": annotations}}, ApiNode))
        assert node.wanted is None
        assert (node.wanted_unreadable is not None) == partitioned


def test_extended_resources_have_a_domain_of_others() -> None:
    """Kubernetes' own resources are none, with or without a domain."""
    names = ("cpu", "memory", "hugepages-1Gi", "kubernetes.io/x", "requests.kubernetes.io/x", MEMORY, "nvidia.com/gpu")
    assert [name for name in names if is_extended(name)] == [MEMORY, "nvidia.com/gpu"]


def test_the_longest_name_of_a_resource_is_that_of_an_api_server() -> None:
    """A domain of 253 characters, a slash and a name of 63 are a resource; a longer text is none."""
    longest = f"{'d' * 253}/{'n' * 63}"
    assert is_extended(longest)
    assert not is_extended(longest + "n")
