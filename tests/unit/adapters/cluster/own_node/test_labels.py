"""Tests of `gpushare_plugin.adapters.cluster.own_node.labels`: the values NVIDIA's feature discovery would write."""

from dataclasses import replace

import pytest

from gpushare_plugin.adapters.cluster.own_node.labels import node_labels
from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.model.snapshot import Snapshot
from tests.nodes import a_gpu, a_mig_node, a_node
from tests.snapshots import snapshot

SLICED = {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}
RENAMED = {"timeSlicing": {"renameByDefault": True, "resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}
BY_MEMORY = {"memory": {"resources": [{"name": "aliyun.com/gpu-mem"}]}}


def values(made: Snapshot, *names: str) -> list[str | None]:
    """Return the values of these labels of NVIDIA's."""
    labels = node_labels(made)
    return [labels.get(f"nvidia.com/{name}") for name in names]


def test_all_labels_of_a_node() -> None:
    """A node of whole GPUs has every label that can be known, and no other."""
    inventory = replace(
        a_node(40448, 40448, mig_capable=True, total_mib=40960), driver_version="550.54.14", cuda_version=(12, 4)
    )
    assert node_labels(snapshot({}, inventory=inventory)) == {
        "nvidia.com/cuda.driver-version.full": "550.54.14",
        "nvidia.com/cuda.driver-version.major": "550",
        "nvidia.com/cuda.driver-version.minor": "54",
        "nvidia.com/cuda.driver-version.revision": "14",
        "nvidia.com/cuda.driver.major": "550",
        "nvidia.com/cuda.driver.minor": "54",
        "nvidia.com/cuda.driver.rev": "14",
        "nvidia.com/cuda.runtime-version.full": "12.4",
        "nvidia.com/cuda.runtime-version.major": "12",
        "nvidia.com/cuda.runtime-version.minor": "4",
        "nvidia.com/cuda.runtime.major": "12",
        "nvidia.com/cuda.runtime.minor": "4",
        "nvidia.com/gpu.compute.major": "8",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.family": "ampere",
        "nvidia.com/gpu.memory": "40960",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mps.capable": "false",
    }


@pytest.mark.parametrize(
    ("sharing", "strategy", "replicas", "product"),
    [
        ({}, "none", "1", "NVIDIA-A100-SXM4-40GB"),
        (SLICED, "time-slicing", "4", "NVIDIA-A100-SXM4-40GB-SHARED"),
        (RENAMED, "time-slicing", "4", "NVIDIA-A100-SXM4-40GB"),
        (BY_MEMORY, "memory", None, "NVIDIA-A100-SXM4-40GB"),
    ],
    ids=["whole", "sliced", "renamed", "by memory"],
)
def test_sharing(sharing: dict[str, object], strategy: str, replicas: str | None, product: str) -> None:
    """There are labels for strategy and replicas; the product has -SHARED where whole GPUs would have the same name."""
    made = snapshot(sharing, 40960, 40960)
    assert values(made, "gpu.sharing-strategy", "gpu.replicas", "gpu.product") == [strategy, replicas, product]


def test_no_gpu_no_labels() -> None:
    """A node without GPUs gets no label at all."""
    assert node_labels(Snapshot()) == {}


def test_a_gpu_that_is_not_offered_is_not_shared() -> None:
    """Where nothing is offered, there are no labels of sharing."""
    made = replace(snapshot({}, 8192), resources=())
    assert values(made, "gpu.product", "gpu.replicas", "gpu.sharing-strategy") == ["NVIDIA-A100-SXM4-40GB", None, None]


def test_of_several_products_the_most_frequent_counts() -> None:
    """Labels hold one product: that of most GPUs, with its own count; among equals that of the lowest index."""
    t4, a100, other = a_gpu(0, 15360, name="Tesla T4"), a_gpu(1), a_gpu(2)
    names = ("gpu.product", "gpu.count", "gpu.memory")
    assert values(snapshot({}, inventory=Inventory((t4, a100, other))), *names) == [
        "NVIDIA-A100-SXM4-40GB",
        "2",
        "40960",
    ]
    assert values(snapshot({}, inventory=Inventory((t4, a100))), *names) == ["Tesla-T4", "1", "15360"]


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ((6, 1), "pascal"),
        ((7, 0), "volta"),
        ((7, 5), "turing"),
        ((8, 6), "ampere"),
        ((8, 9), "ada-lovelace"),
        ((9, 0), "hopper"),
        ((10, 0), "blackwell"),
        ((12, 0), "blackwell"),
        ((99, 0), "undefined"),
    ],
)
def test_family(capability: tuple[int, int], family: str) -> None:
    """The family follows from the compute capability."""
    assert values(snapshot({}, inventory=a_node(8192, compute_capability=capability)), "gpu.family") == [family]


def test_mig_strategy_has_a_label_where_there_is_one() -> None:
    """Without a strategy there is no such label, as feature discovery has it."""
    assert values(snapshot({}, 8192), "mig.strategy", "mig.capable") == [None, "false"]
    assert values(snapshot({}, 8192, flags={"migStrategy": "mixed"}), "mig.strategy") == ["mixed"]


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 3090 (rev. 2)", "x" * 80, "Graphics Device™ "])
def test_values_are_valid(name: str) -> None:
    """Whatever the name of a GPU is, the label is one that the API server accepts."""
    (product,) = values(snapshot(SLICED, inventory=a_node(8192, name=name)), "gpu.product")
    assert product is not None
    assert len(product) <= 63
    assert product.replace("-", "").replace("_", "").replace(".", "").isalnum()


def test_a_name_that_no_label_can_spell_is_left_out() -> None:
    """A shared GPU with a name in other letters has all labels but that of its product."""
    made = snapshot(SLICED, inventory=a_node(8192, name="显卡"))
    assert values(made, "gpu.product", "gpu.sharing-strategy", "gpu.count") == [None, "time-slicing", "1"]


def test_instances_that_stand_for_gpus_are_described() -> None:
    """Under `single`, product, count and memory are those of the instances behind nvidia.com/gpu."""
    made = snapshot({}, inventory=a_mig_node(("1g.5gb",) * 3, ("1g.5gb",)), flags={"migStrategy": "single"})
    labels = node_labels(made)
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
    assert labels["nvidia.com/gpu.count"] == "4"
    assert labels["nvidia.com/gpu.memory"] == str(made.inventory.instances[0].memory_mib)
    assert labels["nvidia.com/mig.strategy"] == "single"


def test_each_profile_has_labels_under_mixed() -> None:
    """Beside the cards, every profile is counted, under its resource name."""
    labels = node_labels(
        snapshot({}, inventory=a_mig_node(("1g.5gb", "1g.5gb+me"), None), flags={"migStrategy": "mixed"})
    )
    assert labels["nvidia.com/gpu.count"] == "2"
    assert labels["nvidia.com/mig-1g.5gb.count"] == labels["nvidia.com/mig-1g.5gb.me.count"] == "1"
    assert labels["nvidia.com/mig-1g.5gb.me.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me"
