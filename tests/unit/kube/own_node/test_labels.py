"""Tests of `gpushare_plugin.kube.own_node.labels`: the values NVIDIA's feature discovery would write."""

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.kube.own_node.labels import node_labels, own_labels
from gpushare_plugin.sharing.plan import plan
from gpushare_plugin.sharing.snapshot import planned_snapshot
from tests.nodes import a_gpu, a_mig_node, a_node
from tests.snapshots import snapshot
from tests.unit.sharing.settings import settings

SLICED = {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}
RENAMED = {"timeSlicing": {"renameByDefault": True, "resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}
BY_MEMORY = {"memory": {"resources": [{"name": "aliyun.com/gpu-mem"}]}}


def values(made: Snapshot, *names: str) -> list[str | None]:
    """Return the values of these labels of NVIDIA's."""
    labels = node_labels(made)
    return [labels.get(f"nvidia.com/{name}") for name in names]


def test_a_node_of_whole_gpus_has_every_known_label() -> None:
    """A node of whole GPUs has every label that can be known, and no other."""
    inventory = replace(
        a_node(40448, 40448, mig_capable=True, total_mib=40960, pci_class=0x030200),
        driver_version="550.54.14",
        cuda_version=(12, 4),
        machine="DGX A100 (920-23687-2530-002)",
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
        "nvidia.com/gpu.machine": "DGX-A100-920-23687-2530-002",
        "nvidia.com/gpu.memory": "40960",
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mps.capable": "false",
    }


def test_what_the_driver_does_not_report_has_no_label() -> None:
    """No label has a zero or an empty text for an unknown fact, as with NVIDIA's feature discovery for the memory."""
    bare = a_node(0, name="", compute_capability=None, pci_bus_id="")
    assert node_labels(snapshot({}, inventory=bare)) == {
        "nvidia.com/gpu.count": "1",
        "nvidia.com/gpu.machine": "unknown",
        "nvidia.com/gpu.mode": "unknown",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.capable": "false",
        "nvidia.com/mps.capable": "false",
    }


def test_a_size_in_the_config_is_the_memory_of_a_gpu_that_reports_none() -> None:
    """Selectors by memory find the node."""
    sizes = [{"pattern": "*", "size": "96GiB"}]
    assert values(snapshot(BY_MEMORY, 0, unreportedMemory=sizes), "gpu.memory") == ["98304"]


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
def test_labels_of_a_shared_node_have_the_strategy_and_the_replicas(
    sharing: dict[str, object], strategy: str, replicas: str | None, product: str
) -> None:
    """There are labels for strategy and replicas; the product has -SHARED where whole GPUs would have the same name."""
    made = snapshot(sharing, 40960, 40960)
    assert values(made, "gpu.sharing-strategy", "gpu.replicas", "gpu.product") == [strategy, replicas, product]


@pytest.mark.parametrize(("isolation", "strategy"), [("hami-core", "memory"), ("mps", "mps")])
def test_compute_beside_memory_changes_no_label(isolation: str, strategy: str) -> None:
    """Units of compute are no replicas: the labels are those of the memory, in whatever order resources are."""
    entry = {"name": "aliyun.com/gpu-mem", "isolation": isolation, "compute": "requested"}
    made = snapshot({"memory": {"resources": [entry]}}, 40960, 40960)
    turned = replace(made, resources=made.resources[::-1])
    assert len(made.resources) == 2
    assert values(turned, "gpu.sharing-strategy", "gpu.replicas") == [strategy, None]
    assert node_labels(turned) == node_labels(made)


def test_a_node_is_mps_capable_where_gpus_are_shared_through_mps() -> None:
    """Memory units under MPS count as well, and a card in MIG mode beside them does not matter; all of them would."""
    under_mps = {"memory": {"resources": [{"name": "aliyun.com/gpu-mem", "isolation": "mps"}]}}
    made = snapshot(under_mps, 8192)
    assert values(made, "mps.capable") == ["true"]
    assert own_labels(made) == {"gpushare/mps": "true"}
    assert values(replace(made, inventory=a_mig_node(("1g.5gb",), None)), "mps.capable") == ["true"]
    assert values(replace(made, inventory=a_mig_node(("1g.5gb",))), "mps.capable") == ["false"]
    assert own_labels(snapshot(BY_MEMORY, 8192)) == {}


@pytest.mark.parametrize(
    ("isolation", "means", "label"),
    [
        ("driver", DriverLimits(), {"gpushare/isolation": "driver"}),
        ("driver+mps", DriverLimits(), {"gpushare/isolation": "driver-mps", "gpushare/mps": "true"}),
        (["driver", "mps"], DriverLimits("too old"), {"gpushare/isolation": "mps", "gpushare/mps": "true"}),
        (["driver", "none"], DriverLimits("too old"), {"gpushare/isolation": "none"}),
        ("none", DriverLimits(), {}),
        ("hami-core", DriverLimits(), {}),
    ],
)
def test_the_chosen_isolation_is_a_label(isolation: object, means: DriverLimits, label: dict[str, str]) -> None:
    """Pods can ask for nodes on which the driver limits memory; a config without a choice adds no label."""
    entry = {"name": "aliyun.com/gpu-mem", "isolation": isolation, "devices": [0]}
    config, node = settings(sharing={"memory": {"resources": [entry]}}), Inventory((a_gpu(0), a_gpu(1)))
    made = planned_snapshot(config, node, plan(EffectiveConfig(config), node, driver_limits=means))
    assert own_labels(made) == label


def test_gpus_with_different_isolations_make_a_node_mixed() -> None:
    """One label cannot say more."""
    entries = [
        {"name": "a.io/a", "isolation": "driver", "devices": [0]},
        {"name": "a.io/b", "isolation": ["hami-core"], "devices": [1]},
        {"name": "a.io/c", "isolation": ["driver+mps", "none"], "devices": [2]},
    ]
    config, node = settings(sharing={"memory": {"resources": entries}}), Inventory((a_gpu(0), a_gpu(1), a_gpu(2)))
    made = planned_snapshot(config, node, plan(EffectiveConfig(config), node, driver_limits=DriverLimits()))
    assert own_labels(made)["gpushare/isolation"] == "mixed"


def test_a_node_without_gpus_gets_no_label() -> None:
    """A node without GPUs gets no label at all."""
    assert node_labels(Snapshot()) == {}


def test_a_node_that_offers_nothing_has_no_labels_of_sharing() -> None:
    """Where nothing is offered, there are no labels of sharing."""
    made = replace(snapshot({}, 8192), resources=())
    assert values(made, "gpu.product", "gpu.replicas", "gpu.sharing-strategy") == ["NVIDIA-A100-SXM4-40GB", None, None]


def test_the_label_of_the_product_is_that_of_most_gpus() -> None:
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
    ("classes", "mode"),
    [
        ([0x030200, 0x030200], "compute"),
        ([0x030000], "graphics"),
        ([0x030000, 0x030200], "unknown"),
        ([0x030200, None], "unknown"),
        ([0x120000], "unknown"),
        ([None], "unknown"),
    ],
)
def test_the_label_of_the_mode_follows_from_the_pci_class(classes: list[int | None], mode: str) -> None:
    """A 3D controller computes, a VGA controller does graphics; cards that differ, and others, are unknown."""
    cards = tuple(a_gpu(index, pci_class=pci_class) for index, pci_class in enumerate(classes))
    assert values(snapshot({}, inventory=Inventory(cards)), "gpu.mode", "gpu.machine") == [mode, "unknown"]


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
def test_the_label_of_the_family_follows_from_the_compute_capability(capability: tuple[int, int], family: str) -> None:
    """The family follows from the compute capability."""
    assert values(snapshot({}, inventory=a_node(8192, compute_capability=capability)), "gpu.family") == [family]


def test_the_label_of_the_mig_strategy_is_there_only_with_a_strategy() -> None:
    """Without a strategy there is no such label, as feature discovery has it."""
    assert values(snapshot({}, 8192), "mig.strategy", "mig.capable") == [None, "false"]
    assert values(snapshot({}, 8192, flags={"migStrategy": "mixed"}), "mig.strategy") == ["mixed"]


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 3090 (rev. 2)", "x" * 80, "Graphics Device™ "])
def test_values_of_labels_are_valid_whatever_the_name_of_a_gpu(name: str) -> None:
    """Whatever the name of a GPU is, the label is one that the API server accepts."""
    (product,) = values(snapshot(SLICED, inventory=a_node(8192, name=name)), "gpu.product")
    assert product is not None
    assert len(product) <= 63
    assert product.replace("-", "").replace("_", "").replace(".", "").isalnum()


def test_a_name_that_no_label_can_spell_is_left_out() -> None:
    """A shared GPU with a name in other letters has all labels but that of its product."""
    made = snapshot(SLICED, inventory=a_node(8192, name="显卡"))
    assert values(made, "gpu.product", "gpu.sharing-strategy", "gpu.count") == [None, "time-slicing", "1"]


def of_instances(name: str, **changes: str) -> dict[str, str]:
    """Return the labels of two instances 1g.5gb of an A100 under a resource of this name, with `changes`."""
    labels = {
        "product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
        "count": "2",
        "memory": "4864",
        "replicas": "1",
        "sharing-strategy": "none",
        "multiprocessors": "14",
        "slices.gi": "1",
        "slices.ci": "1",
        "engines.copy": "1",
        "engines.decoder": "0",
        "engines.encoder": "0",
        "engines.jpeg": "0",
        "engines.ofa": "0",
    }
    return {f"nvidia.com/{name}.{key}": value for key, value in (labels | changes).items()}


def of_resource(labels: dict[str, str], name: str) -> dict[str, str]:
    """Return the labels that are about one resource, without those about the architecture and the node."""
    others = {"family", "compute.major", "compute.minor", "machine", "mode"}
    start = f"nvidia.com/{name}."
    return {key: value for key, value in labels.items() if key.startswith(start) and key[len(start) :] not in others}


def sliced(resource: str, **options: object) -> dict[str, object]:
    """Return a `sharing` section under which each device of a resource has 4 replicas."""
    return {"timeSlicing": {"resources": [{"name": resource, "replicas": 4}], **options}}


SHARED = {
    "product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED",
    "replicas": "4",
    "sharing-strategy": "time-slicing",
}


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        (None, {}),
        ({}, SHARED),
        ({"renameByDefault": True}, SHARED | {"product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}),
    ],
    ids=["whole", "shared", "renamed"],
)
@pytest.mark.parametrize(
    ("strategy", "resource"),
    [("single", "nvidia.com/gpu"), ("mixed", "nvidia.com/mig-1g.5gb")],
    ids=["single", "mixed"],
)
def test_instances_are_described_like_gpus(
    strategy: str, resource: str, options: dict[str, object] | None, changes: dict[str, str]
) -> None:
    """Under both strategies a resource of MIG instances has what NVIDIA's has: the sharing, the slices, the engines."""
    inventory = a_mig_node(("1g.5gb",), ("1g.5gb",))
    sharing = {} if options is None else sliced(resource, **options)
    name = resource.removeprefix("nvidia.com/")
    labels = node_labels(snapshot(sharing, inventory=inventory, flags={"migStrategy": strategy}))
    assert of_resource(labels, name) == of_instances(name, **changes)
    assert labels["nvidia.com/mig.strategy"] == strategy


def test_every_profile_has_labels_under_mixed() -> None:
    """Beside the cards, every profile is counted, under its resource name."""
    labels = node_labels(
        snapshot({}, inventory=a_mig_node(("1g.5gb", "1g.5gb+me"), None), flags={"migStrategy": "mixed"})
    )
    assert labels["nvidia.com/gpu.count"] == "2"
    assert labels["nvidia.com/gpu.replicas"] == "1"
    assert labels["nvidia.com/mig-1g.5gb.count"] == labels["nvidia.com/mig-1g.5gb.me.count"] == "1"
    assert labels["nvidia.com/mig-1g.5gb.me.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me"


def test_a_card_of_which_only_the_instances_are_offered_has_no_replica() -> None:
    """Under `mixed`, cards that are all in MIG mode are counted, and nobody can get one whole."""
    labels = node_labels(snapshot({}, inventory=a_mig_node(("1g.5gb",)), flags={"migStrategy": "mixed"}))
    assert of_resource(labels, "gpu") == {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/gpu.count": "1",
        "nvidia.com/gpu.memory": "40960",
        "nvidia.com/gpu.replicas": "0",
        "nvidia.com/gpu.sharing-strategy": "none",
    }
