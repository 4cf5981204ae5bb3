"""Tests of `gpushare_plugin.observe.cluster.filters`: which nodes, GPUs and pods are shown, and in which order."""

import json
from typing import Any

import pytest

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.ledger.node_record import ResourceRecord
from gpushare_plugin.observe.cluster.filters import Filters, FreeAmount, Order, check, narrowed, nothing_found
from gpushare_plugin.observe.parts import encode
from tests.unit.ledger.objects import container, pod, request
from tests.unit.observe.cluster.clusters import MEMORY, Cluster, gpu, recorded
from tests.unit.observe.cluster.test_by_claim import held, of, reported, shared
from tests.unit.observe.cluster.test_slices import reported as partitioned

MODELS = ("NVIDIA A10", "NVIDIA A100-SXM4-40GB", "NVIDIA H100")
REPLICAS = ResourceRecord(name="nvidia.com/gpu.shared", kind="replicas")


def mixed() -> Cluster:
    """Return a cluster of nodes with different models and resources, a faulty GPU and a cordoned node.

    b has 15 GiB on an A10, c 40 GiB on an A100 beside replicas, d a faulty A10 and 9 free GiB; a is cordoned.
    """
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0, 80, product="NVIDIA H100")), unschedulable=True)
    cluster.node("b", recorded(gpu("b", 0, 15, product="NVIDIA A10")))
    shared = gpu("c", 1, 4, resource=REPLICAS.name, unit_mib=0, product="NVIDIA A10")
    cluster.node("c", recorded(gpu("c", 0, 40, product="NVIDIA A100-SXM4-40GB"), shared, kinds=(MEMORY, REPLICAS)))
    sick = gpu("d", 0, 15, healthy=False, reason="XID 79", product="NVIDIA A10")
    cluster.node("d", recorded(sick, gpu("d", 1, 15, product="NVIDIA A10")))
    cluster.pod("x", 10, "c", on=0, namespace="red")
    cluster.pod("y", 6, "d", on=1, namespace="red")
    cluster.pod("z", 3, "d", on=1, namespace="blue")
    cluster.pod("w", 15, "b", on=0, namespace="blue")
    return cluster


def shown(filters: Filters) -> list[str]:
    """Return the names of the nodes that are shown of the mixed cluster."""
    return [node.name for node in narrowed(mixed().report, filters).nodes]


def data(filters: Filters) -> dict[str, Any]:
    """Return what is shown of the mixed cluster as JSON, by the name of the node."""
    return {node["name"]: node for node in json.loads(encode(narrowed(mixed().report, filters)))["nodes"]}


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (Filters(), "abcd"),
        (Filters(nodes=("[ab]", "d")), "abd"),
        (Filters(namespaces=("red",)), "cd"),
        (Filters(namespaces=("red", "blue")), "bcd"),
        (Filters(namespaces=("nobody",)), ""),
        (Filters(resources=(REPLICAS.name,)), "c"),
        (Filters(models=("a10",)), "bcd"),
        (Filters(models=("a100",)), "c"),
        (Filters(models=("A100-SXM4",)), "c"),
        (Filters(models=("A100", "h100")), "ac"),
        (Filters(free=FreeAmount(30, memory=False)), "c"),
        (Filters(free=FreeAmount(4, memory=False)), "cd"),
        (Filters(free=FreeAmount(4 * 1024, memory=True)), "cd"),
        (Filters(free=FreeAmount(31 * 1024, memory=True)), ""),
        (Filters(models=("A10",), free=FreeAmount(4, memory=True), namespaces=("blue",)), "d"),
    ],
)
def test_what_meets_all_filters_is_shown(filters: Filters, names: str) -> None:
    """Values of one filter add nodes, further filters take nodes away; what nobody can get is not free."""
    assert shown(filters) == list(names)


@pytest.mark.parametrize(("order", "names"), [("name", "abcd"), ("free", "cdab"), ("held", "bdca"), ("state", "adbc")])
def test_nodes_are_in_the_order_that_is_asked_for(order: Order, names: str) -> None:
    """The most free on one GPU, the most held, or a state first; equal nodes by name."""
    assert shown(Filters(order=order)) == list(names)


def test_a_namespace_shows_its_pods_and_the_whole_amounts_of_their_gpus() -> None:
    """Pods of others have no name in what is shown; what is allocated of the GPU counts all namespaces."""
    (use,) = data(Filters(namespaces=("red",)))["d"]["resources"]
    (found,) = use["gpus"]
    assert (found["index"], found["allocated"], found["free"]) == (1, 9, 6)
    assert [each["pod"] for each in found["pods"]] == ["y"]


def test_json_has_fewer_items_and_nothing_else() -> None:
    """Each node, resource and GPU that is left is what it is without filters."""
    whole, less = data(Filters()), data(Filters(models=("A10",), resources=(REPLICAS.name, MEMORY.name)))
    assert less["d"] == whole["d"]
    assert less["c"] == {**whole["c"], "resources": [whole["c"]["resources"][1]]}


def test_gpus_that_no_resource_has_are_shown_by_model_and_node_alone() -> None:
    """Such a GPU has a model, and neither a resource nor pods."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0), gpu("a", 1, 0, resource=None, product="NVIDIA T4", reason="too small")))
    report = cluster.report
    assert [each.product for each in narrowed(report, Filters(models=("t4",))).nodes[0].not_offered] == ["NVIDIA T4"]
    assert narrowed(report, Filters(models=("t4",))).nodes[0].resources == ()
    assert narrowed(report, Filters(resources=(MEMORY.name,))).nodes[0].not_offered == ()
    assert narrowed(report, Filters(resources=(MEMORY.name,), models=("t4",))).nodes == ()


def test_units_on_unknown_gpus_are_shown_by_namespace() -> None:
    """A pod that nothing places is in its namespace, and on no certain GPU."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0)))
    cluster.pod("p", 3, "a", namespace="red")
    (node,) = narrowed(cluster.report, Filters(namespaces=("red",))).nodes
    assert [(each.pod, each.units) for each in node.resources[0].unplaced] == [("p", 3)]
    assert narrowed(cluster.report, Filters(namespaces=("blue",))).nodes == ()


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("10", FreeAmount(10, memory=False)),
        ("10GiB", FreeAmount(10240, memory=True)),
        ("10Gi", FreeAmount(10240, memory=True)),
        ("512MiB", FreeAmount(512, memory=True)),
    ],
)
def test_an_amount_is_units_or_memory(text: str, amount: FreeAmount) -> None:
    """A plain number counts units of a resource, whatever the unit is."""
    assert FreeAmount.parse(text) == amount


@pytest.mark.parametrize("text", ["", "ten", "-1", "10GB", "1.5GiB", "9" * 10, "\uff11"])
def test_another_amount_is_refused(text: str) -> None:
    """With what is expected."""
    with pytest.raises(ValueError, match="expected a number of units such as 10, or memory such as 10GiB"):
        FreeAmount.parse(text)


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        (Filters(nodes=("e*",)), "--node e*: no node that shares GPUs has such a name; there are a, b, c, d"),
        (
            Filters(resources=("aliyun.com/gpu-men",)),
            "--resource aliyun.com/gpu-men: no node has this resource; did you mean aliyun.com/gpu-mem?",
        ),
        (
            Filters(models=("A1000",)),
            "--model A1000: no GPU has these words in its product name; there are " + ", ".join(MODELS),
        ),
    ],
)
def test_a_value_that_nothing_has_is_refused_with_the_nearest(filters: Filters, said: str) -> None:
    """The name that was probably meant, or the names that there are; in a cluster without GPUs nothing is wrong."""
    with pytest.raises(GpushareError) as refused:
        check(mixed().report, filters)
    assert str(refused.value) == said
    check(Cluster().report, filters)


def test_values_that_something_has_are_accepted() -> None:
    """A namespace may be without pods at any moment, so it is none of the mistakes."""
    check(mixed().report, Filters(("a", "c*"), ("nobody",), (MEMORY.name,), ("h100",)))


def test_a_namespace_without_units_is_named_with_the_nearest() -> None:
    """Whoever mistyped the namespace sees so; other filters are met by nothing."""
    report = mixed().report
    said = "No pod of namespace bleu has units of a GPU"
    assert nothing_found(report, Filters(namespaces=("bleu",))) == f"{said}; did you mean blue?"
    assert nothing_found(report, Filters(namespaces=("xxx",))) == "No pod of namespace xxx has units of a GPU"
    assert (
        nothing_found(report, Filters(namespaces=("red",), nodes=("a",))) == "No GPU of this cluster meets all filters"
    )


def test_pods_that_wait_are_shown_where_no_filter_is_about_nodes() -> None:
    """A waiting pod has a namespace and resources, and neither a node nor a model."""
    cluster = Cluster()
    cluster.node("a", replace(recorded(gpu("a", 0)), partitioning="mps"))
    waiting = [pod(request(container("main", slice=1)), uid=name, namespace=name) for name in ("red", "blue")]
    report = cluster.reported(*waiting)
    assert len(report.waiting) == 2, "the test needs pods that wait"
    for filters, names in (
        (Filters(namespaces=("red",)), ["red"]),
        (Filters(resources=("nvidia.com/gpu-10gb",)), ["blue", "red"]),
        (Filters(resources=(MEMORY.name,)), []),
        (Filters(models=("A100",)), []),
        (Filters(nodes=("a",)), []),
    ):
        assert sorted(each.namespace for each in narrowed(report, filters).waiting) == names


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (Filters(models=("A100",)), ["10gb", "20gb"]),
        (Filters(resources=("nvidia.com/gpu-20gb",)), ["20gb"]),
        (Filters(namespaces=("default",)), ["10gb"]),
    ],
)
def test_slices_are_shown_by_resource_and_by_gpu(filters: Filters, names: list[str]) -> None:
    """The node has slices of 10gb on one GPU, of which a pod has one, and wants one of 20gb on another."""
    (node,) = narrowed(partitioned(), filters).nodes
    assert [each.name for each in node.slices] == names


def test_claims_are_shown_by_namespace() -> None:
    """Of a GPU that claims of two namespaces share, one of them is shown with the amounts of both."""
    node, (mine, other) = shared("10Gi", "4Gi")
    other = replace(other, id=other.id._replace(namespace="other"))
    report = reported(node, of(node, held(mine), held(other)))
    ((use,),) = (each.given_by_claim for each in narrowed(report, Filters(namespaces=("other",))).nodes)
    (found,) = use.gpus
    assert ([claim.namespace for claim in found.claims], found.allocated) == (["other"], 14336)
    check(report, Filters(resources=(use.resource,)))
